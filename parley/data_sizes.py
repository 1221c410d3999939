"""Agents with different amounts of data: how long an epoch is, and whose loss counts how much.

The global loss is F = (1/N) Σ_i s_i f_i, with f_i the mean loss of agent i's samples. Every agent
counts equally if all s_i are 1; every sample does if s_i = n_i / n̄, where n_i is the number of
agent i's samples and n̄ their mean. An agent multiplies its own losses and gradients by s_i. The
mixing weights stay as they are: others would change how fast agents agree, and whether they do.
"""

from collections.abc import Sequence
from typing import NamedTuple

from parley.algorithms import Algorithm
from parley.data import steps_per_epoch
from parley.data.targets import CLASSES
from parley.errors import BadValue

LARGEST, SMALLEST = "largest", "smallest"
EQUAL, SIZE = "equal", "size"
SHUFFLED, BALANCED = "shuffled", "balanced"


class Sizes(NamedTuple):
    """Epoch length and mean size, from the number of samples of all agents, even absent ones."""

    steps_per_epoch: int
    mean: float
    """Samples of an agent, the mean over agents."""

    @classmethod
    def of(cls, counts: Sequence[int], batch: int, length: str, steps: int | None) -> "Sizes":
        """For epochs of the given `length`, or of this many `steps`.

        >>> Sizes.of([10, 30], batch=5, length="smallest", steps=None)
        Sizes(steps_per_epoch=2, mean=20.0)
        """
        whose = min(counts) if length == SMALLEST else max(counts)
        return cls(steps or steps_per_epoch([whose], batch), sum(counts) / len(counts))

    def factors(self, counts: Sequence[int]) -> list[float]:
        """The factors on the losses of agents with these numbers of samples, so that every sample
        counts equally."""
        return [count / self.mean for count in counts]


def check(
    algorithm: Algorithm,
    task: str,
    objective: str,
    sampling: str,
    length: str,
    steps: int | None,
    most: int | None,
) -> None:
    """Refuses settings that do not go together."""
    if objective == SIZE and algorithm.is_scale_free:
        because = f"{algorithm.name} divides each agent's gradient by its own magnitude, which "
        raise BadValue("objective", SIZE, EQUAL, f"{because}would cancel the weights")
    if sampling == BALANCED and task not in CLASSES:
        because = f"in the task {task} a sample does not have one class"
        raise BadValue("sampling", BALANCED, SHUFFLED, because)
    if steps is not None and length != LARGEST:
        because = f"steps_per_epoch = {steps} is given too"
        raise BadValue("epoch_length", length, "one of the two", because)
    if most is not None and most % algorithm.round_steps:
        rounds = algorithm.round_steps
        because = f"{algorithm.name} takes rounds of {rounds} steps"
        raise BadValue("max_steps", most, f"a multiple of {rounds}", because)
