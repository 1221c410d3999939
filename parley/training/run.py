"""Running an experiment: one worker's share of it, as a generator of events.

Axes: A agents hosted here, N all agents, D flat parameters, S flat statistics, E both.

Everything outside (progress, records on disk, checkpoints) consumes what `Run.events` yields.
"""

import logging
import math
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from parley import data
from parley.algorithms import Algorithm
from parley.compute import choose as engines
from parley.compute.engine import Engine
from parley.compute.task import TRIED, Task
from parley.compute.threads import usable_cores
from parley.data import Batch, Batches
from parley.errors import BadValue, Diverged
from parley.experiment import Experiment
from parley.measures import PERSONAL, Measure
from parley.neighbourhood import Meter, Neighbourhood
from parley.stopping import Callbacks, parse_stop
from parley.training import metrics, statistics
from parley.training.events import EpochDone, Event, Started, StepDone
from parley.training.pace import Pace
from parley.training.problem import Problem, device_of, task_of
from parley.training.record import Record
from parley.wire import clock as links
from parley.wire.guard import Guard
from parley.wire.transport import Kind, Transport

log = logging.getLogger(__name__)

OWN_DATA = " on its own test samples"
"""Where a metric may be unknown because an agent has none."""


def _present(values_N: Tensor) -> Tensor:
    """Without what is not there."""
    return values_N[~values_N.isnan()] if bool(values_N.isnan().any()) else values_N


class Losses(NamedTuple):
    """The losses of the hosted agents in one step."""

    loss_A: Tensor
    active_A: Tensor
    """Which agents took the step."""

    def mean(self, otherwise: float | None) -> float | None:
        """The mean over the agents that took the step, if any did."""
        return float(self.loss_A[self.active_A].mean()) if self.active_A.any() else otherwise


