"""How fast a run goes: its rates in every step, and where its rounds and epochs end."""

import math

from parley.algorithms import Algorithm
from parley.experiment import Experiment
from parley.schedule import Own, own_factor, parse_schedule


class Pace:
    """The learning rate and the algorithm of each step, and the steps of each epoch."""

    def __init__(
        self,
        experiment: Experiment,
        steps_per_epoch: int,
        lr_decay: Own | None = None,
        gamma_decay: Own | None = None,
    ) -> None:
        """The last two are schedules that Python gave."""
        self.experiment = experiment
        self.steps_per_epoch = steps_per_epoch
        self._lr = parse_schedule(experiment.lr_decay, "lr_decay", lr_decay)
        self._gamma = parse_schedule(experiment.gamma_decay, "gamma_decay", gamma_decay)

    def lr(self, step: int) -> float:
        """The learning rate in a step, counted from 0."""
        factor = self._lr.factor(step, self.steps_per_epoch, self.experiment.epochs)
        return self.experiment.lr * own_factor(factor, "lr_decay", step, math.inf)

    def algorithm(self, step: int) -> Algorithm:
        """The algorithm in a step, at that step's averaging rate."""
        if self._gamma.is_constant:
            return self.experiment.algorithm
        factor = self._gamma.factor(step, self.steps_per_epoch, self.experiment.epochs)
        return self.experiment.algorithm.with_rate(own_factor(factor, "gamma_decay", step, 1.0))

    def end_of(self, epoch: int) -> int:
        """Steps made when so many epochs are."""
        return last_step(self.experiment.algorithm, self.steps_per_epoch, epoch)


def last_step(algorithm: Algorithm, steps_per_epoch: int, epoch: int) -> int:
    """Steps made when so many epochs are: those of the epochs, and of the round they end in.

    >>> from parley.algorithms import DPSGD
    >>> [last_step(DPSGD(local_steps=4), 5, epoch) for epoch in (1, 2, 4)]
    [8, 12, 20]
    """
    round_steps = algorithm.round_steps
    return -(-epoch * steps_per_epoch // round_steps) * round_steps
