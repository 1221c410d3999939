"""The pace of a run: its rates in every step, and where its rounds and epochs end."""

import math
from collections.abc import Sequence

from parley.algorithms import Algorithm
from parley.data_sizes import Sizes
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.schedule import RateFunction, own_factor, parse_schedule


def sizes_of(experiment: Experiment, counts: Sequence[int]) -> Sizes:
    """Epoch length and loss weights, from the number of samples of each agent."""
    length, steps = experiment.epoch_length, experiment.steps_per_epoch
    return Sizes.of(counts, experiment.batch, length, steps)


class Pace:
    """The learning rate and the algorithm of each step, and the steps of each epoch."""

    def __init__(
        self,
        experiment: Experiment,
        steps_per_epoch: int,
        lr_decay: RateFunction | None = None,
        gamma_decay: RateFunction | None = None,
    ) -> None:
        """The last two are schedules from Python, if any."""
        self.experiment = experiment
        self.steps_per_epoch = steps_per_epoch
        self.epochs: float = experiment.epochs
        """Fewer than the experiment has, if a limit on steps comes first."""
        if experiment.max_steps is not None:
            self.epochs = min(self.epochs, experiment.max_steps / steps_per_epoch)
        self._lr = parse_schedule(experiment.lr_decay, "lr_decay", lr_decay)
        self._gamma = parse_schedule(experiment.gamma_decay, "gamma_decay", gamma_decay)
        for field, schedule in (("lr_decay", self._lr), ("gamma_decay", self._gamma)):
            if schedule.warmup > self.epochs:
                because = f"the warm-up is longer than the run of {experiment.max_steps} steps, "
                because += f"which are {self.epochs:.4g} epochs"
                valid = f"warmup up to {self.epochs:.4g}, or more steps"
                raise BadValue(field, getattr(experiment, field), valid, because)

    def lr(self, step: int) -> float:
        """The learning rate in a step, counted from 0."""
        factor = self._lr.factor(step, self.steps_per_epoch, self.epochs)
        return self.experiment.lr * own_factor(factor, "lr_decay", step, math.inf)

    def algorithm(self, step: int) -> Algorithm:
        """The algorithm in a step, at that step's averaging rate."""
        if self._gamma.is_constant:
            return self.experiment.algorithm
        factor = self._gamma.factor(step, self.steps_per_epoch, self.epochs)
        return self.experiment.algorithm.with_rate(own_factor(factor, "gamma_decay", step, 1.0))

    def end_of(self, epoch: int) -> int:
        """The number of steps in this many epochs."""
        return last_step(self.experiment, self.steps_per_epoch, epoch)


def last_step(experiment: Experiment, steps_per_epoch: int, epoch: int) -> int:
    """The number of steps in this many epochs, up to the end of the last round.

    >>> from parley.algorithms import DPSGD
    >>> experiment = Experiment.of(algorithm=DPSGD(local_steps=4), max_steps=16)
    >>> [last_step(experiment, 5, epoch) for epoch in (1, 2, 4)]
    [8, 12, 16]
    """
    round_steps = experiment.algorithm.round_steps
    steps = -(-epoch * steps_per_epoch // round_steps) * round_steps
    return steps if experiment.max_steps is None else min(steps, experiment.max_steps)
