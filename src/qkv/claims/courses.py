"""The model answers of docs/courses as data: what `qkv questions N1c` prints. Imports no torch.

courses.json is written from the pages by `python -m qkv.claims.courses` in a checkout; a test compares the two.
"""

import json
import re
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("courses.json")
PAGES = ("nyu-hw4", "attention-assignment", "cs224n-a5", "csci5922-ps4")
ITEM = re.compile(r"\b[NACP]\d[a-gx]?(?:,b)?\b")  # N1c, A4, P3a,b
ITEM_LINK = re.compile(r"#([nacp]\d[a-gx]?)-")  # of an item's section: nyu-hw4.md#n3b-…
ASKED = re.compile(r"([nacp])(?:(\d)([a-z]?)(?:([-–,])([a-z]))?)?", re.IGNORECASE)  # N1c, C2, P3a,b, C1a-e, N
SHEETS = {"nyu": "N", "cs224n": "C", "csci5922": "P"}  # a course by its name instead of its letter
EQUIVALENT = (  # a word that people look for finds the other words of its line, too
    ("hallucination", "hallucinate", "invent"),
    ("sqrt", "√"),
    ("layernorm", "layer norm"),
    ("positional", "position"),
    ("beta", "β", "temperature", "inverse temperature"),
    ("ffn", "feed-forward", "feedforward"),
    ("multi-head", "multihead", "mha", "several heads", "two heads", "h heads"),
    ("vision", "vit"),
    ("cnn", "convolution", "convolutional"),
    ("cls", "class token"),
    ("rope", "rotary"),
    ("softargmax", "softmax"),
    ("streaming", "real time", "real-time"),
    ("skip connection", "residual"),
    ("warmup", "warm-up"),
    ("pre-training", "pretraining", "pretrain"),
    ("finetuning", "fine-tuning", "fine-tune"),
)
SYNONYMS = {word.replace(" ", "-"): words for words in EQUIVALENT for word in words}
COMPOUNDS = "|".join(word.replace("-", "[ -]") for word in SYNONYMS if "-" in word)
TERM = re.compile(rf"(?<!\w)(?:{COMPOUNDS})s?(?!\w)|\S+")  # "multi head" is one term


@dataclass(frozen=True)
class CourseAnswer:
    """The model answer to one item of a homework sheet.

    items: its ids, such as N1c; group: the heading that it stands under, "" for none; answer: Markdown.
    """

    items: tuple[str, ...]
    course: str
    group: str
    title: str
    answer: str


@cache
def read_answers() -> tuple[CourseAnswer, ...]:
    """All model answers, in the order of the sheets.

    >>> read_answers()[0].items
    ('N1a',)
    """
    content = json.loads(FILE.read_text("utf-8"))
    return tuple(CourseAnswer(**{**entry, "items": tuple(entry["items"])}) for entry in content)


def find_answers(asked: str) -> list[CourseAnswer]:
    """The model answers to an item (N1c, in upper or lower case), several (P3a,b; C1a-e), a group (C2) or a sheet (N).

    >>> [entry.items for entry in find_answers("n1c") + find_answers("P3a,b") + find_answers("C1c–e")]
    [('N1c',), ('P3a', 'P3b'), ('C1c',), ('C1d',), ('C1e',)]
    >>> [entry.items for entry in find_answers("C3")]
    [('C3a',), ('C3b',), ('C3c',)]
    >>> len(find_answers("A")), find_answers("nyu") == find_answers("N")
    (5, True)
    """
    parts = ASKED.fullmatch(SHEETS.get(asked.lower(), asked))
    if parts is None:
        return []
    group, first = parts[1].upper() + (parts[2] or ""), (parts[3] or "").lower()
    joined_by, last = parts[4], (parts[5] or "").lower()
    if not first:
        wanted = [item for entry in read_answers() for item in entry.items if item.startswith(group)] * (not last)
    elif joined_by in (None, ","):
        wanted = [group + first, *([group + last] if last else [])]
    else:
        wanted = [group + chr(letter) for letter in range(ord(first), ord(last) + 1)]
    known = {item for entry in read_answers() for item in entry.items}
    if not known.issuperset(wanted):
        return []
    return [entry for entry in read_answers() if not set(wanted).isdisjoint(entry.items)]


