"""The catalog of checks: a stable id for each kind of finding, what it proves, and the page docs/checks.md."""

import re
from dataclasses import dataclass

from qkv.check.registry import CHECKS, TRAINING_CHECKS
from qkv.check.report import PROOFS

PAGE = "docs/checks.md"
NEEDS = {
    "anything": "every target",
    "function": "functions of q, k, v",
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
        proves: what holds if it passes, by each check that gives such findings.
        needs: what it applies to.
        promises: the promises of a contract that it proves.
    """

    id: str
    name: str
    proves: tuple[str, ...]
    needs: tuple[str, ...]
    promises: tuple[str, ...]


def make_id(name: str) -> str:
    """The id of a name: letters, digits and hyphens.

    >>> make_id("mask, more keys"), make_id("source: "), make_id("labels of −100")
    ('mask-more-keys', 'source', 'labels-of-100')
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def list_checks() -> dict[str, CheckInfo]:
    """Every kind of finding by its id."""
    rows = [(name, check.proves, str(check.needs)) for check in CHECKS for name in check.findings]
    rows += [(name, check.proves, "training") for check in TRAINING_CHECKS.values() for name in check.findings]
    rows.append(("like", LIKE, "reference"))
    found: dict[str, CheckInfo] = {}
    for name, proves, needs in rows:
        key = make_id(name)
        known = found.get(key, CheckInfo(key, name.strip(), (), (), _promises(name)))
        found[key] = CheckInfo(
            key,
            known.name,
            tuple(dict.fromkeys((*known.proves, proves))),
            tuple(dict.fromkeys((*known.needs, needs))),
            known.promises,
        )
    return found


def _promises(name: str) -> tuple[str, ...]:
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
        "# The checks",
        "",
        "Each finding of `qkv check` has one of these ids. They are stable: allow-lists, SARIF, JUnit and",
        "`pytest --qkv` use them.",
        "`python docs/make_checks.py` writes this page from the registry, and a test keeps it up to date.",
    ]
    for info in list_checks().values():
        lines += ["", f"## {info.id}", ""]
        lines += [f"Finding “{info.name.rstrip(':')}”, for {' and '.join(NEEDS[need] for need in info.needs)}."]
        lines += [f"Proves: {'; '.join(info.proves)}."]
        if info.promises:
            lines += [f"It judges the promise {', '.join(f'`{promise}`' for promise in info.promises)}."]
    return "\n".join(lines) + "\n"
