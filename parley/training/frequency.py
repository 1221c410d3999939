"""How often a run is evaluated. It follows from counts and never from times, so that an experiment
has the same records everywhere."""

import math
from typing import NamedTuple

from parley.experiment import Experiment
from parley.measures import FORMS
from parley.stopping import Stop

SHARE = 0.1
"""Of the arithmetic of an epoch's gradients, for its evaluation."""
PASSES = 3
"""A gradient in forward passes: backward costs about twice as much as forward."""
SELDOM = 50
"""The most epochs between evaluations of all models."""
LITTLE = 1_000_000_000
"""Forward passes times parameters that are no reason to leave anything out: a few seconds at
most."""


class Frequency(NamedTuple):
    """Epochs between records, and between those with the agents' own models; others have only the
    averaged one."""

    records: int
    own: int


def frequency_of(
    experiment: Experiment,
    stop: Stop,
    edges: int,
    steps_per_epoch: int,
    tested: int,
    parameters: int,
) -> Frequency:
    """As the experiment says, and otherwise as often as `SHARE` allows."""
    if experiment.evaluate_every is not None:
        return Frequency(experiment.evaluate_every, experiment.evaluate_every)
    others = {m.field(form) for m in experiment.measures for form in FORMS[1:]}
    if any(condition.metric in others for condition in stop.conditions):
        return Frequency(1, 1)  # it could not be checked otherwise
    agents, algorithm = experiment.agents, experiment.algorithm
    across = edges * algorithm.gradients_per_edge / algorithm.round_steps
    gradients = (agents + across) * steps_per_epoch * experiment.batch
    own = 0 if agents == 1 else agents * (2 if experiment.gossip_rounds else 1)
    return Frequency(1, own_models_every(own, tested, gradients, parameters))


def own_models_every(own: int, tested: int, gradients: float, parameters: int) -> int:
    """Epochs between evaluations of so many models besides the averaged one, which is evaluated
    after each.

    >>> own_models_every(own=20, tested=10_000, gradients=180_000, parameters=60_000)
    5
    >>> own_models_every(own=20, tested=10_000, gradients=60_000, parameters=60_000)
    25
    >>> own_models_every(own=20, tested=360, gradients=4_300, parameters=10_000)
    1
    """
    if own * tested * parameters <= LITTLE:
        return 1
    spare = SHARE * PASSES * gradients - tested
    return SELDOM if spare <= 0 else min(SELDOM, math.ceil(own * tested / spare))
