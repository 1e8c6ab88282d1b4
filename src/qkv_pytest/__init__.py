"""The pytest plugin: `pytest --qkv package.module:Name` adds one test for each finding of `qkv check`.

It is a package of its own, so that a pytest run without --qkv imports neither qkv nor torch.
"""

from __future__ import annotations

import json
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("qkv", "checks of attention")
    group.addoption(
        "--qkv",
        action="append",
        default=[],
        metavar="TARGET",
        help="check package.module:Name or file.py:Name; repeatable",
    )
    group.addoption(
        "--qkv-contract", default=None, metavar="NAME", help="the required properties: none, textbook, encoder"
    )
    group.addoption(
        "--qkv-allow", default=None, metavar="FILE", help="a TOML file of known failures, as of qkv check --allow"
    )
    group.addoption("--qkv-args", default=None, metavar="JSON", help="arguments of a class, as a JSON object")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the checks before -k and -m select among the tests."""
    for target in config.getoption("--qkv") or []:
        collector = TargetCollector.from_parent(session, name=f"qkv {target}")
        items.extend(collector.collect())


class FindingError(AssertionError):
    """A property that does not hold."""


class TargetCollector(pytest.Collector):
    """One implementation; it is checked once, when its tests are collected."""

    def collect(self) -> list[pytest.Item]:
        from qkv.check import run
        from qkv.check.allow_list import apply_allow_list, read_allow_list
        from qkv.check.catalog import find_case

        target = self.name.removeprefix("qkv ")
        try:
            text = self.config.getoption("--qkv-args")
            arguments = json.loads(text) if text else None
            if arguments is not None and not isinstance(arguments, dict):
                raise ValueError("--qkv-args must be a JSON object such as '{\"dim\": 64}'")
            report = run(target, self.config.getoption("--qkv-contract"), arguments=arguments)
            allow = self.config.getoption("--qkv-allow")
            if allow is not None:
                report, _ = apply_allow_list(report, target, read_allow_list(allow))
        except (ValueError, OSError) as error:
            raise pytest.UsageError(f"--qkv {target}: {error}") from None
        items: list[pytest.Item] = [
            FindingItem.from_parent(self, name=find_case(f.check), finding=f) for f in report.findings
        ]
        return items + [PromiseItem.from_parent(self, name="promise", missing=missing) for missing in report.unproven]


class PromiseItem(pytest.Item):
    """A promise that no check could test: it fails."""

    def __init__(self, *, missing: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.missing = missing

    def runtest(self) -> None:
        raise FindingError(f"not tested: {self.missing}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return str(excinfo.value)

    def reportinfo(self) -> tuple[str, None, str]:
        return "qkv", None, f"{self.parent.name if self.parent else 'qkv'}: {self.name}"


class FindingItem(pytest.Item):
    """One finding as a test, named by its id: a fail fails; what does not apply or is inconclusive is skipped."""

    def __init__(self, *, finding: Any, **rest: Any) -> None:
        super().__init__(**rest)
        self.finding = finding

    def runtest(self) -> None:
        if self.finding.verdict == "fail":
            hint = f"\n→ {self.finding.hint}" if self.finding.hint else ""
            raise FindingError(f"{self.finding.evidence}{hint}")
        if self.finding.verdict in ("n/a", "inconclusive"):
            pytest.skip(f"{self.finding.verdict}: {self.finding.evidence}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, FindingError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, None, str]:
        return "qkv", None, f"{self.parent.name if self.parent else 'qkv'}: {self.name}"
