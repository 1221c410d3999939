"""Weighted sums of rows, each added up in a given order.

Axes: A sums, T terms of all sums, R rows, D flat parameters.

Floating-point numbers added in another order give another sum, and where only signs are sent, one
that is rounded to the other side of zero changes everything after it. So whatever is summed over
neighbours is summed here, in the order in which the terms are given, which is that of the graph's
edges and has nothing to do with which worker hosts whom. Each term is rounded twice, as
``sum + weight * row`` says, by the compiled kernel and by torch alike.
"""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from parley.compute import kernels
from parley.compute.threads import Crew

WORTH_A_THREAD = 1 << 23
"""Bytes of sums from which on they are shared out among threads: below, waking them costs more."""
ALONE = Crew()


class Sums:
    """Which rows go into which sum, with which weights and in which order; worked out once.

    >>> sums = Sums([0, 1, 0], [0, 1, 1], torch.tensor([0.5, 1.0, 0.5]))
    >>> sums.of(torch.tensor([[1.0, 2.0], [3.0, 6.0]])).tolist()
    [[2.0, 4.0], [3.0, 6.0]]
    """

    def __init__(
        self, targets: Sequence[int], rows: Sequence[int], weight_T: Tensor, crew: Crew = ALONE
    ) -> None:
        """Term t is ``weight_T[t]`` times row ``rows[t]`` and goes into sum ``targets[t]``."""
        target_T, row_T = (np.asarray(v, dtype=np.int64) for v in (targets, rows))
        order = np.argsort(target_T, kind="stable")
        target_A, first_A = np.unique(target_T[order], return_index=True)
        self._target_A = target_A
        self._start = np.append(first_A, len(order)).astype(np.int64)
        self._row_T = row_T[order]
        self._weight_T = weight_T[torch.from_numpy(order).to(weight_T.device)].contiguous()
        self._last_target, self._last_row = (int(v.max(initial=-1)) for v in (target_T, row_T))
        if len(order) and min(target_T.min(), row_T.min()) < 0:
            raise IndexError("a row is negative")
        self._crew = crew

    def of(
        self,
        x_RD: Tensor,
        more_RD: Tensor | None = None,
        gamma: float = 1.0,
        plus_AD: Tensor | None = None,
    ) -> Tensor:
        """The sums, [A, D]. Rows of `more_RD` are numbered behind those of `x_RD`.

        With γ below 1 each is only that share of the way from its first row, x + γ (sum - x).
        `plus_AD` is added at the end.
        """
        if self._last_target != len(self._target_A) - 1:
            raise IndexError(f"{len(self._target_A)} sums of {self._last_target + 1} have a term")
        sum_AD = x_RD.new_empty(len(self._target_A), x_RD.shape[1])
        self._compute(sum_AD, x_RD, more_RD, False, gamma, plus_AD)
        return sum_AD

    def add(self, sum_AD: Tensor, x_RD: Tensor, more_RD: Tensor | None = None) -> None:
        """Adds all terms to what is in `sum_AD`."""
        self._compute(sum_AD, x_RD, more_RD, True, 1.0, None)

    def _compute(
        self,
        sum_AD: Tensor,
        x_RD: Tensor,
        more_RD: Tensor | None,
        add: bool,
        gamma: float,
        plus_AD: Tensor | None,
    ) -> None:
        more_RD = x_RD[:0] if more_RD is None else more_RD
        for last, rows in (
            (self._last_row, len(x_RD) + len(more_RD)),
            (self._last_target, len(sum_AD)),
        ):
            if last >= rows:
                raise IndexError(f"row {last} of {rows}")
        tensors = (sum_AD, x_RD, more_RD) if plus_AD is None else (sum_AD, x_RD, more_RD, plus_AD)
        if plus_AD is not None and len(plus_AD) != len(sum_AD):
            raise ValueError(f"{len(plus_AD)} rows to add to {len(sum_AD)} sums")
        if {t.shape[1] for t in tensors} != {sum_AD.shape[1]}:
            raise ValueError(f"rows of unequal length: {[tuple(t.shape) for t in tensors]}")
        if {t.dtype for t in tensors} != {self._weight_T.dtype}:
            raise ValueError(f"{[t.dtype for t in tensors]} with weights {self._weight_T.dtype}")
        if all(map(_compiled, tensors)):
            self._by_kernel(sum_AD, x_RD, more_RD, add, gamma, plus_AD)
            return
        self._by_torch(sum_AD, x_RD, more_RD, add, gamma)
        if plus_AD is not None:
            sum_AD.add_(plus_AD)

    def _by_kernel(
        self,
        sum_AD: Tensor,
        x_RD: Tensor,
        more_RD: Tensor,
        add: bool,
        gamma: float,
        plus_AD: Tensor | None,
    ) -> None:
        library, size = kernels.library(), sum_AD.shape[1]
        single = sum_AD.dtype == torch.float32
        compute = library.parley_sums_float if single else library.parley_sums_double
        plus = (None, 0) if plus_AD is None else (plus_AD.data_ptr(), plus_AD.stride(0))

        def work(thread: int, columns: tuple[int, int]) -> None:
            compute(
                *columns,
                *self._terms,
                *(x_RD.data_ptr(), x_RD.stride(0), len(x_RD)),
                *(more_RD.data_ptr(), more_RD.stride(0)),
                *(sum_AD.data_ptr(), sum_AD.stride(0), add, gamma, *plus),
            )

        several = sum_AD.numel() * sum_AD.element_size() >= WORTH_A_THREAD
        parts = self._crew.size if several else 1
        self._crew.share(work, list(pairwise([size * k // parts for k in range(parts + 1)])))

    @cached_property
    def _terms(self) -> tuple[int, ...]:
        """What the kernel wants to know of the terms."""
        arrays = (self._target_A, self._start, self._row_T)
        return (
            len(self._target_A),
            *(array.ctypes.data for array in arrays),
            self._weight_T.data_ptr(),
        )

    def _by_torch(
        self, sum_AD: Tensor, x_RD: Tensor, more_RD: Tensor, add: bool, gamma: float
    ) -> None:
        """The same with one term of every sum at a time, so that no sum is met twice at once."""
        x_RD = torch.cat([x_RD, more_RD]) if len(more_RD) else x_RD
        for n, (target_T, row_T, weight_T1) in enumerate(self._turns):
            term_TD = weight_T1 * x_RD.index_select(0, row_T)
            if n or add:
                term_TD = sum_AD.index_select(0, target_T) + term_TD
            sum_AD.index_copy_(0, target_T, term_TD)
        if gamma != 1:
            own_AD = x_RD.index_select(0, self._turns[0][1])
            sum_AD.sub_(own_AD).mul_(gamma).add_(own_AD)

    @cached_property
    def _turns(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The first term of every sum, then the second of every sum that has one, and so on."""
        count_A = np.diff(self._start)
        target_T = np.repeat(self._target_A, count_A)
        turn_T = np.arange(len(target_T)) - np.repeat(self._start[:-1], count_A)
        weight_T, turns = self._weight_T, []
        for terms in np.split(np.argsort(turn_T, kind="stable"), np.cumsum(np.bincount(turn_T))):
            if len(terms):
                index = [
                    torch.from_numpy(v[terms]).to(weight_T.device) for v in (target_T, self._row_T)
                ]
                weight_T1 = weight_T[torch.from_numpy(terms).to(weight_T.device)][:, None]
                turns.append((index[0], index[1], weight_T1))
        return turns


def in_order(x_RD: Tensor) -> Tensor:
    """The sum of all rows, from the first to the last, [D].

    >>> in_order(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([4., 6.])
    """
    return _all(len(x_RD), x_RD.dtype, x_RD.device).of(x_RD)[0]


@lru_cache(maxsize=8)
def _all(rows: int, dtype: torch.dtype, device: torch.device) -> Sums:
    return Sums([0] * rows, range(rows), torch.ones(rows, dtype=dtype, device=device))


def _compiled(values: Tensor) -> bool:
    """Whether the kernel can take these: numbers of a row side by side, on the CPU."""
    known = values.dtype in (torch.float32, torch.float64) and values.is_cpu
    side_by_side = values.shape[1] <= 1 or values.stride(1) == 1
    return known and side_by_side and kernels.available()
