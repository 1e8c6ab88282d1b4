"""Files that appear whole or not at all."""

import os
import tempfile
from pathlib import Path


def to_disk(path: Path) -> None:
    """Bring a file, or a folder's list of names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def writable(path: str | Path) -> Path:
    """The path, if a file can stand there: asked before the work whose result it is to hold."""
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file to write")
    return path


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file beside its place and move it there by one rename, so that nobody ever sees half of it."""
    path = writable(path)
    content = content.encode("utf-8") if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # a power cut must not find the name without the content
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
