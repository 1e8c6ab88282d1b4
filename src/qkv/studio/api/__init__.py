"""The rooms behind the page: each file answers for one, as routes under /api/ROOM."""

from collections.abc import Callable

from starlette.routing import BaseRoute

from qkv.studio.api import check, claims, models, playground, runs
from qkv.studio.state import Studio

ROOMS: list[Callable[[Studio], list[BaseRoute]]] = [
    playground.routes,
    claims.routes,
    models.routes,
    runs.routes,
    check.routes,
]
