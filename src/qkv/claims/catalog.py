"""The claims as data, without their experiments: what lists and descriptions need, without importing torch.

catalog.json is written from the registry by `python -m qkv.claims.catalog`; a test compares the two.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

from qkv.claims.claim import Claim, ExperimentResult, Knob

FILE = Path(__file__).with_name("catalog.json")


@cache
def read_catalog() -> dict[str, Claim]:
    """All claims by name, in order; their experiments are loaded when they are called.

    >>> read_catalog()["copy"].cost
    'instant'
    """
    content: dict[str, dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
    return {name: _from_dict(name, entry) for name, entry in content.items()}


def find_by_name(name: str, claims: Mapping[str, Claim]) -> Claim:
    """Return the claim of that name; a ValueError names the nearest."""
    if name in claims:
        return claims[name]
    close = difflib.get_close_matches(name, claims, n=1)
    suggestion = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(claims)}"
    raise ValueError(f"there is no claim {name!r}; {suggestion}")


def catalog_text(claims: Mapping[str, Claim]) -> str:
    """The content of catalog.json for these claims."""
    content = {name: _to_dict(claim) for name, claim in claims.items()}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _to_dict(claim: Claim) -> dict[str, Any]:
    names = [field.name for field in fields(claim) if field.name not in ("name", "experiment", "knobs")]
    return {**{name: getattr(claim, name) for name in names}, "knobs": [asdict(knob) for knob in claim.knobs]}


def _from_dict(name: str, entry: dict[str, Any]) -> Claim:
    def experiment(*args: Any, **knobs: Any) -> ExperimentResult:
        from qkv.claims.registry import CLAIMS

        return CLAIMS[name].experiment(*args, **knobs)

    knobs = tuple(Knob(**{**knob, "between": tuple(knob["between"])}) for knob in entry["knobs"])
    rest: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.items() if key != "knobs"
    }
    return Claim(name=name, experiment=experiment, knobs=knobs, **rest)


def main() -> None:
    """Write catalog.json from the registry."""
    from qkv._files import write_atomic
    from qkv.claims.registry import CLAIMS

    write_atomic(FILE, catalog_text(CLAIMS))


if __name__ == "__main__":
    main()
