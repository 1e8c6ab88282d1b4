"""What in a folder's Python files could be attention: found by reading them, without running anything."""

from __future__ import annotations

import ast
from pathlib import Path

FILES, BYTES, MOST = 100, 200_000, 200  # that are read, of each, names that are offered
WORDS = ("attention", "attn", "transformer", "decoder", "encoder", "gpt", "vit")


def found(folder: Path) -> list[str]:
    """file.py:Name of the folder's modules with a forward, and of its functions of q, k and v; the likeliest first."""
    names: list[tuple[int, str]] = []
    for path in sorted(folder.glob("*.py"))[:FILES]:
        try:
            if path.stat().st_size > BYTES or not path.is_file():
                continue
            tree = ast.parse(path.read_bytes())
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            continue  # nothing that could be checked
        names += [(rank, f"{path.name}:{node.name}") for node in tree.body if (rank := _rank(node)) is not None]  # type: ignore[attr-defined]
    return [name for _, name in sorted(names, key=lambda each: each[0])][:MOST]


def _rank(node: ast.stmt) -> int | None:
    """0 for what is called attention or the like, 1 for what could be it, None for what cannot."""
    if isinstance(node, ast.ClassDef):
        fits = any(isinstance(part, ast.FunctionDef) and part.name in ("forward", "__call__") for part in node.body)
    elif isinstance(node, ast.FunctionDef):
        arguments = {argument.arg.lower()[:1] for argument in node.args.posonlyargs + node.args.args}
        fits = {"q", "k", "v"} <= arguments
    else:
        return None
    return (0 if any(word in node.name.lower() for word in WORDS) else 1) if fits else None
