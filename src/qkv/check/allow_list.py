"""The allow-list: known failures that do not fail a run, each with a reason and an expiry date.

[[allow]]
check = "fully-padded-row"            # an id of docs/checks.md
target = "model.py:Attention"         # optional; * stands for anything
reason = "upstream bug, rows of padding are dropped by the caller"
expires = 2027-01-31
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from qkv._config import parse_toml
from qkv._files import read_limited
from qkv.check.catalog import find_case, find_id, list_checks
from qkv.check.report import Finding, Report

EXAMPLE = 'check = "fully-padded-row", reason = "…" and expires = 2027-01-31'


@dataclass(frozen=True)
class Allowed:
    """One entry: the check whose failure is allowed, for targets that match, until a day."""

    check: str
    reason: str
    expires: date
    target: str = "*"

    def covers(self, target: str, finding: Finding) -> bool:
        """Whether the entry is about this finding of this target."""
        return self.check in (find_id(finding.check), find_case(finding.check)) and fnmatch(target, self.target)


def read_allow_list(path: str | Path) -> tuple[Allowed, ...]:
    """Read an allow-list; an entry without a known check, a reason and a date is an error."""
    try:
        text = read_limited(Path(path)).decode("utf-8")
    except OSError as error:
        raise ValueError(f"the allow-list {path} could not be read: {error.strerror or error}") from None
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise ValueError(f"the allow-list {path} is not TOML: {error}") from None
    entries = data.get("allow", [])
    if set(data) - {"allow"} or not isinstance(entries, list):
        raise ValueError(f"the allow-list {path} must have [[allow]] entries with {EXAMPLE}")
    return tuple(_read_entry(entry, f"entry {number} of {path}") for number, entry in enumerate(entries, 1))


def _read_entry(entry: Any, where: str) -> Allowed:
    if not isinstance(entry, dict) or set(entry) - {"check", "reason", "expires", "target"}:
        raise ValueError(f"{where} has unknown keys; it needs {EXAMPLE}, and optionally target")
    check, reason, expires = entry.get("check"), entry.get("reason"), entry.get("expires")
    if not isinstance(check, str) or check.partition("[")[0] not in list_checks():
        raise ValueError(f"{where}: check must be an id of docs/checks.md; got {check!r}")
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"{where} needs a reason")
    if not isinstance(expires, date):
        raise ValueError(f"{where} needs the day on which it expires, such as expires = 2027-01-31; got {expires!r}")
    target = entry.get("target", "*")
    if not isinstance(target, str):
        raise ValueError(f"{where}: target must be a name such as model.py:Attention; got {target!r}")
    return Allowed(check, reason.strip(), expires, target)


def apply_allow_list(
    report: Report, target: str, allowed: Sequence[Allowed], today: date | None = None
) -> tuple[Report, list[Allowed]]:
    """The report with allowed failures as warnings, and the entries that nothing needs any more."""
    today = today or date.today()
    findings, used = [], set()
    for finding in report.findings:
        entry = next((entry for entry in allowed if entry.covers(target, finding)), None)
        if entry is None or finding.verdict != "fail":
            findings.append(finding)
            continue
        used.add(entry)
        if entry.expires < today:
            words = f"{finding.evidence} (its entry in the allow-list expired on {entry.expires}: {entry.reason})"
            findings.append(replace(finding, evidence=words))
        else:
            words = f"{finding.evidence} (allowed until {entry.expires}: {entry.reason})"
            findings.append(replace(finding, verdict="warn", evidence=words))
    unused = [entry for entry in allowed if entry not in used and fnmatch(target, entry.target)]
    return replace(report, findings=tuple(findings)), unused
