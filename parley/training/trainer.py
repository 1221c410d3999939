"""What trains: one worker's share of an experiment, as a generator of events.

Axes: A agents hosted here, D flat parameters, S flat statistics, E both.

Everything outside (progress, records on disk, checkpoints) consumes what `Trainer.events` yields.
The trainer knows its agents, and a transport to the others. How processes find each other is no
concern of its.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from parley.algorithms.seam import Seam
from parley.compute.batching import gathered
from parley.compute.engine import Engine
from parley.compute.task import NONE, Task
from parley.compute.weighted import WeightedEngine
from parley.data import Batches
from parley.data_sizes import BALANCED, SIZE, Sizes
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.neighbourhood import Meter, Neighbourhood
from parley.process import kept_memory, torch_threads
from parley.stopping import Callbacks, parse_stop, says_stop
from parley.training import run_setup, statistics
from parley.training.evaluation import Evaluation, Now
from parley.training.events import EpochDone, Event, Started, StepDone
from parley.training.metrics import Losses
from parley.training.pace import Pace, sizes_of
from parley.training.problem import Problem, device_of, task_of
from parley.training.record import Record
from parley.training.reports import diverged
from parley.wire.transport import Kind, Transport


class Trainer:
    """One worker's share of an experiment: the state of its agents, and its progress."""

    state: Any
    """The algorithm's state of the hosted agents."""
    b_AS: Tensor
    """The running statistics of the hosted agents' models; there may be none."""

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
        hosted = transport.placement.hosted
        self.experiment = experiment
        self.problem = problem
        self.callbacks = callbacks or Callbacks()
        self.task = task or task_of(experiment, problem, hosted)
        self.batches = Batches(
            problem.samples,
            hosted,
            experiment.batch,
            problem.transform,
            experiment.seed,
            device=device_of(experiment.device),
            dtype=self.task.dtype,
            balanced=experiment.sampling == BALANCED,
            gather=gathered,
        )
        self.transport = run_setup.equipped(transport, experiment, problem, self.task)
        statistics.check_batches(self.task, self.batches)
        engine = run_setup.choose_engine(experiment, self.task, self.batches, self.transport)
        self.engine_name = engine.name
        """What computes the gradients, by its name in `--engine`."""
        if sizes is None:
            counts = self.transport.gather(torch.tensor(self.batches.lengths)).tolist()
            sizes = sizes_of(experiment, counts)
        self.engine, factor_A1 = self._weighted(engine, sizes)
        self.meter = Meter()
        self.hood = Neighbourhood(self.transport, self.engine, self.batches, self.meter)
        self.steps_per_epoch = steps = sizes.steps_per_epoch
        self.pace = Pace(experiment, steps, problem.lr_decay, problem.gamma_decay)
        measured = (self.batches, self.hood, self.pace, factor_A1, test_samples)
        self.evaluation = Evaluation(experiment, problem, engine, *measured)
        self.stop = parse_stop(
            experiment.stop_when, experiment.measures, bool(experiment.links), experiment.max_steps
        )
        tested = max(test_samples or 0, self.evaluation.test.count)
        found = (self.stop, self.transport.topology, self.task, steps, tested)
        self.frequency = run_setup.frequency(experiment, *found)
        x_AD, self.b_AS = self._start()
        edges = self.transport.edges
        rows = {"A": len(x_AD), "I": len(edges.incoming), "O": len(edges.outgoing)}
        self._seam = Seam(experiment.algorithm, rows, self.task.size)
        self.state = self._seam.state(experiment.algorithm.init(x_AD, self.hood))
        self.epoch = self.step = 0
        """Completed so far."""
        self.losses: list[Losses] = []
        """Of the hosted agents in each step of the epoch."""
        self.records: list[Record] = []
        """All so far, of this process or before."""
        self.seconds = 0.0
        """Time spent in training steps so far, without evaluation."""
        self.stopped = ""
        """Why the run ends before its last epoch, if it does."""
        self._loss: float | None = None
        self._earlier_samples: float = 0

    def events(self) -> Iterator[Event]:
        """Trains to the end; yields after every step and every epoch."""
        # The kernels distribute whole gradients; torch's own threads would only get in the way.
        alone = torch_threads(1) if self.engine_name == "fused" else nullcontext()
        with kept_memory(), alone:
            yield from self._events()

    def _events(self) -> Iterator[Event]:
        yield Started(self.task.size, self.problem.note)
        if self.records and self.records[-1]["epoch"] == self.epoch:
            self.stopped = self.stop.reason(self.records)
        while not self.is_over:
            while self.step < self.pace.end_of(self.epoch + 1):
                yield self._take_step()
            yield self._end_epoch()
            self.losses.clear()

    def _take_step(self) -> StepDone:
        started = time.perf_counter()
        algorithm, lr = self.pace.algorithm(self.step), self.pace.lr(self.step)
        hood = self.hood.at(self.step, algorithm.rounds_before(self.step))
        batch = self.batches.at(self.step)
        # A copy: a step may change models in their place.
        before_AD = self.state.x_AD.clone() if self.task.layout.size else None
        stepped = self._seam.step(algorithm.step(self.state, hood, batch, lr))
        self.state, loss_A, active_A = stepped
        if before_AD is not None:
            # By now the engine may know what the models have seen of the batch.
            self.b_AS = self.engine.moved(before_AD, self.b_AS, batch, range(len(before_AD)))
            if self.evaluation.mixes and algorithm.averages(hood.seed, self.step):
                self.b_AS = statistics.mixed(self.b_AS, hood, algorithm.gossip_rate)
        self._count(loss_A, active_A)
        self.step += 1
        seconds = time.perf_counter() - started
        self.seconds += seconds
        if self.transport.clock is not None:
            self.transport.clock.compute(seconds / len(hood.agents))
        return StepDone(self.step, self.steps, self._loss)

    def _end_epoch(self) -> EpochDone:
        self.epoch += 1
        self._check_models()
        self.stopped = asked(self.callbacks, "on_epoch", self.epoch, self.transport)
        own = self.epoch % self.frequency.own == 0 or self.is_over
        due = self.epoch % self.frequency.records == 0 or own
        record = self.record(own) if due else None
        if record is not None:
            self.records.append(record)
            said = asked(self.callbacks, "on_record", record, self.transport)
            self.stopped = self.stopped or said or self.stop.reason(self.records)
        self.stopped = self.stopped if self.epoch < self.experiment.epochs else ""
        if self.is_over and not own:  # because of this record
            self.records[-1] = record = self.record()
        return EpochDone(self.epoch, record, self.is_over)

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

    @property
    def now(self) -> Now:
        """Where training is."""
        how = (self.state.x_AD, self.b_AS, self.losses, self.seconds, self.samples)
        return Now(self.epoch, self.step, self.pace.lr(max(0, self.step - 1)), *how)

    @property
    def samples(self) -> float:
        """Gradients of single samples so far."""
        return self._earlier_samples + self.meter.samples

    def record(self, own: bool = True) -> Record:
        """All metrics at this point; without the agents' own models, only of the averaged one."""
        return self.evaluation.record(self.now, own)

    def about(self) -> dict[str, Any]:
        """The part of a checkpoint besides the state."""
        about: dict[str, Any] = {
            "epoch": self.epoch,
            "seconds": self.seconds,
            "samples": self.samples,
        }
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
        self.transport.count_from(sent)

    def continue_after(self, records: Sequence[Record]) -> None:
        """Takes over the records of what was trained before."""
        self.records = list(records)

    def rebuild(self, x_AD: Tensor, losses: Sequence[Losses]) -> None:
        """A new state from models that differ, after workers were lost or came back."""
        state = self.experiment.algorithm.init(x_AD, self.hood, apart=True)
        self.state = self._seam.state(state)
        self.losses = list(losses)

    def _weighted(self, engine: Engine, sizes: Sizes) -> tuple[Engine, Tensor | None]:
        """The engine that trains, and the factors on the hosted agents' losses, if any."""
        if self.experiment.objective != SIZE:
            return engine, None
        factors = sizes.factors(self.batches.lengths)
        run_setup.expect_weights(self.transport, factors)
        by_agent = dict(zip(self.transport.placement.hosted, factors, strict=True))
        factor_A1 = torch.tensor(factors, dtype=torch.float64)[:, None]
        return WeightedEngine(engine, by_agent), factor_A1

    def _start(self) -> tuple[Tensor, Tensor]:
        """The hosted agents' models and statistics. Every agent starts from the same, whatever its
        own process initialised: those of the named agent, or of the first one if it is absent."""
        placement, first = self.transport.placement, self.experiment.start_agent
        if numbers := placement.numbers:
            first = numbers.index(first) if first in numbers else 0
        x_D = self.transport.broadcast(self.task.start(), first)
        b_S = self.task.layout.start(x_D)
        b_S = self.transport.broadcast(b_S, first) if len(b_S) else b_S
        hosted = len(placement.agents)
        return x_D.expand(hosted, -1).clone(), b_S.expand(hosted, -1).clone()

    def _count(self, loss_A: Tensor, active_A: Tensor | None) -> None:
        """Notes the losses of a step, which must be finite."""
        if not bool(torch.isfinite(loss_A).all()):
            row = int(torch.nonzero(~torch.isfinite(loss_A))[0])
            what = f"loss: {float(loss_A[row])} at agent {self.hood.agents[row]}"
            raise diverged(what, self.step + 1, self.pace, self.transport)
        active_A = torch.ones_like(loss_A, dtype=torch.bool) if active_A is None else active_A
        self.losses.append(Losses(loss_A.detach().double(), active_A))
        self._loss = self.losses[-1].mean(self._loss)

    def _check_models(self) -> None:
        # The loss after the last step is not known yet, and a checkpoint must be good.
        bad = torch.nonzero(~torch.isfinite(self.state.x_AD).all(1)).flatten()
        if len(bad):
            what = f"model: not finite at agent {self.hood.agents[int(bad[0])]}"
            raise diverged(what, self.step, self.pace, self.transport)


def asked(callbacks: Callbacks, name: str, what: object, transport: Transport) -> str:
    """Asks a callback whether to stop; the first worker's answer counts for all."""
    if (callback := getattr(callbacks, name)) is None:
        return ""
    answer = torch.tensor(float(says_stop(callback(what))), dtype=torch.float64)
    return f"{name} returned True" if float(transport.each(answer)[0]) == 1 else ""
