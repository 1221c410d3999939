"""Threads that compute side by side inside one process.

Compiled kernels run without Python's lock. Other than torch's own threads these do not spin while
they wait for each other, so they take nothing away from other programs that need the cores.
"""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where Linux says how much time of its cores a container has."""


def usable_cores() -> int:
    """Cores that this process may run on, as far as it can be told; at least one."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    try:
        quota, period = QUOTA.read_text(encoding="ascii").split()
        cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # no quota ("max"), or another system
        pass
    return max(1, cores)


class Crew:
    """So many threads, of which the caller's is one.

    >>> Crew(2).share(lambda thread, part: (thread, sum(part)), [[1, 2], [3]])
    [(0, 3), (1, 3)]
    """

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self._others = ThreadPoolExecutor(size - 1, "parley") if size > 1 else None

    def share(self, work: Callable[[int, T], object], parts: Sequence[T]) -> list[object]:
        """Does ``work(thread, part)`` for every part, each in a thread of its own."""
        if len(parts) > self.size:
            raise ValueError(f"{len(parts)} parts for {self.size} threads")
        if self._others is None or len(parts) < 2:
            return [work(0, part) for part in parts]
        others = [self._others.submit(work, k, part) for k, part in enumerate(parts[1:], start=1)]
        try:
            return [work(0, parts[0]), *(other.result() for other in others)]
        finally:
            wait(others)  # they use memory that may be gone once this returns
