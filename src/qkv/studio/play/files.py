"""What is shown as a file that `qkv byhand` reads, and such a file shown."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path, PurePath
from typing import Any

from qkv.byhand.files import MOST_BYTES, read_settings
from qkv.studio.play.examples import state_of
from qkv.studio.play.given import FORMS, HARD, Given, read_given
from qkv.studio.play.reproduce import FILE, words
from qkv.studio.play.working import BY_HAND, too_large

EXTRA = "# playground: "  # a comment with what `qkv byhand` has no word for


def written(given: Given) -> dict[str, str]:
    """The file: TOML, matrices as text."""
    from qkv.training.recipes.plain import to_toml  # the one writer of TOML

    extra = {name: list(it) for name, it in (("names", given.names), ("queryNames", given.query_names)) if any(it)}
    more = {**extra, **({"beta": HARD} if given.hard else {})}
    comment = f"{EXTRA}{json.dumps(more)}\n" if more else ""
    table = {**({"title": given.title} if given.title else {}), **words(given)}
    use = "" if too_large(given, BY_HAND, BY_HAND) else f"# qkv byhand {FILE}\n"
    return {"name": FILE, "text": f"{use}{comment}{to_toml(table)}"}


def opened(name: str, text: str) -> dict[str, Any]:
    """The page's state for a problem file (TOML, JSON or CSV); ValueError says what is wrong with it."""
    if not isinstance(name, str) or not isinstance(text, str):
        raise ValueError("a file is sent as its name and its text")
    kind = PurePath(name).suffix.lower()
    if kind not in (".toml", ".json", ".csv"):
        raise ValueError(f"expected a file ending in .toml, .json or .csv, got {PurePath(name).name[:60]!r}")
    if len(text.encode()) > MOST_BYTES:
        raise ValueError(f"the file is larger than {MOST_BYTES:,} bytes: a problem of the playground takes far fewer")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{kind}"
        path.write_text(text, encoding="utf-8")
        state = state_of(read_settings(path))
    if missing := [matrix for matrix in FORMS[state["form"]] if matrix not in state]:
        raise ValueError(f"give inputs x (with wq, wk, wv) or all of q, k and v: {', '.join(missing)} missing")
    state |= _extra(text)
    read_given(state)  # what does not fit is refused here, before the page shows it
    return state


def _extra(text: str) -> dict[str, Any]:
    for line in text.splitlines():
        if line.startswith(EXTRA):
            try:
                found = json.loads(line[len(EXTRA) :])
            except ValueError:
                return {}
            return {name: found[name] for name in ("names", "queryNames", "beta") if name in found}
    return {}
