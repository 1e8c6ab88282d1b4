"""A folder that appears whole or not at all: it is written beside its place and moved there by one rename."""

import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv._files import to_disk


@contextmanager
def whole_folder(target: str | Path, own: Collection[str], *, what: str = "model") -> Iterator[Path]:
    """A scratch folder to write into; it becomes `target` when all is written, and vanishes if something fails.

    own: the files that such a folder may hold; a target with any other is refused, so that nothing is lost.
    """
    target = Path(target).resolve()  # behind a link the folder is replaced, not the link
    _refuse_others(target, own, what)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield scratch
        for path in scratch.iterdir():
            path.chmod(0o644)
            to_disk(path)
        scratch.chmod(0o755)
        to_disk(scratch)
        _swap(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    to_disk(target.parent)


def _refuse_others(target: Path, own: Collection[str], what: str) -> None:
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file; a {what} is saved to a folder")
    names = sorted(path.name for path in target.iterdir()) if target.exists() else []
    if others := [name for name in names if name not in own]:
        raise ValueError(f"{target} holds other files ({others[0]}, …); choose a new folder, so that nothing is lost")


def _swap(new: Path, target: Path) -> None:
    if not target.exists():
        new.rename(target)
        return
    old = new.with_name(new.name + ".old")
    target.rename(old)
    try:
        new.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)
