"""Numbers that agents and workers report about themselves: checked before they count.

Axes: N all agents.
"""

import math

import torch
from torch import Tensor

from parley.errors import Diverged
from parley.training.pace import Pace
from parley.wire.transport import Transport


class Reports:
    """The numbers of one record; those that cannot be are left out, and their sender is named."""

    def __init__(self, transport: Transport, step: int) -> None:
        """`step` is the last that was taken."""
        self.transport = transport
        self.step = step

    def checked(
        self,
        what: str,
        values_N: Tensor,
        most: float = math.inf,
        least: float = 0.0,
        unknown: bool = False,
    ) -> Tensor:
        """The values, with NaN for those that cannot be. They may be NaN themselves if they may be
        `unknown`."""
        bad_N = ~((values_N >= least) & (values_N <= most) & values_N.isfinite())
        if unknown:
            bad_N &= ~values_N.isnan()
        placement, guard = self.transport.placement, self.transport.guard
        if guard is None or not bool(bad_N.any()):
            return values_N
        for agent in bad_N.nonzero().flatten().tolist():
            words = f"reported {what} of {float(values_N[agent]):.6g}"
            guard.report(placement.number(agent), placement.worker_of[agent], self.step, words)
        return values_N.double().masked_fill(bad_N, math.nan)

    def gathered(self, what: str, values_A: Tensor) -> Tensor:
        """What the agents of all workers report, without what is unknown or cannot be."""
        return present(self.checked(what, self.transport.gather(values_A)))

    def over_workers(self, what: str, value: float) -> float:
        """The sum over workers of what each reports; what cannot be counts for nothing."""
        said = self.transport.each(torch.tensor(value, dtype=torch.float64))
        of_agent_N = torch.stack(said)[list(self.transport.placement.worker_of)]
        self.checked(what, of_agent_N)
        return sum(float(v) for v in said if 0 <= float(v) < math.inf)


def present(values_N: Tensor) -> Tensor:
    """Without unknown values."""
    return values_N[~values_N.isnan()] if bool(values_N.isnan().any()) else values_N


def diverged(what: str, step: int, pace: Pace, transport: Transport) -> Diverged:
    """The error for a number that is no longer finite, with a remedy."""
    remedy = f"training has diverged; try a smaller lr (now {pace.experiment.lr:g})"
    if (guard := transport.guard) is not None and guard.first:
        remedy = f"training has diverged after {guard.first}"
    steps, epoch = pace.end_of(pace.experiment.epochs), -(-step // pace.steps_per_epoch)
    return Diverged(f"{what}, step {step} of {steps}: {remedy}", step, epoch)
