"""Hosts for tests: real processes with folders of their own, to be killed, paused and restarted."""

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from parley import user_code, version
from parley.cluster import launch
from parley.errors import ParleyError
from parley.experiment import Experiment
from parley.files import parse_json
from parley.training import metrics
from parley.training.events import Event, StepDone
from parley.training.problem import Problem, problem
from parley.watch import log
from parley.wire.spread import Spread
from tests.cluster.test_launch import as_ranks
from tests.processes import PATIENCE, process, until

HURRY = "hurry"


def paced(folder: Path, event: Event) -> None:
    """Takes its time after every step until there is no need to, more and more towards the end: so
    that a run lasts as long as what is done to it, however long that takes on a busy machine."""
    if isinstance(event, StepDone) and not (folder / HURRY).exists():
        time.sleep(0.02 if event.step < event.steps / 2 else 0.25)


def normed() -> nn.Module:
    """A network with BatchNorm for the digits; hosts name it as code."""
    hidden = nn.Linear(64, 32, bias=False)
    return nn.Sequential(nn.Flatten(), hidden, nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def loaded(odd: str, experiment: Experiment, agents: Sequence[int]) -> Problem:
    made = problem(experiment, agents)
    if odd == "own test":
        part = made.test.take(range(10 * agents[0], 10 * agents[-1] + 10))
        made = replace(made, test=part, test_is_shared=False)
    if odd == "huge":
        made.samples[-1].inputs[-1] = 3e38
    return made


ATTACKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "negates": lambda x_AD: -x_AD,
    "sends noise": lambda x_AD: torch.randn_like(x_AD) * x_AD.std(),
    "sends 1e30": lambda x_AD: torch.full_like(x_AD, 1e30),
    "sends inf": lambda x_AD: torch.full_like(x_AD, torch.inf),
    "sends nan": lambda x_AD: torch.full_like(x_AD, torch.nan),
    "boasts": lambda x_AD: x_AD,
    "sends too much": lambda x_AD: x_AD,
}


def attack(how: str, transport: Any = Spread) -> None:
    """From now on this process is not honest."""
    if how == "boasts":
        metrics.TestSet._of = lambda self, models, part=None: [[0.01, 5.98]] * len(models)  # type: ignore[method-assign]
    start = transport._start

    def changed(
        self: Any, route: Any, wire: torch.Tensor, kind: str, codec: Any, step: int, *more: Any
    ) -> Any:
        if kind == "models" and step >= 3 and len(wire):
            wire = codec.encode(ATTACKS[how](codec.decode(wire, torch.float32)))
            wire = torch.cat([wire, wire], 1) if how == "sends too much" else wire
        return start(self, route, wire, kind, codec, step, *more)

    transport._start = changed


class Hosts:
    """One worker on each host, each with an output folder of its own."""

    def __init__(
        self,
        folder: Path,
        world: int,
        present: Sequence[int] | None = None,
        odd: Mapping[int, str] = {},
        **options: Any,
    ) -> None:
        """`odd` names a host's peculiarity: another "version", a "huge" number among its data,
        test data that it alone has ("own test"), ten samples for each of its agents; or what it
        does to the others from the fourth step on, one of `ATTACKS`."""
        self.folder = folder
        self.experiment = Experiment.of(**options)
        self.environments = as_ranks(world)
        self.odd = odd
        self.running: dict[int, Any] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(world) if present is None else present:
            self.start(rank)

    def start(self, rank: int, resume: bool = False) -> None:
        environment = {**self.environments[rank], "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        environment[user_code.ALLOWED] = __name__
        odd = self.odd.get(rank, "")
        self.running[rank] = process(
            host, self.experiment, environment, self.out(rank), resume, self.folder, odd
        )

    def out(self, rank: int) -> Path:
        return self.folder / f"host-{rank}"

    def err(self, rank: int) -> str:
        path = self.folder / f"host-{rank}.err"
        return path.read_text() if path.exists() else ""

    def send(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.running[rank].pid, number)

    def kill(self, rank: int) -> None:
        self.running[rank].kill()
        self.running[rank].join()

    def hurry(self) -> None:
        (self.folder / HURRY).touch()

    def generations(self, rank: int = 0) -> list[dict[str, Any]]:
        return lines(self.out(rank) / "generations.jsonl")

    def records(self, rank: int = 0) -> list[dict[str, Any]]:
        return lines(self.out(rank) / "records.jsonl")

    def until(self, ready: Callable[[], bool]) -> None:
        """Waits; fails with what the hosts said if one ends by itself meanwhile."""

        def over() -> bool:
            return any(worker.exitcode not in (None, -9) for worker in self.running.values())

        assert until(ready, over, pause=0.02) or ready(), self.words()

    def wait(self, rank: int) -> int:
        self.running[rank].join(PATIENCE)
        assert self.running[rank].exitcode is not None, f"still running: {self.words()}"
        code: int = self.running[rank].exitcode
        return code

    def words(self) -> str:
        return "\n".join(f"--- host {rank}\n{self.err(rank)}" for rank in self.running)

    def end(self) -> None:
        for worker in self.running.values():
            worker.kill()
            worker.join()


def lines(path: Path) -> list[dict[str, Any]]:
    found = path.read_text().split("\n")[:-1] if path.exists() else []
    return [parse_json(line) for line in found]


def host(
    experiment: Experiment,
    environment: Mapping[str, str],
    out: Path,
    resume: bool,
    folder: Path,
    odd: str,
) -> None:
    """One host's process: what ``parley train`` does, with a pace that the test sets."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    descriptor = os.open(out.with_suffix(".err"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 2)
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb"), line_buffering=True)
    log.show()
    if odd == "version":
        version.__version__ = "9.9"
    if odd in ATTACKS:
        attack(odd)
    try:
        launch.execute(experiment, partial(loaded, odd), out, resume, partial(paced, folder))
    except ParleyError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
