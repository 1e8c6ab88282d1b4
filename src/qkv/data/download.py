"""Download files with a checksum: a file appears whole and verified, or not at all.

An interrupted download continues where it stopped if the server supports ranges.
"""

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from qkv._files import cache_folder
from qkv.data.files import describe_error

CHUNK_BYTES = 1 << 20
TIMEOUT = 30  # seconds without an answer
Progress = Callable[[int, int | None], None]  # called with the bytes so far and, where known, the total


def download(url: str, checksum: str, target: Path | None = None, *, progress: Progress | None = None) -> Path:
    """Download `url` to `target` (by default in the cache folder) unless it is there already; return its path.

    checksum: "sha256:…" or "md5:…", as the publisher states it.
    """
    target = cache_folder() / url.rsplit("/", 1)[-1] if target is None else target
    if target.exists():
        if file_checksum(target, checksum) == checksum.lower():
            return target
        target.unlink()  # it was changed since
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch(url, part, progress)
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or describe_error(error)
        raise ValueError(
            f"{url} could not be downloaded ({reason}); get the file by other means and put it at {target}, or set "
            "QKV_CACHE to a folder that has it"
        ) from None
    found = file_checksum(part, checksum)
    if found != checksum.lower():
        part.unlink()
        raise ValueError(f"{url}: expected checksum {checksum}, got {found}; nothing was kept")
    os.replace(part, target)
    return target


def _fetch(url: str, part: Path, progress: Progress | None) -> None:
    """Download the rest of a file to `part`, or all of it where the server does not support ranges."""
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
            while chunk := answer.read(CHUNK_BYTES):
                file.write(chunk)
                have += len(chunk)
                if progress is not None:
                    progress(have, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and have < total:
        raise OSError(f"the connection ended after {have:,} of {total:,} bytes; try again to continue from there")


def file_checksum(path: Path, checksum: str) -> str:
    """Compute a file's checksum, of the kind that `checksum` names."""
    kind, _, value = checksum.partition(":")
    if kind not in ("sha256", "md5") or not value:
        raise ValueError(f"a checksum must be 'sha256:…' or 'md5:…', got {checksum!r}")
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"
