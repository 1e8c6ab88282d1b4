"""The commands on a docs page, with the output that the page shows."""

import re
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^(?P<long><!-- long -->\n)?```(?:console)?\n(?P<text>\$ .*?)^```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"(?:.*\\\n)*.*")  # a command line, continued after each backslash at the end of a line


@dataclass(frozen=True)
class Command:
    """A command line after `$ `, with the output shown below it, where `...` stands for anything."""

    line: str
    shown: str
    long: bool


def commands(page: Path) -> list[Command]:
    """All commands of a page in order; those after <!-- long --> take long."""
    found = []
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
            line = LINE.match(part)[0]  # type: ignore[index]
            found.append(Command(line, part[len(line) + 1 :], block["long"] is not None))
    return found
