"""The catalog of findings: a stable id for each kind, what it means, and the page docs/checks.md."""

import re
from dataclasses import dataclass

from qkv.check.registry import CHECKS, TRAINING_CHECKS
from qkv.check.report import PROOFS

PAGE = "docs/checks.md"
NEEDS = {
    "function": "attention functions",
    "module": "layers and models",
    "encoder-decoder": "encoder–decoders",
    "training": "training code",
    "reference": "targets with --like",
}
LIKE = "outputs and gradients equal those of the reference, with its weights"


@dataclass(frozen=True)
class CheckInfo:
    """A kind of finding.

    Args:
        id: stable, for allow-lists, SARIF and test names: "padding-content".
        name: the beginning of the names of its findings: "padding content".
        meanings: what holds if it passes, by each check that gives such findings.
        needs: what it applies to; "anything" for every target.
        required_by: the fields of a contract that require it.
    """

    id: str
    name: str
    meanings: tuple[str, ...]
    needs: tuple[str, ...]
    required_by: tuple[str, ...]


def make_id(name: str) -> str:
    """The id of a name: letters, digits and hyphens.

    >>> make_id("mask, more keys"), make_id("source: "), make_id("labels of −100")
    ('mask-more-keys', 'source', 'labels-of-100')
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def list_checks() -> dict[str, CheckInfo]:
    """Every kind of finding by its id."""
    rows = [(name, means, str(check.needs)) for check in CHECKS for name, means in check.findings.items()]
    rows += [(name, means, "training") for check in TRAINING_CHECKS.values() for name, means in check.findings.items()]
    rows.append(("like", LIKE, "reference"))
    found: dict[str, CheckInfo] = {}
    for name, means, needs in rows:
        key = make_id(name)
        known = found.get(key, CheckInfo(key, name.strip(), (), (), _required_by(name)))
        found[key] = CheckInfo(
            key,
            known.name,
            tuple(dict.fromkeys((*known.meanings, means))),
            tuple(dict.fromkeys((*known.needs, needs))),
            known.required_by,
        )
    return found


def _required_by(name: str) -> tuple[str, ...]:
    return tuple(promise for promise, (proofs, _) in PROOFS.items() if name in proofs)


def find_id(finding: str) -> str:
    """The id of a finding, by the longest name that it begins with.

    >>> find_id("padding content (left)"), find_id("like (more keys)"), find_id("source: batch (alone)")
    ('padding-content', 'like', 'source')
    """
    names = {info.name: info.id for info in list_checks().values()}
    fitting = [name for name in names if finding == name or finding.startswith((f"{name} ", f"{name}:"))]
    fitting = fitting or [name for name in names if finding.startswith(name)]
    return names[max(fitting, key=len)] if fitting else make_id(finding.partition(" (")[0])


def find_case(finding: str) -> str:
    """The id of a finding with its case, as a test name: "padding-content[left]"."""
    case = finding.partition(" (")[2].rstrip(")")
    if finding.startswith("source: "):
        case = finding.removeprefix("source: ")
    return f"{find_id(finding)}[{case}]" if case else find_id(finding)


def checks_page() -> str:
    """The page docs/checks.md."""
    lines = [
        "# The findings of qkv check",
        "",
        "Each finding of `qkv check` has one of these ids, in JUnit, SARIF, allow lists and `pytest --qkv`. The ids",
        "are stable. The text says what holds if the finding passes. An id can have a case: `padding-content[left]`.",
    ]
    for info in list_checks().values():
        meaning = "; ".join(info.meanings)
        lines += ["", f"## {info.id}", "", f"{meaning[0].upper()}{meaning[1:]}."]
        if "anything" not in info.needs:
            lines[-1] += f" For {', '.join(NEEDS[need] for need in info.needs)}."
        options = ["--contract textbook" if name == "softmax" else f"--{name}" for name in info.required_by]
        if options:
            lines[-1] += f" Required by {' and '.join(f'`{option}`' for option in options)}."
    return "\n".join(lines) + "\n"
