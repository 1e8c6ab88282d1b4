"""Which qkv this is: the checkout that it runs from, and its commit."""

import subprocess
from pathlib import Path

import qkv

UNKNOWN = "unknown"


def checkout() -> Path | None:
    """The root of the checkout that this qkv runs from; None where it was installed otherwise."""
    home = Path(qkv.__file__).resolve().parent
    root = home.parents[1]
    return root if home == root / "src" / "qkv" and (root / ".git").exists() else None


def commit() -> str:
    """The commit of that checkout, with -dirty if its code differs from it; "unknown" outside one."""
    root = checkout()
    said = None if root is None else _git(root, "rev-parse", "--short=12", "HEAD")
    if root is None or not said:
        return UNKNOWN
    return said + ("-dirty" if _git(root, "status", "--porcelain", "--", "src", "constraints.txt") else "")


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
