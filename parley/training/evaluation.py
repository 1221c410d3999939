"""What measures a run: records, made of the models, of what agents report, and of costs.

Nothing here changes what is trained. Axes: A agents hosted here, N all agents, D flat parameters,
S flat statistics, E both, M metrics.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from parley.compute.engine import Engine
from parley.data import Batches
from parley.experiment import Experiment
from parley.measures import PERSONAL, Measure, of_averaged_model
from parley.neighbourhood import Neighbourhood
from parley.training import metrics, statistics
from parley.training.metrics import Losses
from parley.training.pace import Pace
from parley.training.problem import Problem
from parley.training.record import Record
from parley.training.reports import Reports, diverged, present
from parley.wire.transport import Transport

OWN_DATA = " on its own test samples"
"""Where a metric may be unknown because an agent has none."""


class Now(NamedTuple):
    """Where training is, with the models of the agents hosted here."""

    epoch: int
    step: int
    """Steps completed so far."""
    lr: float
    x_AD: Tensor
    b_AS: Tensor
    """The running statistics of their models; there may be none."""
    losses: Sequence[Losses]
    """Those of the epoch."""
    seconds: float
    samples: float
    """Gradients of single samples so far."""

    @property
    def models_AE(self) -> Tensor:
        """The models, each with its running statistics behind its parameters."""
        return torch.cat([self.x_AD, self.b_AS], 1)


class Evaluation:
    """Measures models on held-out samples, and agents by what they report."""

    def __init__(
        self,
        experiment: Experiment,
        problem: Problem,
        engine: Engine,
        batches: Batches,
        hood: Neighbourhood,
        pace: Pace,
        factor_A1: Tensor | None = None,
        test_samples: int | None = None,
    ) -> None:
        """`factor_A1` is how much the losses of the hosted agents count, where they do not count
        equally; `test_samples` counts those of all agents, even absent ones."""
        self.experiment = experiment
        self.engine = engine
        self.batches = batches
        self.hood = hood
        self.transport: Transport = hood.transport
        self.pace = pace
        self.factor_A1 = factor_A1
        self.own_tests: metrics.OwnTestSets | None = None
        """The agents' own test samples, where they have them."""
        tested = (problem.test, problem.transform, engine, self.transport, problem.functions)
        if problem.test_is_shared:
            self.test = metrics.TestSet(*tested)
        else:
            self.test = self.own_tests = metrics.OwnTestSets(*tested, problem.test_sizes)
        # Newcomers can bring more than there was at the start.
        self.test_samples_absent = max(0, (test_samples or 0) - self.test.count)
        """Test samples that are missing because their hosts are."""
        self.mixes = experiment.buffers == "mixed" and bool(engine.task.layout.size)
        """Whether running statistics are averaged along with the models."""

    def mean_model(self, now: Now) -> Tensor:
        """The average of all agents' models; running statistics are those that it needs, [E]."""
        mean_D = metrics.mean_model(now.x_AD, self.transport, now.step - 1)
        if not self.engine.task.layout.size:
            return mean_D
        found = (self.engine, mean_D, now.b_AS, self.batches, self.transport, now.step - 1)
        return torch.cat([mean_D, statistics.estimated(*found, self.factor_A1)])

    def record(self, now: Now, own: bool = True) -> Record:
        """All metrics at this point, the same on every worker; without the agents' own models, only
        the averaged one is evaluated."""
        reports = Reports(self.transport, now.step - 1)
        mean_E = self.mean_model(now)
        if own:
            scores = self.test.everything(now.models_AE, self._after_gossip(now), mean_E)
            self._check_losses(scores.own_NM[:, 0], now.step)
            loss, measured = scores.mean_M[0], self._measured(reports, *scores)
        else:
            loss, *mean_M = self.test.score(mean_E)
            measured = of_averaged_model(self.experiment.measures, mean_M, self.experiment.agents)
        found: dict[str, Any] = {
            "epoch": now.epoch,
            "step": now.step,
            "lr": now.lr,
            "test_samples": self.test.count,
            "loss": loss,
            **measured,
            **self._distances(reports, now, mean_E[: self.engine.task.size]),
            **self._sent(reports),
            **(self._personal(reports, now, mean_E) if own else {}),
            **self._trained(reports, now),
            **self._suspicious(reports),
            **self._bias_norms(reports, now),
            **self._costs(reports, now),
        }
        for name, value in found.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise self._diverged(f"{name}: {value} over all agents", now.step)
        return cast(Record, found)

    def _after_gossip(self, now: Now) -> Tensor:
        """The models after further gossip, with their running statistics, [A, E]."""
        how = (self.experiment.gossip_rounds, self.experiment.algorithm.gossip_rate)
        x_AD = metrics.after_gossip(now.x_AD, self.hood, *how)
        b_AS = metrics.after_gossip(now.b_AS, self.hood, *how) if self.mixes else now.b_AS
        return torch.cat([x_AD, b_AS], 1)

    def _check_losses(self, loss_N: Tensor, step: int) -> None:
        for agent in torch.nonzero(~torch.isfinite(loss_N)).flatten()[:1]:
            number = self.transport.placement.number(int(agent))
            raise self._diverged(f"loss: {float(loss_N[agent])} at agent {number}", step)

    def _diverged(self, what: str, step: int) -> Exception:
        return diverged(what, step, self.pace, self.transport)

    def _by_agent(self, values: list[float]) -> list[float | None]:
        """In the order of the experiment's agents, with None for absent ones."""
        numbers = self.transport.placement.numbers or range(len(values))
        known = [None if math.isnan(value) else value for value in values]
        there = dict(zip(numbers, known, strict=True))
        return [there.get(agent) for agent in range(self.experiment.agents)]

    def _measured(
        self, reports: Reports, own_NM: Tensor, gossiped_NM: Tensor, mean_M: list[float]
    ) -> dict[str, Any]:
        """Every metric in all its forms. Row N, column M + 1: metric M of agent N's model."""
        experiment = self.experiment
        found = of_averaged_model(experiment.measures, mean_M[1:], experiment.agents)
        for place, measure in enumerate(experiment.measures, start=1):
            own_N = _figures(reports, measure, own_NM[:, place])
            after_N = present(_figures(reports, measure, gossiped_NM[:, place], " after gossip"))
            own = present(own_N)
            known = len(own) > 0
            each = [float(f"{value:.6g}") for value in own_N.tolist()]
            if measure.share:
                each = [round(value, 6) for value in own_N.tolist()]
            found |= {
                measure.field("own"): float(own.mean()) if known else None,
                measure.field("own_min"): float(own.min()) if known else None,
                measure.field("own_max"): float(own.max()) if known else None,
                measure.field("after_gossip"): float(after_N.mean()) if len(after_N) else None,
                measure.field("agents"): self._by_agent(each),
            }
        return found

    def _distances(self, reports: Reports, now: Now, mean_D: Tensor) -> dict[str, Any]:
        given = (now.x_AD, mean_D, self.transport)
        distance_N = reports.checked("a distance", metrics.distances(*given))
        square_N = reports.checked("a squared distance", metrics.squared_distances(*given))
        each = [float(f"{distance:.6g}") for distance in distance_N.tolist()]
        return {
            "consensus_distance": float(present(square_N).mean().sqrt()),
            "distance_agents": self._by_agent(each),
        }

    def _sent(self, reports: Reports) -> dict[str, float]:
        kinds = self.transport.sent.items()
        sent = {kind: reports.gathered("bytes", value).double().mean() for kind, value in kinds}
        return {f"bytes_{kind}": float(sent[kind]) for kind in ("models", "cross_gradients")}

    def _personal(self, reports: Reports, now: Now, mean_E: Tensor) -> dict[str, Any]:
        """How each agent's own model and the averaged one do on that agent's own test samples."""
        if self.own_tests is None:
            return {}
        scores_N2M = self.own_tests.personal(now.models_AE, mean_E)
        if bool(scores_N2M.isnan().all()):
            return {}
        sizes = torch.tensor(self.own_tests.sizes, dtype=torch.float64)
        size_N = reports.checked("test samples", self.transport.gather(sizes))
        counts = [None if n is None else int(n) for n in self._by_agent(size_N.tolist())]
        found: dict[str, Any] = {"test_samples_agents": counts}
        for place, measure in enumerate(self.experiment.measures, start=1):
            for column, form in enumerate(PERSONAL):
                values_N = _figures(reports, measure, scores_N2M[:, column, place], OWN_DATA)
                values = [float(f"{value:.6g}") for value in values_N.tolist()]
                found[measure.field(form)] = self._by_agent(values)
        return found

    def _trained(self, reports: Reports, now: Now) -> dict[str, float]:
        """The training loss of the epoch; a round of local steps may be longer than an epoch, which
        then has none."""
        # Some agents rest in some steps, and one that has just joined has taken none this epoch.
        trained_A2 = torch.zeros(len(now.x_AD), 2, dtype=torch.float64, device=now.x_AD.device)
        for loss_A, active_A in now.losses:
            trained_A2 += torch.stack([loss_A * active_A, active_A.double()], 1)
        trained_N2 = self.transport.gather(trained_A2)
        reports.checked("a training loss", trained_N2[:, 0], least=-math.inf)
        loss, steps = trained_N2[trained_N2.isfinite().all(1)].sum(0).tolist()
        return {"loss_train": loss / steps} if steps else {}

    def _suspicious(self, reports: Reports) -> dict[str, int]:
        """Suspicious messages so far, at all workers, and test samples that are missing."""
        guard, found = self.transport.guard, dict[str, int]()
        if guard and (
            seen := int(reports.over_workers("suspicious messages", guard.counts.total()))
        ):
            found["suspicious_messages"] = seen
        if self.test_samples_absent:
            found["test_samples_absent"] = self.test_samples_absent
        return found

    def _bias_norms(self, reports: Reports, now: Now) -> dict[str, float]:
        form = self.experiment.bias_norms
        if form == "off":
            return {}
        batch = self.batches.at(now.step)
        norms_N2 = metrics.bias_norms(now.x_AD, batch, self.hood.aside(), form)
        names = zip(("epsilon_norm", "omega_norm"), norms_N2.T.contiguous(), strict=True)
        return {
            name: float(present(reports.checked("the norm of a bias", norm_N)).mean())
            for name, norm_N in names
        }

    def _costs(self, reports: Reports, now: Now) -> dict[str, float]:
        """Time and memory."""
        samples = reports.over_workers("samples", now.samples)
        seconds_A = torch.full((len(now.x_AD),), now.seconds).double()
        seconds = float(reports.gathered("seconds", seconds_A).max())
        found = {
            "seconds": round(seconds, 3),
            "gradients_per_second": round(samples / max(seconds, 1e-9), 1),
        }
        if self.transport.clock is not None:
            found["seconds_network"] = round(self.transport.clock.seconds(), 3)
        memory = reports.over_workers("megabytes of memory", metrics.peak_memory_mb())
        return {**found, "peak_memory_mb": round(memory, 1)}


def _figures(reports: Reports, measure: Measure, values_N: Tensor, where: str = "") -> Tensor:
    """A metric of each agent's model; NaN if it is impossible or unknown."""
    a = "an" if measure.name[0] in "aeiou" else "a"
    least = -math.inf if measure.least is None else measure.least
    unknown = not measure.certain or where == OWN_DATA
    return reports.checked(f"{a} {measure.title}{where}", values_N, measure.most, least, unknown)
