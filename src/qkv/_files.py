"""Atomic writes of files and folders, and JSON files: a reader never sees a half-written result."""

import json
import math
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

MAX_TEXT_BYTES = 64 * 2**20  # of a JSON or TOML file; those of qkv are far smaller
FILE_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def cache_folder() -> Path:
    """The folder for downloads and compiled code: QKV_CACHE, or the user's cache folder."""
    if chosen := os.environ.get("QKV_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "qkv"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "qkv"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkv"


def fsync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_regular(path: Path, *, follow_link: bool = True) -> BinaryIO:
    """Open a regular file to read it; anything else, such as a pipe, which would block, raises OSError.

    follow_link: also open the file that a symbolic link leads to. Folders on the way may be links in any case.
    """
    if not follow_link and path.is_symlink():
        raise OSError(f"{path} is a symbolic link; expected a regular file")
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_link else os.O_NOFOLLOW)
    handle = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path} is not a regular file")
    return os.fdopen(handle, "rb")


def read_limited(path: Path, max_bytes: int = MAX_TEXT_BYTES, *, follow_link: bool = True) -> bytes:
    """Read a regular file. A larger one raises a ValueError before anything is read: a sparse file costs its sender
    nothing, and its reader all memory."""
    with open_regular(path, follow_link=follow_link) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > max_bytes else file.read(max_bytes + 1)  # it may have grown meanwhile
    if max(size, len(content)) > max_bytes:
        raise ValueError(f"{path} has {max(size, len(content)):,} bytes; such a file has at most {max_bytes:,}")
    return content


def check_writable(path: str | Path) -> Path:
    """Return the path if a file can be written there. Call it before the work whose result the file will hold.

    A file is written to a new name, or replaces a regular file. Folders, devices, pipes and sockets are refused. So are
    symbolic links, wherever they lead: neither the link nor its target is replaced. Folders on the way may be links.
    """
    path = Path(path)
    if "\0" in str(path):
        raise ValueError(f"cannot write {str(path)!r}: a name has no NUL character")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}; name a file in an existing directory")
    if path.name in ("", ".."):
        raise ValueError(f"cannot write {path}: it is a folder; give the name of a file")
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return path
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in FILE_KINDS if is_kind(mode)), "not a regular file")
        advice = "name the file it leads to" if stat.S_ISLNK(mode) else "give the name of a file"
        raise ValueError(f"cannot write {path}: it is {kind}; {advice}")
    return path


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Write a file next to its final place, flush it and rename it, so that nobody sees half of it."""
    path = check_writable(path)
    content = content.encode("utf-8") if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # after a power cut the name must not exist without the content
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def atomic_folder(target: str | Path, own_files: Collection[str], *, what: str = "model") -> Iterator[Path]:
    """Give a temporary folder to write into; it replaces `target` at the end, and is removed if something fails.

    Args:
        own_files: names that such a folder may hold. A target with any other file raises, so that nothing is lost.
        what: what the folder holds, for error messages.
    """
    target = Path(target).resolve()  # behind a link the folder is replaced, not the link
    _refuse_other_files(target, own_files, what)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield scratch
        for path in scratch.iterdir():
            path.chmod(0o644)
            fsync(path)
        scratch.chmod(0o755)
        fsync(scratch)
        _replace_folder(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    fsync(target.parent)


def _refuse_other_files(target: Path, own_files: Collection[str], what: str) -> None:
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file; a {what} is saved to a folder")
    names = sorted(path.name for path in target.iterdir()) if target.exists() else []
    if others := [name for name in names if name not in own_files]:
        raise ValueError(
            f"{target} holds other files ({others[0]}, …); choose a new folder, so that nothing is overwritten"
        )


def _replace_folder(new: Path, target: Path) -> None:
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


def json_safe(value: Any) -> Any:
    """Replace NaN and infinities by None in nested plain data: JSON has no such numbers.

    >>> json_safe({"loss": float("nan"), "rates": [1.0, float("inf")]})
    {'loss': None, 'rates': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {name: json_safe(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: object) -> None:
    """Write indented JSON. Not atomic: use it inside `atomic_folder`."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(
    path: Path, expected: str, *, max_bytes: int = MAX_TEXT_BYTES, follow_link: bool = True
) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Args:
        expected: what the file's folder should be, for error messages: "a model is a folder with config.json …".
        max_bytes: a larger file is refused before it is read. follow_link: whether the file may be a symbolic link.
    """
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is not a folder; {expected}")
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}; {expected}")
    raw = read_limited(path, max_bytes, follow_link=follow_link)
    try:
        content = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content
