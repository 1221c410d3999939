"""Running an experiment: one worker's share of it, as a generator of events.

Axes: A agents hosted here, N all agents, D flat parameters, S flat statistics, E both.

Everything outside (progress, records on disk, checkpoints) consumes what `Run.events` yields.
"""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from parley.algorithms import Algorithm
from parley.compute.batching import gathered
from parley.compute.task import NONE, Task
from parley.compute.weighted import WeightedEngine
from parley.data import Batch, Batches
from parley.data_sizes import BALANCED, SIZE, Sizes
from parley.errors import BadValue, Diverged
from parley.experiment import Experiment
from parley.measures import PERSONAL, Measure, of_averaged_model
from parley.neighbourhood import Meter, Neighbourhood
from parley.stopping import Callbacks, parse_stop, says_stop
from parley.training import metrics, run_setup, statistics
from parley.training.events import EpochDone, Event, Started, StepDone
from parley.training.metrics import Losses
from parley.training.pace import Pace, sizes_of
from parley.training.problem import Problem, device_of, task_of
from parley.training.record import Record
from parley.wire.transport import Kind, Transport

OWN_DATA = " on its own test samples"
"""Where a metric may be unknown because an agent has none."""


def _present(values_N: Tensor) -> Tensor:
    """Without unknown values."""
    return values_N[~values_N.isnan()] if bool(values_N.isnan().any()) else values_N


