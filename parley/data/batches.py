"""Each agent's batches, step by step, the same on any number of workers.

Axes: A agents hosted here, B samples of a batch."""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.data.mapped import Rows, concatenated
from parley.data.samples import AUGMENTATIONS, PERMUTATIONS, Samples, rng_of
from parley.data.transforms import Transform
from parley.errors import BadValue


class Batch(NamedTuple):
    """One step's samples for all agents hosted by a worker."""

    inputs: Tensor  # [A, B, ...], normalised
    targets: Tensor  # [A, B, ...]
    weights: Tensor  # [A, B]: 1/size for an agent's own samples, 0 for padding
    sizes: tuple[int, ...]  # [A]: how many samples are not padding
    agents: tuple[int, ...]  # [A]: their numbers on the graph
    step: int


Gather = Callable[
    [Tensor, NDArray[np.int64], Transform, NDArray[np.int64] | None, torch.dtype], Tensor
]
"""What makes inputs of raw ones, as `gathered` does."""


def gathered(
    inputs: Tensor,
    index: NDArray[np.int64],
    transform: Transform,
    draws: NDArray[np.int64] | None,
    dtype: torch.dtype,
) -> Tensor:
    """Some of the inputs, augmented by their draws if there are any, and normalised."""
    x = inputs.index_select(0, torch.from_numpy(index).to(inputs.device))
    if draws is not None:
        x = transform.augment(x, draws)
    return transform.normalise(x, dtype)


