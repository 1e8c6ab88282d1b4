"""Batches that are planned an epoch at a time: which items each of them holds."""

from typing import Generic, TypeVar

Group = TypeVar("Group")  # what a batch holds


class Planned(Generic[Group]):
    """An epoch's plan, made by `_plan`; the last one is kept, for speed alone."""

    _planned: tuple[int, list[Group]] | None = None

    def count(self, epoch: int) -> int:
        """How many batches the epoch has."""
        return len(self.plan(epoch))

    def plan(self, epoch: int) -> list[Group]:
        """What each batch holds."""
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, self._plan(epoch)
        return self._planned[1]

    def _plan(self, epoch: int) -> list[Group]:
        raise NotImplementedError

    def _held(self, epoch: int, index: int) -> Group:
        """What the batch at that place holds."""
        plan = self.plan(epoch)
        if not 0 <= index < len(plan):
            raise IndexError(f"this epoch has batches 0 … {len(plan) - 1}; got {index}")
        return plan[index]