class Run:
    """One worker's share of an experiment: the state of its agents, and its progress."""

    state: Any
    """The algorithm's state of the hosted agents."""
    b_AS: Tensor
    """The running statistics of the hosted agents' models; there may be none."""
    epoch: int
    """Epochs completed so far."""
    step: int
    """Steps completed so far."""
    losses: list[Losses]
    """Losses of the hosted agents in each step of the epoch."""
    seconds: float
    """Time spent in training steps so far, without evaluation."""
    records: list[Record]
    """All so far, of this process or before."""
    stopped: str
    """Why the run ends before its last epoch, if it does."""
    factor_A1: Tensor | None
    """How much the losses of the hosted agents count, where they do not count equally."""
    own_tests: metrics.OwnTestSets | None
    """The agents' own test samples, where they have them."""
    test_samples_absent: int
    """Test samples that are missing because their hosts are."""

    def __init__(
        self,
        experiment: Experiment,
        problem: Problem,
        transport: Transport,
        task: Task | None = None,
        sizes: Sizes | None = None,
        test_samples: int | None = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        """`sizes` and `test_samples` count all agents, even those that are absent."""
        self.experiment = experiment
        self.problem = problem
        self.algorithm = experiment.algorithm
        self.note = problem.note
        self.task = task or task_of(experiment, problem, transport.placement.hosted)
        self.batches = Batches(
            problem.samples,
            transport.placement.hosted,
            experiment.batch,
            problem.transform,
            experiment.seed,
            device=device_of(experiment.device),
            dtype=self.task.dtype,
            balanced=experiment.sampling == BALANCED,
            gather=gathered,
        )
        self.transport = run_setup.equipped(transport, experiment, problem, self.task)
        if self.task.layout.size:
            statistics.check_batches(self.task, self.batches)
        self.engine = run_setup.choose_engine(experiment, self.task, self.batches, self.transport)
        counts = self.batches.lengths
        if sizes is None:
            sizes = sizes_of(experiment, self.transport.gather(torch.tensor(counts)).tolist())
        self.factor_A1, self._tester = None, self.engine  # no weight applies to what is tested
        if experiment.objective == SIZE:
            factors = sizes.factors(counts)
            self.factor_A1 = torch.tensor(factors, dtype=torch.float64)[:, None]
            weights = dict(zip(transport.placement.hosted, factors, strict=True))
            self.engine = WeightedEngine(self.engine, weights)
            run_setup.expect_weights(self.transport, factors)
        self.meter = Meter()
        self.hood = Neighbourhood(self.transport, self.engine, self.batches, self.meter)
        self.test, self.own_tests = self._test_sets()
        # Newcomers can bring more than there was at the start.
        self.test_samples_absent = max(0, (test_samples or 0) - self.test.count)
        self.steps_per_epoch = steps = sizes.steps_per_epoch
        self.pace = Pace(experiment, steps, problem.lr_decay, problem.gamma_decay)
        self.callbacks = callbacks or Callbacks()
        self.stop = parse_stop(
            *(experiment.stop_when, experiment.measures, bool(experiment.links)),
            experiment.max_steps,
        )
        tested = max(test_samples or 0, self.test.count)
        found = (self.stop, self.transport.topology, self.task, steps, tested)
        self.frequency = run_setup.frequency(experiment, *found)
        x_AD, self.b_AS = self._start()
        self.state = self.algorithm.init(x_AD, self.hood)
        self.epoch = self.step = 0
        self.losses, self.records = [], []
        self.seconds, self.stopped = 0.0, ""
        self._loss: float | None = None
        self._earlier_samples = 0

    def _test_sets(self) -> tuple[metrics.TestSet, metrics.OwnTestSets | None]:
        """The test set, and the same again if every agent has its own."""
        problem = self.problem
        tested = (problem.test, problem.transform, self._tester, self.transport, problem.functions)
        if problem.test_is_shared:
            return metrics.TestSet(*tested), None
        own = metrics.OwnTestSets(*tested, problem.test_sizes)
        return own, own

    def _start(self) -> tuple[Tensor, Tensor]:
        """The hosted agents' models and statistics. Every agent starts from the same, whatever its
        own process initialised."""
        hosted, first = len(self.transport.placement.agents), self._start_agent()
        x_D = self.transport.broadcast(self.task.start(), first)
        b_S = self.task.layout.start(x_D)
        b_S = self.transport.broadcast(b_S, first) if len(b_S) else b_S
        return x_D.expand(hosted, -1).clone(), b_S.expand(hosted, -1).clone()

    def _start_agent(self) -> int:
        """The named agent, or the first one present if it is absent."""
        numbers = self.transport.placement.numbers
        named = self.experiment.start_agent
        return numbers.index(named) if named in numbers else 0 if numbers else named

    @property
    def engine_name(self) -> str:
        """What computes the gradients, by its name in `--engine`."""
        return self._tester.name

    @property
    def models_AE(self) -> Tensor:
        """The hosted agents' models, each with its running statistics behind its parameters."""
        return torch.cat([self.state.x_AD, self.b_AS], 1)

    @property
    def steps(self) -> int:
        """The number of steps in the whole run, unless something ends it early."""
        return self.pace.end_of(self.experiment.epochs)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to train."""
        limit = self.experiment.max_steps
        enough = limit is not None and self.step >= limit
        return bool(self.stopped) or enough or self.epoch >= self.experiment.epochs

    def about(self) -> dict[str, Any]:
        """The part of a checkpoint besides the state."""
        samples = self._earlier_samples + self.meter.samples
        about: dict[str, Any] = {"epoch": self.epoch, "seconds": self.seconds, "samples": samples}
        if self.task.frozen != NONE:  # a checkpoint does not have these
            about["frozen"] = self.task.frozen
        clock = self.transport.clock
        return about if clock is None else {**about, "clock": clock.state()}

    def restore(
        self,
        state: Any,
        about: dict[str, Any],
        sent: dict[Kind, Tensor],
        b_AS: Tensor | None = None,
    ) -> None:
        """Continues from a checkpoint."""
        if about.get("frozen", self.task.frozen) != self.task.frozen:
            because = "the frozen weights differ from those that the run began with"
            valid = "the same weights and the same init as when the run began"
            raise BadValue("model", self.experiment.model, valid, because)
        self.state = state
        self.b_AS = self.b_AS if b_AS is None else b_AS
        self.epoch, self.seconds = about["epoch"], about["seconds"]
        self.step = about.get("step", self.pace.end_of(self.epoch))
        self._earlier_samples = about["samples"]
        if self.transport.clock is not None and "clock" in about:
            self.transport.clock.restore(about["clock"])
        for kind, value in sent.items():
            self.transport.sent[kind].copy_(value)

    def continue_after(self, records: Sequence[Record]) -> None:
        """Takes over the records of what was trained before."""
        self.records = list(records)

    def rebuild(self, x_AD: Tensor, losses: Sequence[Losses]) -> None:
        """A new state from models that differ, after workers were lost or came back."""
        self.state = self.algorithm.init(x_AD, self.hood, apart=True)
        self.losses = list(losses)

    def events(self) -> Iterator[Event]:
        """Trains to the end; yields after every step and every epoch."""
        experiment = self.experiment
        yield Started(self.task.size, self.note)
        if self.records and self.records[-1]["epoch"] == self.epoch:
            self.stopped = self.stop.reason(self.records)
        while not self.is_over:
            while self.step < self.pace.end_of(self.epoch + 1):
                started = time.perf_counter()
                algorithm, lr = self.pace.algorithm(self.step), self.pace.lr(self.step)
                hood = self.hood.at(self.step, algorithm.rounds_before(self.step))
                batch = self.batches.at(self.step)
                before_AD = self._before_the_step()
                self.state, loss_A, active_A = algorithm.step(self.state, hood, batch, lr)
                self._follow_statistics(before_AD, batch)
                self._mix_statistics(hood, algorithm)
                losses = self._checked_losses(loss_A, active_A)
                self.losses.append(losses)
                self._loss = losses.mean(self._loss)
                self.step += 1
                seconds = time.perf_counter() - started
                self.seconds += seconds
                if self.transport.clock is not None:
                    self.transport.clock.compute(seconds / len(hood.agents))
                yield StepDone(self.step, self.steps, self._loss)
            self.epoch += 1
            self._check_models()
            self.stopped = self._asked("on_epoch", self.epoch)
            own = self.epoch % self.frequency.own == 0 or self.is_over
            due = self.epoch % self.frequency.records == 0 or own
            record = self.record(self.pace.lr(self.step - 1), own) if due else None
            if record is not None:
                self.records.append(record)
                asked = self._asked("on_record", record)
                self.stopped = self.stopped or asked or self.stop.reason(self.records)
            self.stopped = self.stopped if self.epoch < experiment.epochs else ""
            if self.is_over and not own:  # because of this record
                self.records[-1] = record = self.record(self.pace.lr(self.step - 1))
            yield EpochDone(self.epoch, record, self.is_over)
            self.losses.clear()

    def _before_the_step(self) -> Tensor | None:
        """The models whose running statistics the step will move, if there are any. A copy: a step
        may change models in their place."""
        return self.state.x_AD.clone() if self.task.layout.size else None

    def _follow_statistics(self, before_AD: Tensor | None, batch: Batch) -> None:
        """After a step: by then an engine may know what the models have seen of the batch."""
        if before_AD is not None:
            rows = range(len(before_AD))
            self.b_AS = self.engine.moved(before_AD, self.b_AS, batch, rows)

    def _mix_statistics(self, hood: Neighbourhood, algorithm: Algorithm) -> None:
        """After a step in which models were averaged."""
        mixed = self.experiment.buffers == "mixed" and self.task.layout.size
        if mixed and algorithm.averages(hood.seed, self.step):
            self.b_AS = statistics.mixed(self.b_AS, hood, algorithm.gossip_rate)

    def mean_model(self) -> Tensor:
        """The average of all agents' models; running statistics are those that it needs, [E]."""
        mean_D = metrics.mean_model(self.state.x_AD, self.transport, self.step - 1)
        if not self.task.layout.size:
            return mean_D
        found = (self.engine, mean_D, self.b_AS, self.batches, self.transport, self.step - 1)
        return torch.cat([mean_D, statistics.estimated(*found, self.factor_A1)])

    def _gossiped(self) -> Tensor:
        """The models after further gossip, with their running statistics, [A, E]."""
        rounds, gamma = self.experiment.gossip_rounds, self.algorithm.gossip_rate
        x_AD = metrics.after_gossip(self.state.x_AD, self.hood, rounds, gamma)
        b_AS = self.b_AS
        if self.experiment.buffers == "mixed" and self.task.layout.size:
            b_AS = metrics.after_gossip(b_AS, self.hood, rounds, gamma)
        return torch.cat([x_AD, b_AS], 1)

    def _asked(self, name: str, what: object) -> str:
        """Asks a callback; the first worker's answer counts for all."""
        if (callback := getattr(self.callbacks, name)) is None:
            return ""
        answer = torch.tensor(float(says_stop(callback(what))), dtype=torch.float64)
        return f"{name} returned True" if float(self.transport.each(answer)[0]) == 1 else ""

    def _checked_losses(self, loss_A: Tensor, active_A: Tensor | None) -> Losses:
        if not bool(torch.isfinite(loss_A).all()):
            row = int(torch.nonzero(~torch.isfinite(loss_A))[0])
            what = f"loss: {float(loss_A[row])} at agent {self.hood.agents[row]}"
            raise self._diverged(what, self.step + 1)
        active_A = torch.ones_like(loss_A, dtype=torch.bool) if active_A is None else active_A
        return Losses(loss_A.detach().double(), active_A)

    def _check_models(self) -> None:
        # The loss after the last step is not known yet, and a checkpoint must be good.
        bad = torch.nonzero(~torch.isfinite(self.state.x_AD).all(1)).flatten()
        if len(bad):
            what = f"model: not finite at agent {self.hood.agents[int(bad[0])]}"
            raise self._diverged(what, self.step)

    def _check_losses(self, loss_N: Tensor) -> None:
        for agent in torch.nonzero(~torch.isfinite(loss_N)).flatten()[:1]:
            number = self.transport.placement.number(int(agent))
            what = f"loss: {float(loss_N[agent])} at agent {number}"
            raise self._diverged(what, self.step)

    def _check_record(self, record: Record) -> None:
        for name, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                what = f"{name}: {value} over all agents"
                raise self._diverged(what, self.step)

    def _diverged(self, what: str, step: int) -> Diverged:
        remedy = f"training has diverged; try a smaller lr (now {self.experiment.lr:g})"
        if (guard := self.transport.guard) is not None and guard.first:
            remedy = f"training has diverged after {guard.first}"
        epoch = -(-step // self.steps_per_epoch)
        return Diverged(f"{what}, step {step} of {self.steps}: {remedy}", step, epoch)

    def _reported(
        self,
        what: str,
        values_N: Tensor,
        most: float = math.inf,
        least: float = 0.0,
        unknown: bool = False,
    ) -> Tensor:
        """What agents have reported; NaN for what cannot be, whose sender is named. It may be NaN
        itself if it may be `unknown`."""
        bad_N = ~((values_N >= least) & (values_N <= most) & values_N.isfinite())
        if unknown:
            bad_N &= ~values_N.isnan()
        placement, guard = self.transport.placement, self.transport.guard
        if guard is None or not bool(bad_N.any()):
            return values_N
        for agent in bad_N.nonzero().flatten().tolist():
            words = f"reported {what} of {float(values_N[agent]):.6g}"
            worker = placement.worker_of[agent]
            guard.report(placement.number(agent), worker, self.step - 1, words)
        return values_N.double().masked_fill(bad_N, math.nan)

    def _mean_norm(self, norm_N: Tensor) -> float:
        return float(_present(self._reported("the norm of a bias", norm_N)).mean())

    def _by_agent(self, values: list[float]) -> list[float | None]:
        """In the order of the experiment's agents, with None for absent ones."""
        numbers = self.transport.placement.numbers or range(len(values))
        known = [None if math.isnan(value) else value for value in values]
        present = dict(zip(numbers, known, strict=True))
        return [present.get(agent) for agent in range(self.experiment.agents)]

    def _measured(self, own_NM: Tensor, gossiped_NM: Tensor, mean_M: list[float]) -> dict[str, Any]:
        """Every metric in all its forms. Row N, column M + 1: metric M of agent N's model."""
        experiment = self.experiment
        found = of_averaged_model(experiment.measures, mean_M[1:], experiment.agents)
        for place, measure in enumerate(experiment.measures, start=1):
            own_N = self._figures(measure, own_NM[:, place])
            gossiped_N = self._figures(measure, gossiped_NM[:, place], " after gossip")
            present_N = _present(own_N)
            known = len(present_N) > 0
            after_N = _present(gossiped_N)
            each = [float(f"{value:.6g}") for value in own_N.tolist()]
            if measure.share:
                each = [round(value, 6) for value in own_N.tolist()]
            found |= {
                measure.field("own"): float(present_N.mean()) if known else None,
                measure.field("own_min"): float(present_N.min()) if known else None,
                measure.field("own_max"): float(present_N.max()) if known else None,
                measure.field("after_gossip"): float(after_N.mean()) if len(after_N) else None,
                measure.field("agents"): self._by_agent(each),
            }
        return found

    def _figures(self, measure: Measure, values_N: Tensor, where: str = "") -> Tensor:
        """A metric of each agent's model; NaN if it is impossible or unknown."""
        a = "an" if measure.name[0] in "aeiou" else "a"
        least = -math.inf if measure.least is None else measure.least
        unknown = not measure.certain or where == OWN_DATA
        words = f"{a} {measure.title}{where}"
        return self._reported(words, values_N, measure.most, least, unknown)

    def _personal(self, mean_E: Tensor) -> dict[str, Any]:
        """How each agent's own model and the averaged one do on that agent's own test samples."""
        if self.own_tests is None:
            return {}
        scores_N2M = self.own_tests.personal(self.models_AE, mean_E)
        if bool(scores_N2M.isnan().all()):
            return {}
        sizes = torch.tensor(self.own_tests.sizes, dtype=torch.float64)
        size_N = self._reported("test samples", self.transport.gather(sizes))
        counts = [None if n is None else int(n) for n in self._by_agent(size_N.tolist())]
        found: dict[str, Any] = {"test_samples_agents": counts}
        for place, measure in enumerate(self.experiment.measures, start=1):
            for column, form in enumerate(PERSONAL):
                values_N = self._figures(measure, scores_N2M[:, column, place], OWN_DATA)
                values = [float(f"{value:.6g}") for value in values_N.tolist()]
                found[measure.field(form)] = self._by_agent(values)
        return found

    def _suspicious(self) -> int:
        """Suspicious messages so far, at all workers."""
        guard = self.transport.guard
        return int(self._over_workers("suspicious messages", guard.counts.total())) if guard else 0

    def _over_workers(self, what: str, value: float) -> float:
        """The sum over workers of what each reports; what cannot be counts for nothing."""
        said = self.transport.each(torch.tensor(value, dtype=torch.float64))
        of_agent_N = torch.stack(said)[list(self.transport.placement.worker_of)]
        self._reported(what, of_agent_N)
        return sum(float(v) for v in said if 0 <= float(v) < math.inf)

    def record(self, lr: float, own: bool = True) -> Record:
        """All metrics at this point, the same on every worker; without the agents' own models, only
        the averaged one is evaluated."""
        experiment, transport, x_AD = self.experiment, self.transport, self.state.x_AD
        mean_E = self.mean_model()
        mean_D = mean_E[: self.task.size]
        if own:
            scores = self.test.everything(self.models_AE, self._gossiped(), mean_E)
            self._check_losses(scores.own_NM[:, 0])
            loss, measured = scores.mean_M[0], self._measured(*scores)
        else:
            loss, *mean_M = self.test.score(mean_E)
            measured = of_averaged_model(experiment.measures, mean_M, experiment.agents)
        distance_N = self._reported("a distance", metrics.distances(x_AD, mean_D, transport))
        square_N = metrics.squared_distances(x_AD, mean_D, transport)
        square_N = _present(self._reported("a squared distance", square_N))
        trained = self._trained()
        sent = {
            kind: _present(self._reported("bytes", transport.gather(value)).double()).mean()
            for kind, value in transport.sent.items()
        }
        samples = self._over_workers("samples", self.about()["samples"])
        found: dict[str, Any] = {
            "epoch": self.epoch,
            "step": self.step,
            "lr": lr,
            "test_samples": self.test.count,
            "loss": loss,
            **measured,
            "consensus_distance": float(square_N.mean().sqrt()),
            "distance_agents": self._by_agent([float(f"{d:.6g}") for d in distance_N.tolist()]),
            "bytes_models": float(sent["models"]),
            "bytes_cross_gradients": float(sent["cross_gradients"]),
            **(self._personal(mean_E) if own else {}),
        }
        record = cast(Record, found)
        if trained is not None:
            record["loss_train"] = trained
        if suspicious := self._suspicious():
            record["suspicious_messages"] = suspicious
        if self.test_samples_absent:
            record["test_samples_absent"] = self.test_samples_absent
        if experiment.bias_norms != "off":
            batch = self.batches.at(self.step)
            norms_N2 = metrics.bias_norms(x_AD, batch, self.hood.aside(), experiment.bias_norms)
            epsilon_N, omega_N = norms_N2.T.contiguous()
            record["epsilon_norm"] = self._mean_norm(epsilon_N)
            record["omega_norm"] = self._mean_norm(omega_N)
        self._add_costs(record, samples)
        self._check_record(record)
        return record

    def _trained(self) -> float | None:
        """The training loss of the epoch; a round of local steps may be longer than an epoch, which
        then has none."""
        x_AD = self.state.x_AD
        # Some agents rest in some steps, and one that has just joined has taken none this epoch.
        trained_A2 = torch.zeros(len(x_AD), 2, dtype=torch.float64, device=x_AD.device)
        for loss_A, active_A in self.losses:
            trained_A2 += torch.stack([loss_A * active_A, active_A.double()], 1)
        trained_N2 = self.transport.gather(trained_A2)
        self._reported("a training loss", trained_N2[:, 0], least=-math.inf)
        loss, steps = trained_N2[trained_N2.isfinite().all(1)].sum(0).tolist()
        return loss / steps if steps else None

    def _add_costs(self, record: Record, samples: float) -> None:
        """Time and memory."""
        transport = self.transport
        each_N = transport.gather(torch.full((len(self.state.x_AD),), self.seconds).double())
        seconds = float(_present(self._reported("seconds", each_N)).max())
        record["seconds"] = round(seconds, 3)
        record["gradients_per_second"] = round(samples / max(seconds, 1e-9), 1)
        if transport.clock is not None:
            record["seconds_network"] = round(transport.clock.seconds(), 3)
        record["peak_memory_mb"] = round(
            self._over_workers("megabytes of memory", metrics.peak_memory_mb()), 1
        )
