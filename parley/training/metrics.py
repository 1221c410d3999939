"""The metrics of a run. Nothing here changes what is trained.

Axes: A agents hosted here, I their incoming edges, O their outgoing edges, D flat parameters.
"""

import sys

import torch
from torch import Tensor

from parley.compute.engine import Engine, Score
from parley.data import Batch, Samples, Transform
from parley.errors import BadValue
from parley.neighbourhood import Neighbourhood
from parley.wire.transport import Transport

MOST_SAMPLES = 1 << 40
"""Test samples of one worker: more than there are."""


class TestSet:
    """Held-out samples, normalised once; every process has all of them."""

    __test__ = False  # not a test for pytest

    def __init__(
        self, samples: Samples, transform: Transform, engine: Engine, transport: Transport
    ) -> None:
        self.engine = engine
        self.transport = transport
        device = engine.task.start().device
        self.inputs = transform.normalise(samples.inputs, engine.task.dtype).to(device)
        self.targets = samples.targets.to(device)
        self.count = len(samples)
        """The number of samples that every model is tested on."""

    def score(self, x_D: Tensor) -> Score:
        """Loss and accuracy of a model that every process has."""
        return self.engine.evaluate(x_D, self.inputs, self.targets)

    def confusion(self, x_D: Tensor, classes: int, chunk: int = 512) -> Tensor:
        """The confusion matrix: samples of each class (row) by predicted class (column).

        A model with more outputs than classes has one extra column for all other predictions.
        """
        columns = self.columns(classes)
        parts = self.inputs.split(chunk)
        answers = torch.cat([self.engine.predict(x_D, part).argmax(1) for part in parts])
        cells = self.targets * columns + answers.clamp(max=columns - 1)
        return torch.bincount(cells, minlength=classes * columns).view(classes, columns)

    def columns(self, classes: int) -> int:
        """The number of columns of the confusion matrix."""
        return classes + (self.engine.task.scores > classes)

    def scores(self, x_AD: Tensor) -> Tensor:
        """Loss and accuracy of each hosted agent's model, ``float64[A, 2]``."""
        return torch.tensor([self.score(x_D) for x_D in x_AD], dtype=torch.float64)

    def everyone(self, x_AD: Tensor) -> Tensor:
        """Loss and accuracy of every agent's model, ``float64[N, 2]``, on every worker."""
        return self.transport.gather(self.scores(x_AD))


class OwnTestSets(TestSet):
    """Held-out samples that stay with their agents: every model goes to all of them in turn.

    The scores are those on all samples together, as if they were in one place. A worker whose
    numbers cannot be is reported, and its samples are left out: it decides about its own share of
    the samples, and about nobody's score alone.
    """

    def __init__(
        self, samples: Samples, transform: Transform, engine: Engine, transport: Transport
    ) -> None:
        super().__init__(samples, transform, engine, transport)
        counts = [int(count) for count in transport.each(torch.tensor(len(samples)))]
        self._counts = counts
        """Of each worker."""
        for worker, count in enumerate(counts):
            if not 0 <= count <= MOST_SAMPLES:
                self._report(worker, f"reported {count} test samples")
                counts[worker] = 0
        self.count = sum(counts)
        if not self.count:
            valid = "a test split for at least one of the agents that are present"
            raise BadValue("data", "own", valid, "there is none")

    def score(self, x_D: Tensor) -> Score:
        """Loss and accuracy on the samples of all agents."""
        return Score(*self._pooled(self._sums(x_D)[None])[0].tolist())

    def everyone(self, x_AD: Tensor) -> Tensor:
        """Loss and accuracy of every agent's model, ``float64[N, 2]``, on every worker."""
        row = self.transport.placement.row
        sums_N = [
            self._sums(self.transport.broadcast(x_AD[row.get(agent, 0)], agent))
            for agent in range(self.transport.topology.agents)
        ]
        return self._pooled(torch.stack(sums_N))

    def confusion(self, x_D: Tensor, classes: int, chunk: int = 512) -> Tensor:
        """The confusion matrix over the samples of all agents."""
        cells = torch.zeros(classes, self.columns(classes), dtype=torch.int64)
        if len(self.targets):
            cells = super().confusion(x_D, classes, chunk).cpu()
        every = self.transport.each(cells)
        for worker, said in enumerate(every):
            if int(said.min()) < 0 or int(said.sum()) != self._counts[worker]:
                self._report(worker, "reported answers to other than its test samples")
                said.zero_()
        return torch.stack(every).sum(0)

    def _pooled(self, sums_N2: Tensor) -> Tensor:
        """Mean losses and accuracies of some models, given their sums on this worker's samples."""
        total_N2, count = torch.zeros_like(sums_N2), 0
        for worker, said_N2 in enumerate(self.transport.each(sums_N2)):
            right_N, most = said_N2[:, 1], self._counts[worker] + 0.5
            possible = said_N2.isfinite().all() and ((right_N >= 0) & (right_N <= most)).all()
            if possible or worker == self.transport.placement.here:
                total_N2 += said_N2
                count += self._counts[worker]
            else:
                self._report(worker, "reported losses or accuracies that cannot be")
        return total_N2 / max(count, 1)

    def _report(self, worker: int, words: str) -> None:
        """Names a worker by the first of its agents."""
        placement, guard = self.transport.placement, self.transport.guard
        if guard is not None:
            agent = placement.number(placement.worker_of.index(worker))
            guard.report(agent, worker, guard.step, words)

    def _sums(self, x_D: Tensor) -> Tensor:
        here = len(self.targets)
        score = super().score(x_D) if here else (0.0, 0.0)
        return torch.tensor(score, dtype=torch.float64) * here


def mean_model(x_AD: Tensor, transport: Transport, step: int = 0) -> Tensor:
    """The average of all agents' models, ``[D]``, on every worker."""
    total_D = transport.total(x_AD.double(), "evaluation", step)
    return (total_D / transport.topology.agents).to(x_AD.dtype)


def squared_distances(x_AD: Tensor, mean_D: Tensor, transport: Transport) -> Tensor:
    """The square of each agent's distance from the average, ``float64[N]``: the root of its mean
    is the consensus distance."""
    return transport.gather((x_AD - mean_D).double().square().sum(1))


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


def peak_memory_mb() -> float:
    """The largest resident size of this process so far, in MB.

    0 on systems where it is not available (Windows).
    """
    try:
        import resource
    except ImportError:
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
