"""Files from the network, checked: they appear whole, with the right checksum, or not at all.

An interrupted download goes on where it stopped, if the server can; the checksum decides in any case.
"""

import hashlib
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from qkv.data.problems import one_line

PIECE = 1 << 20
TIMEOUT = 30  # seconds without an answer


def cache_folder() -> Path:
    """Where downloads are kept: QKV_CACHE, or the user's cache folder."""
    if given := os.environ.get("QKV_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "qkv"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "qkv"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkv"


def download(
    url: str, checksum: str, target: Path | None = None, *, progress: Callable[[int, int | None], None] | None = None
) -> Path:
    """The file at `url`, brought to `target` (in the cache folder if not given) unless it is there already.

    checksum: "sha256:…" or "md5:…", as the publisher states it.
    progress: told the bytes so far and, where known, of how many.
    """
    target = cache_folder() / url.rsplit("/", 1)[-1] if target is None else target
    if target.exists():
        if digest(target, checksum) == checksum.lower():
            return target
        target.unlink()  # it was changed since
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch(url, part, progress)
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or one_line(error)
        raise ValueError(
            f"{url} could not be fetched ({reason}); bring the file here by other means and put it at {target}, or set "
            "QKV_CACHE to a folder that has it"
        ) from None
    found = digest(part, checksum)
    if found != checksum.lower():
        part.unlink()
        raise ValueError(f"{url} is not what was expected: its checksum is {found}, not {checksum}; nothing was kept")
    os.replace(part, target)
    return target


def _fetch(url: str, part: Path, progress: Callable[[int, int | None], None] | None) -> None:
    """Bring the rest of a file to `part`, or all of it where the server does not continue."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416 or not have:  # 416: there is nothing beyond what we have
            raise
        part.unlink()
        _fetch(url, part, progress)
        return
    with answer:
        continues = have > 0 and getattr(answer, "status", None) == 206
        have = have if continues else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if continues else "wb") as file:
            while piece := answer.read(PIECE):
                file.write(piece)
                have += len(piece)
                if progress is not None:
                    progress(have, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and have < total:
        raise OSError(f"the connection ended after {have:,} of {total:,} bytes; try again to go on from there")


def digest(path: Path, checksum: str) -> str:
    """A file's checksum, of the kind that `checksum` names."""
    kind, _, value = checksum.partition(":")
    if kind not in ("sha256", "md5") or not value:
        raise ValueError(f"a checksum is 'sha256:…' or 'md5:…'; got {checksum!r}")
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"
