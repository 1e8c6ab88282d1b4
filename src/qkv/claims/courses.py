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
ASKED = re.compile(r"([nacp]\d)([a-z]?)(?:([-–,])([a-z]))?", re.IGNORECASE)  # N1c, C2, P3a,b, C1a-e
SYNONYMS = {  # words that people look for: the words of the pages, of which one must occur
    "hallucination": ("invent",),
    "hallucinations": ("invent",),
    "hallucinate": ("invent",),
    "sqrt": ("√", "sqrt"),
    "layernorm": ("layer norm", "layernorm"),
    "positional": ("position",),
    "beta": ("β", "beta"),
    "temperature": ("β", "temperature"),
    "ffn": ("feed-forward", "ffn"),
    "mha": ("multi-head", "mha"),
    "rotary": ("rope", "rotary"),
    "softargmax": ("softmax", "softargmax"),
}


@dataclass(frozen=True)
class CourseAnswer:
    """The model answer to one item of a homework sheet. items: its ids, such as N1c; answer: Markdown."""

    items: tuple[str, ...]
    course: str
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
    """The model answers to an item (N1c, in upper or lower case), several (P3a,b; C1a-e) or a group (C2).

    >>> [entry.items for entry in find_answers("n1c") + find_answers("P3a,b") + find_answers("C1c–e")]
    [('N1c',), ('P3a', 'P3b'), ('C1c',), ('C1d',), ('C1e',)]
    >>> [entry.items for entry in find_answers("C3")]
    [('C3a',), ('C3b',), ('C3c',)]
    """
    parts = ASKED.fullmatch(asked)
    if parts is None:
        return []
    group, first, joined_by, last = parts[1].upper(), parts[2].lower(), parts[3], (parts[4] or "").lower()
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
    """The model answers in which every word occurs.

    >>> [entry.items for entry in search_answers("depthwise")]
    [('N2b',)]
    """
    return [entry for entry in read_answers() if has_words(f"{entry.title} {entry.answer}", words)]


def has_words(text: str, words: str) -> bool:
    """Whether each of the words, or a synonym, begins a word of the text; single letters must be whole words.

    >>> has_words("Orthonormal keys", "norm"), has_words("a layer norm", "LayerNorm"), has_words("1/√d", "sqrt")
    (False, True, True)
    """
    text = text.lower()

    def occurs(phrase: str) -> bool:
        end = r"(?!\w)" if len(phrase) == 1 and phrase.isalpha() else ""
        start = r"(?<!\w)" if phrase[0].isalnum() else ""
        return re.search(start + re.escape(phrase) + end, text) is not None

    return all(any(map(occurs, SYNONYMS.get(word, (word,)))) for word in words.lower().split())


def answers_of_page(page: str) -> list[CourseAnswer]:
    """The answers of a page of docs/courses: a heading that names an item, and the text below it."""
    parts = re.split(r"^##+ (.*)$", page, flags=re.MULTILINE)
    course = parts[0].splitlines()[0].removeprefix("# ").split(":")[0]
    found = []
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        items = [single for item in ITEM.findall(title) for single in _singles(item)]
        if items and text.strip():
            found.append(CourseAnswer(tuple(items), course, title.replace("`", ""), _as_text(text)))
    return found


def _singles(item: str) -> list[str]:
    """
    >>> _singles("P3a,b")
    ['P3a', 'P3b']
    """
    return [item] if "," not in item else [item.split(",")[0], item.split(",")[0][:-1] + item.split(",")[1]]


def _as_text(markdown: str) -> str:
    """The text as a terminal shows it: no comments, pictures by their description, links by their words.

    >>> _as_text("see [grading](../grading.md) and [N3b](#n3b)")
    'see docs/grading.md and N3b'
    """
    text = re.sub(r"<!--.*?-->\n", "", markdown)
    text = re.sub(r"!\[([^\]]*)\]\(([^)]*)\)", r"[picture \2: \1]", text)
    text = re.sub(r"\[(grading|results|lab log)\]\(\.\./([\w-]+\.md)[^)]*\)", r"docs/\2", text)
    return re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text).strip()


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
