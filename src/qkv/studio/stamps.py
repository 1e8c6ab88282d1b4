"""Which files these are: a name alone does not tell, since a folder may be deleted and its name given again."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[tuple[int, int], ...]


def stamp(*files: Path) -> Stamp:
    """For each file the moment it was written and its number on the disk; zeros where there is none."""
    found = []
    for path in files:
        try:
            status = path.stat()
        except OSError:
            found.append((0, 0))
        else:
            found.append((status.st_mtime_ns, status.st_ino))
    return tuple(found)
