"""The Runs room."""

from __future__ import annotations

from starlette.routing import BaseRoute

from qkv.studio.state import Studio


def routes(studio: Studio) -> list[BaseRoute]:
    """What the runs room answers."""
    return []
