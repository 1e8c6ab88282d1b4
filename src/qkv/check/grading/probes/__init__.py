"""Probes: code that the grader sends into the sandbox to call what is no single function, such as a dataset.

A probe is source text there; the grader imports none. It sees what a submission sees, and what it returns is judged
outside like any other tensor.
"""

from pathlib import Path


def read_probe(name: str) -> str:
    """The source of a probe."""
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