def search_answers(words: str) -> list[CourseAnswer]:
    """The model answers in which every word occurs, in the text or in the headings above it.

    >>> [entry.items for entry in search_answers("depthwise")]
    [('N2b',)]
    """
    return [entry for entry in read_answers() if has_words(f"{entry.group} {entry.title} {entry.answer}", words)]


def answers_with_claim(name: str) -> list[CourseAnswer]:
    """The model answers that run the claim of this name.

    >>> [entry.items for entry in answers_with_claim("identity")]
    [('N3c',)]
    """
    uses = re.compile(rf"^\$ qkv claims (?:run|show) (?:.* )?{re.escape(name)}(?: |$)", re.MULTILINE)
    return [entry for entry in read_answers() if uses.search(entry.answer)]


def has_words(text: str, words: str) -> bool:
    """Whether each of the words, its singular or a synonym begins a word of the text; single letters are whole words.

    >>> has_words("Orthonormal keys", "norm"), has_words("a layer norm", "LayerNorm"), has_words("1/√d", "sqrt")
    (False, True, True)
    >>> has_words("Why several heads", "multi head"), has_words("one head", "multi-head")
    (True, False)
    """
    text = text.lower()

    def occurs(phrase: str) -> bool:
        end = r"(?!\w)" if len(phrase) == 1 and phrase.isalpha() else ""
        start = r"(?<!\w)" if phrase[0].isalnum() else ""
        return re.search(start + re.escape(phrase) + end, text) is not None

    def forms(word: str) -> set[str]:
        singular = word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
        found = {word, singular}
        for form in (word, singular):
            found.update(SYNONYMS.get(form.replace(" ", "-"), ()))
        return found

    return all(any(map(occurs, forms(term))) for term in TERM.findall(words.lower()))


def answers_of_page(page: str) -> list[CourseAnswer]:
    """The answers of a page of docs/courses: a heading that names an item, and the text below it."""
    parts = re.split(r"^##+ (.*)$", page, flags=re.MULTILINE)
    course = parts[0].splitlines()[0].removeprefix("# ").split(":")[0]
    found, group = [], ""
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        items = [single for item in ITEM.findall(title) for single in _singles(item)]
        is_group = len(items) == 1 and re.search(rf"^### {items[0]}[a-z]", page, re.MULTILINE) is not None
        group = title if is_group else group * any(item[:2] == group[:2] for item in items)
        if items and text.strip():
            above = "" if is_group else group
            found.append(CourseAnswer(tuple(items), course, above, title.replace("`", ""), _as_text(text)))
    return found


def _singles(item: str) -> list[str]:
    """
    >>> _singles("P3a,b")
    ['P3a', 'P3b']
    """
    return [item] if "," not in item else [item.split(",")[0], item.split(",")[0][:-1] + item.split(",")[1]]


def _as_text(markdown: str) -> str:
    """The text as a terminal shows it: no comments, pictures by their description, links by their words.

    The command that prints the linked items stands at the end.

    >>> print(_as_text("see [grading](../grading.md) and [the proof](#n3b-positions)"))
    see docs/grading.md and the proof (N3b)
    <BLANKLINE>
    **See also**: `qkv questions N3b`
    """
    text = re.sub(r"<!--.*?-->\n", "", markdown)
    text = re.sub(r"!\[([^\]]*)\]\(([^)]*)\)", r"[picture \2: \1]", text)
    text = re.sub(r"\[(grading|results|lab log)\]\(\.\./([\w-]+\.md)[^)]*\)", r"docs/\2", text)
    linked: dict[str, None] = {}

    def words_of_link(link: re.Match[str]) -> str:
        item = ITEM_LINK.search(link[2])
        if item is None:
            return link[1]
        name = item[1][0].upper() + item[1][1:]
        linked[name] = None
        return link[1] if name in link[1] else f"{link[1]} ({name})"

    text = re.sub(r"\[([^\]]+)\]\(([^)]*)\)", words_of_link, text).strip()
    return text + (f"\n\n**See also**: `qkv questions {' '.join(linked)}`" if linked else "")


def courses_text(folder: Path) -> str:
    """The content of courses.json for the pages in a folder."""
    entries = [entry for page in PAGES for entry in answers_of_page((folder / f"{page}.md").read_text("utf-8"))]
    return json.dumps([asdict(entry) for entry in entries], indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write courses.json from docs/courses."""
    from qkv._files import write_atomic

    write_atomic(FILE, courses_text(Path(__file__).parents[3] / "docs" / "courses"))


if __name__ == "__main__":
    main()