class Run:
    """One worker's share of an experiment: the state of its agents, and its progress."""

    def __init__(
        self,
        experiment: Experiment,
        problem: Problem,
        transport: Transport,
        task: Task | None = None,
        steps_per_epoch: int | None = None,
        test_samples: int | None = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        """`steps_per_epoch` and `test_samples` count all agents, even those that are absent."""
        self.experiment = experiment
        self.problem = problem
        self.transport = transport
        self.algorithm = experiment.algorithm
        self.note = problem.note
        placement = transport.placement
        device = device_of(experiment.device)
        self.task = task or task_of(experiment, problem)
        self.batches = Batches(
            problem.samples,
            placement.hosted,
            experiment.batch,
            problem.transform,
            experiment.seed,
            device=device,
            dtype=self.task.dtype,
        )
        if experiment.links:
            if len(placement.agents) < placement.topology.agents:
                raise BadValue(
                    "links", experiment.links, "workers=1, with all agents in one process"
                )
            clock = links.parse(experiment.links, problem.topology, experiment.seed)
            self.transport = transport = transport.timed(clock)
        if len(placement.agents) < placement.topology.agents:
            self.transport = transport = transport.guarded(
                Guard(self.task.dtype, experiment.suspicious)
            )
        self._try_model(problem)
        if self.task.layout.size:
            statistics.check_batches(self.task, self.batches)
        self.engine = self._choose_engine()
        self.meter = Meter()
        self.hood = Neighbourhood(transport, self.engine, self.batches, self.meter)
        tested = (problem.test, problem.transform, self.engine, transport, problem.functions)
        self.own_tests: metrics.OwnTestSets | None = None
        """The agents' own test samples, where they have them."""
        self.test: metrics.TestSet
        if problem.test_is_shared:
            self.test = metrics.TestSet(*tested)
        else:
            self.test = self.own_tests = metrics.OwnTestSets(*tested, problem.test_sizes)
        # Newcomers can bring more than there was at the start.
        self.test_samples_absent = max(0, (test_samples or 0) - self.test.count)
        """Test samples that are missing because their hosts are."""
        if steps_per_epoch is None:
            sizes = transport.gather(torch.tensor([len(s) for s in problem.samples]))
            steps_per_epoch = data.steps_per_epoch(sizes.tolist(), experiment.batch)
        self.steps_per_epoch = steps_per_epoch
        self.pace = Pace(experiment, steps_per_epoch, problem.lr_decay, problem.gamma_decay)
        self.callbacks = callbacks or Callbacks()
        self.stop = parse_stop(experiment.stop_when, experiment.measures)
        self.stopped = ""
        """Why the run ends before its last epoch, if it does."""
        self.records: list[Record] = []
        """All so far, of this process or before."""

        # Every agent starts from the same weights, whatever its own process initialised.
        x_D = transport.broadcast(self.task.start(), self._start_agent())
        x_AD = x_D.expand(len(placement.agents), -1).clone()
        b_S = self.task.layout.start(x_D)
        b_S = transport.broadcast(b_S, self._start_agent()) if len(b_S) else b_S
        self.b_AS = b_S.expand(len(placement.agents), -1).clone()
        """The running statistics of the hosted agents' models; there may be none."""
        self.state: Any = self.algorithm.init(x_AD, self.hood)
        self.epoch = 0
        """Epochs completed so far."""
        self.step = 0
        """Steps completed so far."""
        self.losses: list[Losses] = []
        """Losses of the hosted agents in each step of the epoch."""
        self._loss: float | None = None
        self.seconds = 0.0
        """Time spent in training steps so far, without evaluation."""
        self._earlier_samples = 0

    def _start_agent(self) -> int:
        """The named agent, or the first one present if it is absent."""
        numbers = self.transport.placement.numbers
        named = self.experiment.start_agent
        return numbers.index(named) if named in numbers else 0 if numbers else named

    def _choose_engine(self) -> Engine:
        """The requested engine; ``auto`` is the one that is fastest on worker 0, for all."""
        name, here = self.experiment.engine, self.transport.placement.here
        if name == "auto":
            batch = self.batches.at(0)
            shape = tuple(batch.inputs.shape[2:])
            names = engines.candidates(self.task, shape)
            found = engines.fastest(self.task, batch) if here == 0 else names[0]
            chosen = int(self.transport.each(torch.tensor(names.index(found)))[0])
            name = names[min(max(chosen, 0), len(names) - 1)]
            if how := engines.missed(self.task, shape):
                log.info("using engine %s, with %s", name, how)
        log.debug("engine %s, %d threads", name, self._threads())
        if name == "fused":
            # It distributes whole gradients; torch's own threads would only get in the way.
            torch.set_num_threads(1)
        return engines.build(name, self.task, self.experiment.seed, self._threads())

    def _threads(self) -> int:
        """The requested number, or this process's share of the cores; never more than agents."""
        placement = self.transport.placement
        together = 1 if self.transport.alone_on_host else placement.workers
        here = int(os.environ.get("LOCAL_WORLD_SIZE", together))
        threads = self.experiment.threads or max(1, usable_cores() // here)
        return min(threads, len(placement.agents))

    def _try_model(self, problem: Problem) -> None:
        """Checks on a few samples that model, loss and data fit together, before anything is
        written."""
        names = [f"agent {number}" for number in self.transport.placement.hosted]
        held = zip([*names, "test"], [*problem.samples, problem.test], strict=True)
        for name, samples in held:
            if samples.inputs.is_floating_point() and not bool(samples.inputs.isfinite().all()):
                raise BadValue("data", name, "finite inputs", "some are NaN or infinite")
        some = problem.test if len(problem.test) else problem.samples[0]
        few = some.take([i % len(some) for i in range(TRIED)])
        device = self.task.start().device
        inputs = problem.transform.normalise(few.inputs, self.task.dtype).to(device)
        classes = len(problem.class_names)
        self.task.fit(self.experiment.model, inputs, few.targets.to(device), classes)

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
        return bool(self.stopped) or self.epoch >= self.experiment.epochs

    def about(self) -> dict[str, Any]:
        """What a checkpoint needs besides the state."""
        samples = self._earlier_samples + self.meter.samples
        about = {"epoch": self.epoch, "seconds": self.seconds, "samples": samples}
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
        self.state = state
        self.b_AS = self.b_AS if b_AS is None else b_AS
        self.epoch, self.seconds = about["epoch"], about["seconds"]
        self.step = about.get("step", self.pace.end_of(self.epoch))
        self._earlier_samples = about["samples"]
        if self.transport.clock is not None and "clock" in about:
            self.transport.clock.restore(about["clock"])
        for kind, value in sent.items():
            self.transport.sent[kind].copy_(value)

    def events(self) -> Iterator[Event]:
        """Trains to the end; yields after every step and every epoch."""
        experiment = self.experiment
        yield Started(self.task.size, self.note)
        if self.records and self.records[-1]["epoch"] == self.epoch:
            self.stopped = self.stop.reason(self.records)
        while not self.is_over:
            while self.step < self.pace.end_of(self.epoch + 1):
                started = time.perf_counter()
                hood, batch = self.hood.at(self.step), self.batches.at(self.step)
                algorithm, lr = self.pace.algorithm(self.step), self.pace.lr(self.step)
                self._follow_statistics(batch)
                self.state, loss_A, active_A = algorithm.step(self.state, hood, batch, lr)
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
            due = self.epoch % experiment.evaluate_every == 0 or self.is_over
            record = self.record(self.pace.lr(self.step - 1)) if due else None
            if record is not None:
                self._check_record(record)
                self.records.append(record)
                asked = self._asked("on_record", record)
                self.stopped = self.stopped or asked or self.stop.reason(self.records)
            self.stopped = self.stopped if self.epoch < experiment.epochs else ""
            yield EpochDone(self.epoch, record)
            self.losses.clear()

    def _follow_statistics(self, batch: Batch) -> None:
        """Before a step: it may change the models in their place."""
        if self.task.layout.size:
            self.b_AS = statistics.moved(self.task, self.state.x_AD, self.b_AS, batch)

    def _mix_statistics(self, hood: Neighbourhood, algorithm: Algorithm) -> None:
        """After a step in which models were averaged."""
        mixed = self.experiment.buffers == "mixed" and self.task.layout.size
        if mixed and (self.step + 1) % algorithm.round_steps == 0:
            self.b_AS = statistics.mixed(self.b_AS, hood, algorithm.gossip_rate)

    def mean_model(self) -> Tensor:
        """The average of all agents' models; running statistics are those that it needs, [E]."""
        mean_D = metrics.mean_model(self.state.x_AD, self.transport, self.step - 1)
        if not self.task.layout.size:
            return mean_D
        found = (self.task, mean_D, self.b_AS, self.batches, self.transport, self.step - 1)
        return torch.cat([mean_D, statistics.estimated(*found)])

    def _gossiped(self) -> Tensor:
        """The models after further gossip, with their running statistics, [A, E]."""
        rounds, gamma = self.experiment.gossip_rounds, self.algorithm.gossip_rate
        x_AD = metrics.after_gossip(self.state.x_AD, self.hood, rounds, gamma)
        b_AS = self.b_AS
        if self.experiment.buffers == "mixed" and self.task.layout.size:
            b_AS = metrics.after_gossip(b_AS, self.hood, rounds, gamma)
        return torch.cat([x_AD, b_AS], 1)

    def _asked(self, name: str, what: object) -> str:
        """Asks a callback; what one worker hears, all do."""
        if (callback := getattr(self.callbacks, name)) is None:
            return ""
        answer = torch.tensor(float(callback(what) is True), dtype=torch.float64)
        return f"{name} said so" if float(self.transport.sum(answer)) else ""

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

    def _by_agent(self, values: list[float]) -> list[float | None]:
        """In the order of the experiment's agents, with None for absent ones."""
        numbers = self.transport.placement.numbers or range(len(values))
        known = [None if math.isnan(value) else value for value in values]
        present = dict(zip(numbers, known, strict=True))
        return [present.get(agent) for agent in range(self.experiment.agents)]

    def _measured(self, mean_M: list[float], own_NM: Tensor, gossiped_NM: Tensor) -> dict[str, Any]:
        """Every metric in all its forms. Row N, column M + 1: metric M of agent N's model."""
        found: dict[str, Any] = {}
        for place, measure in enumerate(self.experiment.measures, start=1):
            own_N = self._figures(measure, own_NM[:, place])
            gossiped_N = self._figures(measure, gossiped_NM[:, place], " after gossip")
            present_N = _present(own_N)
            known = len(present_N) > 0
            after_N = _present(gossiped_N)
            each = [float(f"{value:.6g}") for value in own_N.tolist()]
            if measure.share:
                each = [round(value, 6) for value in own_N.tolist()]
            found |= {
                measure.field("mean_model"): None if math.isnan(mean_M[place]) else mean_M[place],
                measure.field("own"): float(present_N.mean()) if known else None,
                measure.field("own_min"): float(present_N.min()) if known else None,
                measure.field("own_max"): float(present_N.max()) if known else None,
                measure.field("after_gossip"): float(after_N.mean()) if len(after_N) else None,
                measure.field("agents"): self._by_agent(each),
            }
        return found

    def _figures(self, measure: Measure, values_N: Tensor, where: str = "") -> Tensor:
        """What a metric is for each agent's model; NaN for what cannot be, and what is unknown."""
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
        found: dict[str, Any] = {"test_samples_agents": self._by_agent(size_N.tolist())}
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

    def record(self, lr: float) -> Record:
        """All metrics at this point, the same on every worker."""
        experiment, transport, x_AD = self.experiment, self.transport, self.state.x_AD
        mean_E = self.mean_model()
        mean_D = mean_E[: self.task.size]
        own_NM = self.test.everyone(self.models_AE)
        self._check_losses(own_NM[:, 0])
        gossiped_NM = self.test.everyone(self._gossiped())
        mean_M = self.test.score(mean_E)
        distance_N = self._reported("a distance", metrics.distances(x_AD, mean_D, transport))
        square_N = metrics.squared_distances(x_AD, mean_D, transport)
        square_N = _present(self._reported("a squared distance", square_N))
        # Some agents rest in some steps, and one that has just joined has taken none this epoch.
        trained_A2 = torch.zeros(len(x_AD), 2, dtype=torch.float64, device=x_AD.device)
        for loss_A, active_A in self.losses:
            trained_A2 += torch.stack([loss_A * active_A, active_A.double()], 1)
        trained_N2 = transport.gather(trained_A2)
        self._reported("a training loss", trained_N2[:, 0], least=-math.inf)
        trained = trained_N2[trained_N2.isfinite().all(1)].sum(0)
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
            "loss": mean_M[0],
            **self._measured(mean_M, own_NM, gossiped_NM),
            "consensus_distance": float(square_N.mean().sqrt()),
            "distance_agents": self._by_agent([float(f"{d:.6g}") for d in distance_N.tolist()]),
            "bytes_models": float(sent["models"]),
            "bytes_cross_gradients": float(sent["cross_gradients"]),
            **self._personal(mean_E),
        }
        record = cast(Record, found)
        if trained[1]:  # a round of local steps may be longer than an epoch, which then has none
            record["loss_train"] = float(trained[0] / trained[1])
        if suspicious := self._suspicious():
            record["suspicious_messages"] = suspicious
        if self.test_samples_absent:
            record["test_samples_absent"] = self.test_samples_absent
        if experiment.bias_norms != "off":
            batch = self.batches.at(self.step)
            norms = metrics.bias_norms(x_AD, batch, self.hood.aside(), experiment.bias_norms)
            record["epsilon_norm"], record["omega_norm"] = norms
        each_N = transport.gather(torch.full((len(x_AD),), self.seconds).double())
        seconds = float(_present(self._reported("seconds", each_N)).max())
        record["seconds"] = round(seconds, 3)
        record["gradients_per_second"] = round(samples / max(seconds, 1e-9), 1)
        if transport.clock is not None:
            record["seconds_network"] = round(transport.clock.seconds(), 3)
        record["peak_memory_mb"] = round(
            self._over_workers("megabytes of memory", metrics.peak_memory_mb()), 1
        )
        return record
