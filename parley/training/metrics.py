"""The metrics of a run. Nothing here changes what is trained.

Axes: A agents hosted here, N all agents, I incoming edges of those hosted here, O their outgoing
edges, D flat parameters, E parameters and running statistics, M metrics, K numbers that add up over
samples.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
"""Numbers that models may give for them; where they give more, fewer samples, or fewer models, are
evaluated at once."""
MOST_PARAMETERS = 1 << 26
"""Numbers of the models that are sent around to be evaluated at once."""
COMPARED = 64
"""Numbers by which two models are compared before all are."""
MOST_SAMPLES = 1 << 40
"""Test samples of one worker: more than there are."""
MOST_POOLED = 1 << 24
"""Test samples of one worker if all its outputs are needed in one place."""


class Losses(NamedTuple):
    """The losses of the hosted agents in one step."""

    loss_A: Tensor
    active_A: Tensor
    """Which agents took the step."""

    def mean(self, otherwise: float | None) -> float | None:
        """The mean over the agents that took the step, if any did."""
        return float(self.loss_A[self.active_A].mean()) if self.active_A.any() else otherwise


class Scores(NamedTuple):
    """Loss and metrics, ``float64[N, 1 + M]`` for every agent's model, on every worker."""

    own_NM: Tensor
    gossiped_NM: Tensor
    """After further gossip."""
    mean_M: list[float]
    """Of the averaged model."""


