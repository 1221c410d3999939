"""The metrics of a run. Nothing here changes what is trained.

Axes: A agents hosted here, I their incoming edges, O their outgoing edges, D flat parameters.
"""

import math
import sys
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from parley.compute.engine import Engine
from parley.data import Batch, Samples, Transform
from parley.errors import BadValue
from parley.neighbourhood import Neighbourhood
from parley.training.scoring import Function, Tally, figures, scorers
from parley.wire.transport import Transport

CHUNK = 512
"""Samples that are evaluated at once."""
MOST_OUTPUTS = 1 << 24
"""Numbers that a model may give for them; where it gives more, fewer are evaluated at once."""


class TestSet:
    """Held-out samples, normalised once; every process has all of them."""

    __test__ = False  # not a test for pytest

    def __init__(
        self,
        samples: Samples,
        transform: Transform,
        engine: Engine,
        transport: Transport,
        sizes: Sequence[int] = (),
        functions: Mapping[str, Function] | None = None,
    ) -> None:
        """`sizes` are the numbers of samples of each hosted agent, where they have their own."""
        self.engine = engine
        self.transport = transport
        task = engine.task
        device = task.start().device
        self.inputs = transform.normalise(samples.inputs, task.dtype).to(device)
        self.targets = samples.targets.to(device)
        self.count = len(samples)
        """The number of samples that every model is tested on."""
        self.sizes = tuple(sizes)
        self.scorers = scorers(task.goal, task.scores, functions)
        self.pooled = any(scorer.pooled for scorer in self.scorers)
        """Whether some metric needs all predictions in one place."""
        self.chunk = max(1, min(CHUNK, MOST_OUTPUTS // max(1, task.answer_size)))

    def score(self, x_D: Tensor) -> list[float]:
        """Loss and metrics of a model that every process has."""
        return self._of(x_D, slice(None))

    def scores(self, x_AD: Tensor) -> Tensor:
        """Loss and metrics of each hosted agent's model, ``float64[A, 1 + M]``."""
        return torch.tensor([self.score(x_D) for x_D in x_AD], dtype=torch.float64)

    def _of(self, x_D: Tensor, part: slice) -> list[float]:
        """Loss and metrics on some of the samples that are here."""
        targets = self.targets[part]
        if not len(targets):
            return [math.nan] * (1 + len(self.scorers))
        tally = self._tally(x_D, part)
        outputs = torch.cat(tally.kept) if tally.kept else torch.empty(0)
        return figures(self.scorers, tally.numbers(), len(targets), outputs, targets.cpu())

    def _tally(self, x_D: Tensor, part: slice = slice(None)) -> Tally:
        tally = Tally(self.scorers)
        both = (self.inputs[part].split(self.chunk), self.targets[part].split(self.chunk))
        for inputs, targets in zip(*both, strict=True):
            if len(targets):
                outputs = self.engine.predict(x_D, inputs)
                loss = float(self.engine.task.per_sample(outputs, targets).sum())
                tally.add(loss, outputs, targets)
        return tally

    def confusion(self, x_D: Tensor, classes: int) -> Tensor:
        """The confusion matrix: samples of each class (row) by predicted class (column).

        A model with more outputs than classes has one extra column for all other predictions.
        """
        columns, goal = self.columns(classes), self.engine.task.goal
        parts = self.inputs.split(self.chunk)
        answers = torch.cat([goal.answers(self.engine.predict(x_D, part)) for part in parts])
        cells = self.targets * columns + answers.clamp(max=columns - 1)
        return torch.bincount(cells, minlength=classes * columns).view(classes, columns)

    def columns(self, classes: int) -> int:
        """The number of columns of the confusion matrix."""
        return classes + (self.engine.task.scores > classes)


class OwnTestSets(TestSet):
    """Held-out samples that stay with their agents: every model goes to all of them in turn.

    The scores are those on all samples together, as if they were in one place. Most metrics add up,
    so that workers tell each other sums. For those that do not, such as AUROC, they tell each other
    the outputs and targets of their test samples, but never inputs.
    """

    def __init__(
        self,
        samples: Samples,
        transform: Transform,
        engine: Engine,
        transport: Transport,
        sizes: Sequence[int] = (),
        functions: Mapping[str, Function] | None = None,
        each: bool = True,
    ) -> None:
        """`each`: whether every hosted agent has its own samples, not one of them those of all."""
        super().__init__(samples, transform, engine, transport, sizes, functions)
        self.count = int(transport.sum(torch.tensor(len(samples))))
        if not self.count:
            valid = "a test split for at least one of the agents that are present"
            raise BadValue("data", "own", valid, "there is none")
        self.places = torch.zeros(0, dtype=torch.int64)
        """Where the samples of this worker are among all, in the order of the agents."""
        self._all_targets: Tensor | None = None
        self._each = each
        self.size_N = torch.zeros(0, dtype=torch.int64)
        """How many samples each agent has."""
        if self.sizes:
            self.size_N = transport.gather(torch.tensor(self.sizes))
            start_N = self.size_N.cumsum(0) - self.size_N
            self.places = torch.cat(
                [
                    torch.arange(size) + int(start_N[agent])
                    for agent, size in zip(transport.placement.agents, self.sizes, strict=True)
                ]
            )

    def score(self, x_D: Tensor) -> list[float]:
        """Loss and metrics on the samples of all agents."""
        tally = self._tally(x_D)
        return self._together(self.transport.sum(tally.numbers()), self._pooled(tally))

    def scores(self, x_AD: Tensor) -> Tensor:
        """Loss and metrics of each hosted agent's model, ``float64[A, 1 + M]``."""
        row = self.transport.placement.row
        tallies = [
            self._tally(self.transport.broadcast(x_AD[row.get(agent, 0)], agent))
            for agent in range(self.transport.topology.agents)
        ]
        numbers_N = self.transport.sum(torch.stack([tally.numbers() for tally in tallies]))
        found = []
        for agent, tally in enumerate(tallies):
            outputs = self._pooled(tally)
            if agent in row:
                found.append(self._together(numbers_N[agent], outputs))
        return torch.tensor(found, dtype=torch.float64)

    def personal(self, x_AD: Tensor, mean_D: Tensor) -> Tensor:
        """Loss and metrics of each hosted agent's model, and of the averaged one, on that agent's
        own samples: ``float64[A, 2, 1 + M]``; NaN for an agent that has none."""
        if not self._each:
            return torch.full((len(x_AD), 2, 1 + len(self.scorers)), math.nan, dtype=torch.float64)
        ends = torch.tensor(self.sizes).cumsum(0).tolist()
        parts = [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]
        found = [
            [self._of(x_D, part), self._of(mean_D, part)]
            for x_D, part in zip(x_AD, parts, strict=True)
        ]
        return torch.tensor(found, dtype=torch.float64)

    def confusion(self, x_D: Tensor, classes: int) -> Tensor:
        """The confusion matrix over the samples of all agents."""
        cells = torch.zeros(classes, self.columns(classes), dtype=torch.int64)
        if len(self.targets):
            cells = super().confusion(x_D, classes).cpu()
        return self.transport.sum(cells)

    def _together(self, numbers: Tensor, outputs: Tensor) -> list[float]:
        targets = self.targets[:0].cpu()
        if self.pooled:
            if self._all_targets is None:
                raise RuntimeError("targets are pooled with the first outputs")
            targets = self._all_targets
        return figures(self.scorers, numbers, self.count, outputs, targets)

    def _pooled(self, tally: Tally) -> Tensor:
        """The outputs for all agents' samples, in the order of the agents, on every worker."""
        if not self.pooled:
            return torch.empty(0)
        if self._all_targets is None:
            self._all_targets = self._spread(self.targets.cpu(), self.targets.shape[1:])
        shape, dtype = self.engine.task.answer_shape, self.engine.task.dtype
        here = torch.cat(tally.kept) if tally.kept else torch.zeros(0, *shape, dtype=dtype)
        return self._spread(here, torch.Size(shape))

    def _spread(self, here: Tensor, shape: torch.Size) -> Tensor:
        # Every worker fills in its own rows, and the sum has them all.
        everywhere = torch.zeros(self.count, *shape, dtype=here.dtype)
        everywhere[self.places] = here
        return self.transport.sum(everywhere)


def mean_model(x_AD: Tensor, transport: Transport) -> Tensor:
    """The average of all agents' models, ``[D]``, on every worker."""
    total_D = transport.total(x_AD.double())
    return (total_D / transport.topology.agents).to(x_AD.dtype)


def consensus_distance(x_AD: Tensor, mean_D: Tensor, transport: Transport) -> float:
    """How far apart the models are: the root of the mean of ‖x_i - x̄‖² over all agents."""
    square_A = (x_AD - mean_D).double().square().sum(1)
    return float(transport.gather(square_A).mean().sqrt())


def distances(x_AD: Tensor, mean_D: Tensor, transport: Transport) -> Tensor:
    """How far each agent's model is from the average, ‖x_i - x̄‖, ``float64[N]``."""
    return transport.gather((x_AD - mean_D).double().norm(dim=1))


def after_gossip(x_AD: Tensor, hood: Neighbourhood, rounds: int, gamma: float) -> Tensor:
    """The models after further gossip rounds without training, starting from the first graph."""
    # With weights whose rows do not sum to 1, averaging uses push-sum.
    w_A1 = x_AD.new_ones(len(x_AD), 1)
    push_sum = not hood.transport.topology.row_stochastic
    for step in range(rounds):
        x_AD = hood.at(step).mix(x_AD, gamma, kind="evaluation")
        if push_sum:
            w_A1 = hood.at(step).mix(w_A1, gamma, kind="evaluation")
    return x_AD / w_A1 if push_sum else x_AD


def bias_norms(x_AD: Tensor, batch: Batch, hood: Neighbourhood, form: str) -> tuple[float, float]:
    """Norms of the bias terms ε (model variance) and ω (data variance), averaged over agents.

    ``printed``: the Euclidean norm of the term, a mean over the neighbourhood with the agent
    itself. ``run``: the mean over neighbours of ‖g - g^ii‖₁ / d.
    """
    g_AD, _ = hood.gradient(x_AD, batch)
    g_I = hood.cross_gradient(hood.exchange(x_AD, kind="evaluation"), batch)
    g_ID = hood.collect(g_I)
    r_OD = hood.send_back(hood.stored(g_ID), kind="evaluation")
    norms = []
    for values_ED, end_E in ((g_ID, hood.receiver_I), (r_OD, hood.sender_O)):
        difference_ED = values_ED - g_AD[end_E]
        count_A = torch.bincount(end_E, minlength=len(g_AD)).to(g_AD)
        if form == "printed":
            bias_AD = torch.zeros_like(g_AD).index_add_(0, end_E, difference_ED)
            norm_A = (bias_AD / (count_A + 1)[:, None]).norm(dim=1)
        else:
            norm_A = torch.zeros_like(count_A).index_add_(0, end_E, difference_ED.abs().mean(1))
            norm_A = norm_A / count_A.clamp(min=1)
        norms.append(float(hood.transport.gather(norm_A.double()).mean()))
    return norms[0], norms[1]


def peak_memory_mb(transport: Transport) -> float:
    """The largest resident size of this process so far, summed over workers, in MB.

    0 on systems where it is not available (Windows).
    """
    return float(transport.sum(torch.tensor(_peak_bytes() / 1e6, dtype=torch.float64)))


def _peak_bytes() -> int:
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
