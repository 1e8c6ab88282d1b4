"""The API behind each page of the studio: one module per page, with routes under /api/PAGE."""

from collections.abc import Callable

from starlette.routing import BaseRoute

from qkv.studio.api import check, claims, models, playground, runs
from qkv.studio.server import Studio

PAGES: list[Callable[[Studio], list[BaseRoute]]] = [
    playground.routes,
    claims.routes,
    models.routes,
    runs.routes,
    check.routes,
]