class TestSet:
    """Held-out samples, normalised once; every process has all of them."""

    __test__ = False  # not a test for pytest

    def __init__(
        self,
        samples: Samples,
        transform: Transform,
        engine: Engine,
        transport: Transport,
        functions: Mapping[str, Function] | None = None,
    ) -> None:
        self.engine = engine
        self.transport = transport
        task = engine.task
        device = task.start().device
        self.inputs = transform.normalise(samples.inputs, task.dtype).to(device)
        self.targets = samples.targets.to(device)
        self.count = len(samples)
        """The number of samples that every model is tested on."""
        self.scorers = scorers(task.goal, task.facts.scores, functions)
        self.pooled = any(scorer.pooled for scorer in self.scorers)
        """Whether some metric needs all predictions in one place."""
        self.chunk = max(1, min(CHUNK, MOST_OUTPUTS // max(1, task.answer_size)))
        self._together = max(1, MOST_OUTPUTS // (self.chunk * max(1, task.answer_size)))
        """Models that are evaluated at once, on the same samples."""

    def score(self, x_E: Tensor) -> list[float]:
        """Loss and metrics of a model that every process has."""
        return self._of([x_E])[0]

    def everyone(self, models_AE: Tensor) -> Tensor:
        """Loss and metrics of every agent's model, ``float64[N, 1 + M]``, on every worker."""
        return self.transport.gather(torch.tensor(self._of([*models_AE]), dtype=torch.float64))

    def everything(self, own_AE: Tensor, gossiped_AE: Tensor, mean_E: Tensor) -> Scores:
        """The scores of the agents' models, of those after gossip and of the averaged one, all in
        one pass over the samples."""
        *scores, mean_M = self._of([*own_AE, *gossiped_AE, mean_E])
        own_AM, gossiped_AM = torch.tensor(scores, dtype=torch.float64).split(len(own_AE))
        gather = self.transport.gather
        return Scores(gather(own_AM.contiguous()), gather(gossiped_AM.contiguous()), mean_M)

    def _of(self, models: Sequence[Tensor], part: slice = slice(None)) -> list[list[float]]:
        """Loss and metrics of some models on some of the samples that are here."""
        targets = self.targets[part]
        if not len(targets):
            return [[math.nan] * (1 + len(self.scorers)) for _ in models]
        found = []
        for tally in self._tallies(models, part):
            outputs = torch.cat(tally.kept) if tally.kept else torch.empty(0)
            numbers, count = tally.numbers(), len(targets)
            found.append(figures(self.scorers, numbers, count, outputs, targets.cpu()))
        return found

    def _tallies(self, models: Sequence[Tensor], part: slice = slice(None)) -> list[Tally]:
        """One for each model; a model that is there several times is evaluated once."""
        different, places = distinct(models)
        tallies = [Tally(self.scorers) for _ in different]
        both = (self.inputs[part].split(self.chunk), self.targets[part].split(self.chunk))
        for first in range(0, len(different), self._together):
            some = slice(first, first + self._together)
            for inputs, targets in zip(*both, strict=True):
                if not len(targets):
                    continue
                outputs_P = self.engine.predict_each(different[some], inputs)
                for tally, outputs in zip(tallies[some], outputs_P, strict=True):
                    loss = float(self.engine.task.per_sample(outputs, targets).sum())
                    tally.add(loss, outputs, targets)
        return [tallies[place] for place in places]

    def confusion(self, x_E: Tensor, classes: int) -> Tensor:
        """The confusion matrix: samples of each class (row) by predicted class (column).

        A model with more outputs than classes has one extra column for all other predictions.
        """
        columns, goal = self.columns(classes), self.engine.task.goal
        parts = [some for part in self._parts() for some in self.inputs[part].split(self.chunk)]
        given = [self.engine.predict(x_E, part) for part in parts if len(part)]
        answers = torch.cat([goal.answers(outputs) for outputs in given])
        cells = self.targets * columns + answers.clamp(max=columns - 1)
        return torch.bincount(cells, minlength=classes * columns).view(classes, columns)

    def _parts(self) -> list[slice]:
        """Samples that are never evaluated together with others: a model's answer to a sample may
        depend on what else it is asked, in its last bits."""
        return [slice(None)]

    def columns(self, classes: int) -> int:
        """The number of columns of the confusion matrix."""
        return classes + (self.engine.task.facts.scores > classes)


class OwnTestSets(TestSet):
    """Held-out samples that stay with their agents: every model goes to all of them in turn.

    The scores are those on all samples together, as if they were in one place. Most metrics add up,
    so that workers tell each other sums. For those that do not, such as AUROC, they tell each other
    the outputs and targets of their test samples, but never inputs.

    A worker whose numbers cannot be is reported, and its samples are left out: it decides about its
    own share of the samples, and about nobody's score alone.
    """

    def __init__(
        self,
        samples: Samples,
        transform: Transform,
        engine: Engine,
        transport: Transport,
        functions: Mapping[str, Function] | None = None,
        sizes: Sequence[int] = (),
    ) -> None:
        """`sizes` are the numbers of samples of each hosted agent, if every one has its own."""
        super().__init__(samples, transform, engine, transport, functions)
        self.own_each = bool(sizes)
        """Whether every hosted agent has its own samples."""
        self.sizes = tuple(sizes) or (0,) * len(transport.placement.agents)
        """How many of them each hosted agent has of its own."""
        placement = transport.placement
        self._hosted = [placement.worker_of.count(w) for w in range(placement.workers)]
        """How many agents each worker hosts."""
        most = MOST_POOLED if self.pooled else MOST_SAMPLES
        if len(samples) > most:
            names = ", ".join(measure.name for measure in engine.task.goal.measures)
            valid = f"metrics that add up, for more than {most:,} test samples"
            raise BadValue("metrics", names, valid)
        counts = [int(count) for count in transport.each(torch.tensor(len(samples)))]
        self._counts = counts
        """Of each worker."""
        for worker, count in enumerate(counts):
            if not 0 <= count <= most:
                self._report(worker, f"reported {count} test samples")
                counts[worker] = 0
        self._longest = max(counts)
        self.count = self._counted()
        if self.pooled:
            self._places = self._located()
            """Where the samples of each worker are among all, in the order of the agents."""
            self._all_targets = self._gathered_targets()
            self.count = self._counted()

    def _counted(self) -> int:
        if not any(self._counts):
            valid = "a test split for at least one of the agents that are present"
            raise BadValue("data", "own", valid, "there is none")
        return sum(self._counts)

    def _parts(self) -> list[slice]:
        """Those of each hosted agent, wherever it is hosted; all of them at once, which is faster,
        if they share them or if rounding depends on the placement anyway."""
        apart = self.own_each and self.engine.same_in_any_company
        return self._slices(
            self.sizes if apart else (len(self.targets), *[0] * len(self.sizes[1:]))
        )

    def _slices(self, sizes: Sequence[int]) -> list[slice]:
        ends = torch.tensor(sizes).cumsum(0).tolist()
        return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]

    def _of_each(self, models: Sequence[Tensor]) -> list[list[Tally]]:
        """What is needed of each model's outputs on the samples of each hosted agent."""
        by_part = [self._tallies(models, part) for part in self._parts()]
        return [list(of_model) for of_model in zip(*by_part, strict=True)]

    def score(self, x_E: Tensor) -> list[float]:
        """Loss and metrics on the samples of all agents."""
        return self._added(self._of_each([x_E]))[0]

    def everyone(self, models_AE: Tensor) -> Tensor:
        """Loss and metrics of every agent's model, ``float64[N, 1 + M]``, on every worker."""
        return torch.tensor(self._added(self._sent_around(models_AE)), dtype=torch.float64)

    def everything(self, own_AE: Tensor, gossiped_AE: Tensor, mean_E: Tensor) -> Scores:
        """The scores of the agents' models, of those after gossip and of the averaged one."""
        return Scores(self.everyone(own_AE), self.everyone(gossiped_AE), self.score(mean_E))

    def _sent_around(self, models_AE: Tensor) -> list[list[Tally]]:
        """Of every agent's model on the samples of each agent hosted here."""
        row, agents = self.transport.placement.row, self.transport.topology.agents
        few = max(1, MOST_PARAMETERS // models_AE.shape[1])
        tallies: list[list[Tally]] = []
        for first in range(0, agents, few):
            models = [
                self.transport.broadcast(models_AE[row.get(agent, 0)], agent)
                for agent in range(first, min(agents, first + few))
            ]
            tallies += self._of_each(models)
        return tallies

    def personal(self, models_AE: Tensor, mean_E: Tensor) -> Tensor:
        """Loss and metrics of every agent's model, and of the averaged one, on that agent's own
        samples, ``float64[N, 2, 1 + M]``; NaN for an agent that has none."""
        form = (len(models_AE), 2, 1 + len(self.scorers))
        found = torch.full(form, math.nan, dtype=torch.float64)
        for row, part in enumerate(self._slices(self.sizes) if self.own_each else ()):
            each = self._of([models_AE[row], mean_E], part)
            found[row] = torch.tensor(each, dtype=torch.float64)
        return self.transport.gather(found)

    def confusion(self, x_E: Tensor, classes: int) -> Tensor:
        """The confusion matrix over the samples of all agents."""
        cells = torch.zeros(classes, self.columns(classes), dtype=torch.int64)
        if len(self.targets):
            cells = super().confusion(x_E, classes).cpu()
        every = self.transport.each(cells)
        for worker, said in enumerate(every):
            if int(said.min()) < 0 or int(said.sum()) != self._counts[worker]:
                self._report(worker, "reported answers to other than its test samples")
                said.zero_()
        return torch.stack(every).sum(0)

    def _added(self, tallies_MA: Sequence[Sequence[Tally]]) -> list[list[float]]:
        """Loss and metrics of some models, given what is known of each on the samples of each agent
        hosted here. Sums are added in the order of the agents, whoever hosts them."""
        here, refused = self.transport.placement.here, set[int]()
        said_MAK = [self._numbers(tallies) for tallies in tallies_MA]
        every = self.transport.each(torch.stack(said_MAK))
        for worker, (numbers_MAK, hosted) in enumerate(zip(every, self._hosted, strict=True)):
            sums_MK = numbers_MAK[:, :hosted].sum(1)
            if worker != here and not self._possible(sums_MK, self._counts[worker]):
                self._report(worker, "reported losses or metrics that cannot be")
                refused.add(worker)
        found = []
        for model, tallies in enumerate(tallies_MA):
            outputs = self._gathered_outputs(tallies, refused) if self.pooled else None
            counted = [worker for worker in range(len(every)) if worker not in refused]
            rows = {worker: iter(every[worker][model]) for worker in counted}
            of_agents = [next(rows[w]) for w in self.transport.placement.worker_of if w in rows]
            numbers = torch.stack(of_agents).sum(0)
            count, targets = sum(self._counts[worker] for worker in counted), torch.empty(0)
            if outputs is not None:
                places = torch.cat([self._places[worker] for worker in counted]).sort().values
                outputs, targets = outputs[places], self._all_targets[places]
            found.append(figures(self.scorers, numbers, count, outputs, targets))
        return found

    def _numbers(self, tallies: Sequence[Tally]) -> Tensor:
        """A row for each agent hosted here, and zeros up to as many as any worker hosts."""
        rows_AK = torch.stack([tally.numbers() for tally in tallies])
        padding = max(self._hosted) - len(tallies)
        return torch.cat([rows_AK, rows_AK.new_zeros(padding, rows_AK.shape[1])])

    def _possible(self, numbers_NK: Tensor, count: int) -> bool:
        """Whether models can have these sums over this many samples."""
        if not bool(numbers_NK.isfinite().all()):
            return False
        answers = count * math.prod(self.targets.shape[1:])
        _, *sums = numbers_NK.split([1, *(scorer.width for scorer in self.scorers)], 1)
        each = zip(self.scorers, sums, strict=True)
        return all(scorer.possible(sums_NK, answers) for scorer, sums_NK in each)

    def _gathered_outputs(self, tallies: Sequence[Tally], refused: set[int]) -> Tensor:
        """A model's outputs for all agents' samples, in the order of the agents; adds workers whose
        outputs cannot be to those that are `refused`."""
        shape, dtype = self.engine.task.facts.answer_shape, self.engine.task.dtype
        kept = [outputs for tally in tallies for outputs in tally.kept]
        here = torch.cat(kept) if kept else torch.zeros(0, *shape, dtype=dtype)
        every = self._each(here)
        for worker, outputs in enumerate(every):
            own = worker == self.transport.placement.here
            if not (own or worker in refused or bool(outputs.isfinite().all())):
                self._report(worker, "reported outputs that are not finite")
                refused.add(worker)
        return self._placed(every)

    def _gathered_targets(self) -> Tensor:
        """The targets of all agents' samples, in the order of the agents."""
        every = self._each(self.targets.cpu())
        task = self.engine.task
        for worker, targets in enumerate(every):
            own = worker == self.transport.placement.here
            if not (own or task.goal.possible(targets, task.facts.answer_shape)):
                self._report(worker, "reported targets that cannot be")
                self._counts[worker] = 0
                every[worker] = targets[:0]
        everywhere = self._placed(every)
        for worker, count in enumerate(self._counts):
            self._places[worker] = self._places[worker][:count]
        return everywhere

    def _each(self, here: Tensor) -> list[Tensor]:
        """What every worker has for its samples."""
        padded = here.new_zeros(self._longest, *here.shape[1:])
        padded[: len(here)] = here
        every = zip(self.transport.each(padded), self._counts, strict=True)
        return [said[:count] for said, count in every]

    def _placed(self, every: Sequence[Tensor]) -> Tensor:
        """The same in the order of the agents; zeros for what is missing."""
        everywhere = every[0].new_zeros(self._samples, *every[0].shape[1:])
        for places, values in zip(self._places, every, strict=True):
            everywhere[places[: len(values)]] = values
        return everywhere

    def _located(self) -> list[Tensor]:
        placement, counts = self.transport.placement, self._counts
        together = (len(self.targets), *self.sizes[1:])
        sizes = self.sizes if self.own_each else together
        size_N = self.transport.gather(torch.tensor(sizes)).tolist()
        agents = [
            [agent for agent, of in enumerate(placement.worker_of) if of == worker]
            for worker in range(len(counts))
        ]
        for worker, (hosted, count) in enumerate(zip(agents, counts, strict=True)):
            said = [size_N[agent] for agent in hosted]
            if min(said) < 0 or sum(said) != count:
                if count:  # else it has been reported already
                    self._report(worker, f"reported {said} of {count} test samples")
                for agent in hosted:
                    size_N[agent] = count if agent == hosted[0] else 0
        start_N = torch.tensor([0, *size_N]).cumsum(0).tolist()
        self._samples = sum(size_N)
        return [
            torch.cat([torch.arange(start_N[agent], start_N[agent + 1]) for agent in hosted])
            for hosted in agents
        ]

    def _report(self, worker: int, words: str) -> None:
        """Names a worker by the first of its agents."""
        placement, guard = self.transport.placement, self.transport.guard
        if guard is not None:
            agent = placement.number(placement.worker_of.index(worker))
            guard.report(agent, worker, guard.step, words)


def distinct(models: Sequence[Tensor]) -> tuple[list[Tensor], list[int]]:
    """Each model once, and which of these every model is.

    With one agent, or where gossip changes nothing, much is the same.

    >>> x_E, y_E = torch.zeros(3), torch.ones(3)
    >>> distinct([x_E, y_E, x_E.clone()])
    ([tensor([0., 0., 0.]), tensor([1., 1., 1.])], [0, 1, 0])
    """
    different: list[Tensor] = []
    places = []
    alike: dict[tuple[float, ...], list[int]] = {}
    for x_E in models:
        few = alike.setdefault(tuple(x_E[:: len(x_E) // COMPARED + 1].tolist()), [])
        place = next((k for k in few if torch.equal(different[k], x_E)), len(different))
        if place == len(different):
            few.append(place)
            different.append(x_E)
        places.append(place)
    return different, places


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


def bias_norms(x_AD: Tensor, batch: Batch, hood: Neighbourhood, form: str) -> Tensor:
    """Norms of each agent's bias terms ε (model variance) and ω (data variance), ``[N, 2]``.

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
        norms.append(norm_A.double())
    return hood.transport.gather(torch.stack(norms, 1))


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