class Batches:
    """The batches of the agents hosted by one worker.

    Each agent passes over its own samples again and again, in a new order each time; a pass ends
    with a short batch when the batch size does not divide the number of samples. Agents with few
    samples therefore start a new pass sooner than others.

    >>> samples = Samples(torch.arange(5.0)[:, None], torch.tensor([0, 1, 0, 1, 0]))
    >>> batches = Batches([samples], agents=[7], batch=4, transform=Transform(), seed=0)
    >>> [batches.at(step).sizes for step in range(4)]
    [(4,), (1,), (4,), (1,)]
    """

    def __init__(
        self,
        samples_per_agent: Sequence[Samples],
        agents: Sequence[int],
        batch: int,
        transform: Transform,
        seed: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        balanced: bool = False,
        gather: Gather = gathered,
    ) -> None:
        """`balanced`: in every pass, an agent draws all classes that it holds equally often.
        `gather` may be a faster one that gives the same."""
        if batch < 1:
            raise BadValue("batch", batch, "a whole number of at least 1")
        if not samples_per_agent or len(samples_per_agent) != len(agents):
            raise ValueError(f"{len(samples_per_agent)} datasets for {len(agents)} agents")
        for agent, samples in zip(agents, samples_per_agent, strict=True):
            if not len(samples):
                raise BadValue("data", f"agent {agent}", "at least one sample for every agent")
        # One tensor for all agents, so that one gather makes a step's inputs.
        self.inputs = concatenated([samples.inputs for samples in samples_per_agent]).to(device)
        self.targets = torch.cat([samples.targets for samples in samples_per_agent]).to(device)
        self.agents = tuple(agents)
        self.batch = batch
        self.transform = transform
        self.seed = seed
        self.dtype = dtype
        self.gather = gather
        self._stream: tuple[int, ...] = ()
        self._length_A = np.array([len(samples) for samples in samples_per_agent])
        self._start_A = np.cumsum(self._length_A) - self._length_A
        self._batches_A = -(-self._length_A // batch)
        # Every agent's samples in the order of its current pass, one agent after another.
        self._order = np.empty(len(self.inputs), np.int64)
        self._order_of = np.split(self._order, self._start_A[1:])
        self._pass_A = np.full(len(agents), -1)
        self._classes: list[list[NDArray[np.int64]]] = []
        """Where the samples of each class are among an agent's own, if classes are balanced."""
        if balanced:
            self._classes = [_members(samples.targets.numpy()) for samples in samples_per_agent]

    @property
    def lengths(self) -> list[int]:
        """The number of samples of each agent."""
        found: list[int] = self._length_A.tolist()
        return found

    def another(self, draw: int) -> "Batches":
        """The same samples in different orders: batches independent of these."""
        other = copy(self)
        other._stream = (draw,)
        other._order = np.empty_like(self._order)
        other._order_of = np.split(other._order, self._start_A[1:])
        other._pass_A = np.full_like(self._pass_A, -1)
        return other

    def at(self, step: int) -> Batch:
        """The batch of a step, regardless of which steps were requested before."""
        index_AB, size_A = self._indices(step)
        agents, widest = index_AB.shape
        index, sizes, draws = index_AB.reshape(-1), tuple(size_A.tolist()), None
        if self.transform.augments:
            each = [
                _pad(self._draw(agent, step, size), widest)
                for agent, size in zip(self.agents, sizes, strict=True)
            ]
            draws = np.concatenate(each)
        inputs = self.gather(self.inputs, index, self.transform, draws, self.dtype)
        rows: Any = self.inputs
        if isinstance(rows, Rows):
            rows.begin(self._indices(step + 1)[0].reshape(-1))
        chosen = torch.from_numpy(index).to(self.targets.device)
        weights = torch.from_numpy((np.arange(widest) < size_A[:, None]) / size_A[:, None])
        return Batch(
            inputs=inputs.reshape(agents, widest, *inputs.shape[1:]),
            targets=self.targets.index_select(0, chosen).reshape(
                agents, widest, *self.targets.shape[1:]
            ),
            weights=weights.to(self.inputs.device, self.dtype),
            sizes=sizes,
            agents=self.agents,
            step=step,
        )

    def _indices(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each agent's samples of a step are in the common tensor, and how many."""
        pass_A, position_A = np.divmod(step, self._batches_A)
        for slot in np.flatnonzero(pass_A != self._pass_A).tolist():
            rng = self._rng(PERMUTATIONS, self.agents[slot], int(pass_A[slot]))
            n = len(self._order_of[slot])
            order = _balanced(rng, self._classes[slot], n) if self._classes else rng.permutation(n)
            self._order_of[slot][:] = order
            self._order_of[slot] += self._start_A[slot]
        self._pass_A = pass_A
        size_A = np.minimum(self._length_A - self.batch * position_A, self.batch)
        first_A1 = (self._start_A + self.batch * position_A)[:, None]
        next_B = np.arange(size_A.max())
        place_AB = first_A1 + next_B
        if size_A.min() < len(next_B):
            # Padding repeats an agent's first sample: finite numbers, and weight 0.
            place_AB = np.where(next_B < size_A[:, None], place_AB, first_A1)
        return self._order[place_AB], size_A

    def _draw(self, agent: int, step: int, n: int) -> NDArray[np.int64]:
        height, width = self.inputs.shape[-2:]
        return self.transform.draw(self._rng(AUGMENTATIONS, agent, step), n, (height, width))

    def _rng(self, stream: int, agent: int, number: int) -> np.random.Generator:
        return rng_of(self.seed, stream, agent, number, *self._stream)


def _members(targets: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The places of each class that occurs."""
    return [np.flatnonzero(targets == label) for label in np.unique(targets)]


def _balanced(
    rng: np.random.Generator, members: Sequence[NDArray[np.int64]], n: int
) -> NDArray[np.int64]:
    """n samples in random order, equally many of each class, give or take one. Within a class no
    sample comes again before all others have.

    >>> rng, members = np.random.default_rng(0), [np.array([0]), np.array([1, 2, 3, 4, 5])]
    >>> sorted(_balanced(rng, members, 6).tolist())[:3]
    [0, 0, 0]
    """
    most = rng.permutation(len(members))  # which classes get one more differs from pass to pass
    drawn = []
    for place, of_class in zip(most.tolist(), members, strict=True):
        count = n // len(members) + (place < n % len(members))
        passes = [rng.permutation(of_class) for _ in range(_ceil_div(count, len(of_class)))]
        drawn.append(np.concatenate(passes)[:count] if passes else of_class[:0])
    return rng.permutation(np.concatenate(drawn))


def steps_per_epoch(sizes: Sequence[int], batch: int) -> int:
    """The steps that the agent with the most samples needs for one pass over them.

    >>> steps_per_epoch([10_000] * 5, 32)  # CIFAR-10, 5 agents
    313
    """
    return _ceil_div(max(sizes), batch)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _pad(row: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    if len(row) == length:
        return row
    return np.concatenate([row, np.repeat(row[:1], length - len(row), axis=0)])
