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


def find_answer(item: str) -> CourseAnswer | None:
    """The model answer to an item, in upper or lower case; None if there is no such item.

    >>> find_answer("n1c").title
    'N1c When a value vector is preserved'
    """
    wanted = item.lower()
    return next((entry for entry in read_answers() if wanted in (known.lower() for known in entry.items)), None)


def search_answers(words: str) -> list[CourseAnswer]:
    """The model answers in which every word occurs.

    >>> [entry.items for entry in search_answers("depthwise")]
    [('N2b',)]
    """
    wanted = words.lower().split()
    return [
        entry for entry in read_answers() if all(word in f"{entry.title} {entry.answer}".lower() for word in wanted)
    ]


def answers_of_page(page: str) -> list[CourseAnswer]:
    """The answers of a page of docs/courses: a heading that names an item, and the text below it."""
    parts = re.split(r"^##+ (.*)$", page, flags=re.MULTILINE)
    course = parts[0].splitlines()[0].removeprefix("# ").split(":")[0]
    found = []
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        items = [single for item in ITEM.findall(title) for single in _singles(item)]
        if items and text.strip():
            found.append(CourseAnswer(tuple(items), course, title, _as_text(text)))
    return found


def _singles(item: str) -> list[str]:
    """
    >>> _singles("P3a,b")
    ['P3a', 'P3b']
    """
    return [item] if "," not in item else [item.split(",")[0], item.split(",")[0][:-1] + item.split(",")[1]]


def _as_text(markdown: str) -> str:
    """The text as a terminal shows it: no comments, pictures by their description, links by their words."""
    text = re.sub(r"<!--.*?-->\n", "", markdown)
    text = re.sub(r"!\[([^\]]*)\]\(([^)]*)\)", r"[picture \2: \1]", text)
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
