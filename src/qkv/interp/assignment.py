"""Pairing rows with columns so that the costs together are least (the Hungarian method, with potentials)."""

from __future__ import annotations

from collections.abc import Sequence


def assign(costs: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """(row, column) pairs, each row and column at most once, of the least total cost; as many as the shorter side has.

    >>> assign([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])
    [(0, 1), (1, 0), (2, 2)]
    """
    if not costs or not costs[0]:
        return []
    if len(costs) > len(costs[0]):
        flipped = assign([list(column) for column in zip(*costs, strict=True)])
        return sorted((row, column) for column, row in flipped)
    n, m = len(costs), len(costs[0])
    rows, columns = [0.0] * (n + 1), [0.0] * (m + 1)  # potentials; place 0 stands for none
    owner, way = [0] * (m + 1), [0] * (m + 1)
    for row in range(1, n + 1):
        owner[0], at = row, 0
        least, seen = [float("inf")] * (m + 1), [False] * (m + 1)
        while owner[at]:
            seen[at] = True
            here, step, following = owner[at], float("inf"), 0
            for column in range(1, m + 1):
                if seen[column]:
                    continue
                cost = costs[here - 1][column - 1] - rows[here] - columns[column]
                if cost < least[column]:
                    least[column], way[column] = cost, at
                if least[column] < step:
                    step, following = least[column], column
            for column in range(m + 1):
                if seen[column]:
                    rows[owner[column]] += step
                    columns[column] -= step
                else:
                    least[column] -= step
            at = following
        while at:
            owner[at] = owner[way[at]]
            at = way[at]
    return sorted((owner[column] - 1, column - 1) for column in range(1, m + 1) if owner[column])
