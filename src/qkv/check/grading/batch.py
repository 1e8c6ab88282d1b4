"""Many submissions: side by side, one that fails never touching another; stopped by one Ctrl-C."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from qkv.check.grading.grading import Grade, grade
from qkv.check.grading.remote import RefusedError, Remote
from qkv.check.grading.rubric import Rubric

Progress = Callable[[Grade, int, int], None]


def grade_all(
    rubric: Rubric,
    paths: Sequence[Path],
    *,
    seed: int | None = None,
    jobs: int = 2,
    walls: bool = True,
    hidden: Sequence[Path] = (),
    progress: Progress | None = None,
) -> list[Grade]:
    """Grades in the order of the files. Without a seed a fresh one is drawn, which stands in every grade.

    hidden: folders that no submission may see, besides those of the submissions themselves.
    """
    seed = secrets.randbits(48) if seed is None else seed
    students = names(paths)
    folders = tuple({path.absolute().parent for path in paths} | set(hidden))
    stop, live = threading.Event(), set[Remote]()

    def one(place: int) -> Grade | None:
        if stop.is_set():
            return None
        return grade(rubric, paths[place], students[place], seed, walls=walls, hidden=folders, live=live)

    pool = ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="grade")
    try:
        waiting: dict[Future[Grade | None], int] = {pool.submit(one, place): place for place in range(len(paths))}
        done: dict[int, Grade] = {}
        while waiting:
            finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in finished:
                place, found = waiting.pop(future), future.result()
                assert found is not None
                done[place] = found
                if progress is not None:
                    progress(found, len(done), len(paths))
        return [done[place] for place in range(len(paths))]
    except RefusedError as error:
        raise refusal(error) from None
    finally:
        stop.set()
        for remote in list(live):
            remote.stop()
        pool.shutdown(wait=True, cancel_futures=True)


def refusal(error: RefusedError) -> ValueError:
    return ValueError(
        f"submissions cannot be walled off on this system ({error}): grading needs Linux with namespaces, as root or "
        "as a user who may make them. With --unsafe they run with your rights, limited in time and memory only"
    )


def names(paths: Sequence[Path]) -> list[str]:
    """A name for each file: its own, or with as many folders as it takes to tell them apart.

    >>> names([Path("in/ada/attention.py"), Path("in/alan/attention.py")])
    ['ada/attention', 'alan/attention']
    >>> names([Path("in/ada.py"), Path("in/alan.py")])
    ['ada', 'alan']
    """
    depth = 1
    parts = [path.absolute().with_suffix("").parts for path in paths]
    while depth < max(map(len, parts), default=1):
        found = ["/".join(part[-depth:]) for part in parts]
        if len(set(found)) == len(found):
            return found
        depth += 1
    return [str(path) for path in paths]
