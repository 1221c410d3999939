"""Several workers from the command line: the same numbers, clear ends, and nobody left behind."""

import dataclasses
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import parley
from parley.cluster import launch
from parley.cluster.run import Load
from parley.compute import choose as engines
from parley.compute import threads as crew
from parley.errors import BadValue, Diverged, ParleyError
from parley.experiment import Experiment
from parley.training.problem import Problem, problem
from tests.ports import free_ports
from tests.processes import PATIENCE, TOKEN, Command, nothing_left, recorded, records

EPOCHS = 12
OPTIONS: dict[str, Any] = {
    "algorithm": "compngc", "momentum": 0.9, "agents": 10, "epochs": EPOCHS, "gossip_rounds": 1,
    "partition": "iid", "engine": "loop",
}  # fmt: skip
"""With one engine for all, whose numbers do not depend on who shares a worker: which is fastest can
change on a busy machine, and these runs are compared to the last digit."""
RUN = ["train", *(f"--{k.replace('_', '-')}={v}" for k, v in OPTIONS.items()), "--json"]
LONG = [*RUN, "--epochs=300"]


def close(got: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Equal but for the order in which numbers were added up in float32."""
    assert len(got) == len(expected)
    for mine, other in zip(got, expected, strict=True):
        assert mine.keys() == other.keys()
        for key, value in other.items():
            tolerance = 0.02 if key.startswith("accuracy") else 1e-3
            assert mine[key] == pytest.approx(value, rel=tolerance, abs=tolerance), key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("launch")


def torchrun(*words: str, token: str, restarts: int = 0) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         f"--max-restarts={restarts}", "-m", "parley", *words],
        env={**os.environ, TOKEN: token, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def three(folder: Path) -> Command:
    """Started first and looked at later, as the processes of torchrun are."""
    return Command(folder, *RUN, "--workers=3", "--out", folder / "three")


@pytest.fixture(scope="module")
def launched(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    with torchrun(*RUN, "--out", str(folder / "launched"), token="launched") as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def diverging(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    words = [*RUN, "--lr=1e6", "--weight-decay=1000", "--out", str(folder / "diverging")]
    with torchrun(*words, token="diverging") as process:
        yield process
        process.kill()


def run_here(
    out: Path | None,
    resume: bool = False,
    load: Load = problem,
    **more: Any,
) -> launch.Outcome:
    """This process as worker 0, with real processes as the others."""
    outcome = launch.execute(Experiment.of(**OPTIONS | more), load, out, resume, lambda event: None)
    assert outcome is not None
    return outcome


@pytest.fixture(scope="module")
def alone(
    folder: Path, three: Command, launched: object, diverging: object
) -> list[dict[str, Any]]:
    """One worker."""
    run_here(folder / "alone")
    return records(folder / "alone")


@pytest.fixture(scope="module")
def two(folder: Path, alone: object) -> list[dict[str, Any]]:
    """Two workers."""
    run_here(folder / "two", workers=2)
    return records(folder / "two")


class TestTheSameNumbers:
    def test_two_workers(self, alone: list[dict[str, Any]], two: list[dict[str, Any]]) -> None:
        close(two, alone)

    def test_three_workers_from_the_command_line(
        self, folder: Path, three: Command, alone: list[dict[str, Any]]
    ) -> None:
        """10 agents: 4, 3 and 3."""
        assert three.wait() == 0, three.err
        assert "Traceback" not in three.err
        close(records(folder / "three"), alone)
        assert three.summary["bytes_models"] == alone[-1]["bytes_models"]
        assert three.nothing_left()
        written = sorted(p.name for p in (folder / "three" / "checkpoint").rglob("*.safetensors"))
        assert written == sorted(2 * [f"worker-{n}.safetensors" for n in range(3)])

    def test_torchrun(
        self, folder: Path, launched: "subprocess.Popen[str]", two: list[dict[str, Any]]
    ) -> None:
        """Exactly those of two workers of our own: the placement is the same."""
        out, err = launched.communicate(timeout=PATIENCE)
        assert launched.returncode == 0, err
        assert len(out.splitlines()) == 1
        told = [line.removeprefix("note: ") for line in err.splitlines() if "note: " in line]
        assert told[0].startswith("worker 0 of 2: waiting for the others at ")
        assert told[1].endswith("hosts agents 0, 1, 2, 3, 4, 5, 6, 7, 8, 9; loading data")
        assert told[2].startswith("training begins at step 1 of ") and len(told) == 3
        assert "Traceback" not in err
        assert records(folder / "launched") == two
        assert nothing_left("launched")


class TestEnds:
    def test_a_killed_worker(self, folder: Path, two: list[dict[str, Any]]) -> None:
        """The first stops at once and says so, and the run can be resumed from there."""
        out = folder / "killed"
        command = Command(folder, *RUN, "--workers=2", "--out", out)
        assert command.until(lambda: recorded(out) >= 1), command.err
        (worker,) = command.workers()
        os.kill(worker, signal.SIGKILL)
        assert command.wait() == 2
        assert command.error() == (
            "worker 1 (agents 5, 6, 7, 8, 9) was killed (SIGKILL); the same command with --resume "
            "continues from the last checkpoint"
        )
        assert command.nothing_left()
        run_here(out, resume=True, workers=2)
        assert records(out) == two

    def test_ctrl_c(self, folder: Path) -> None:
        """Sent to all processes, as a terminal does; only the first speaks. Then in another
        placement."""
        out = folder / "interrupted"
        command = Command(folder, *LONG, "--workers=2", "--out", out)
        assert command.until(lambda: recorded(out) >= 1), command.err
        command.interrupt_all()
        assert command.wait() == 130
        assert "Traceback" not in command.err
        assert "--resume" in command.err
        assert command.nothing_left()

        alone = folder / "long-alone"
        stop = StopAfter(len(records(out)) + 1)
        for path, resume in ((alone, False), (out, True)):
            with pytest.raises(KeyboardInterrupt):
                launch.execute(
                    Experiment.of(**OPTIONS | {"epochs": 300}), problem, path, resume, stop
                )
        shared = min(len(records(out)), len(records(alone)))
        close(records(out)[:shared], records(alone)[:shared])

    def test_the_first_is_killed(self, folder: Path, two: list[dict[str, Any]]) -> None:
        """It cannot say goodbye; the others end by themselves."""
        out = folder / "first-killed"
        command = Command(folder, *RUN, "--workers=2", "--out", out)
        assert command.until(lambda: recorded(out) >= 3), command.err
        command.send(signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL
        assert command.nothing_left()
        assert "Traceback" not in command.err
        run_here(out, resume=True, workers=2)
        assert records(out) == two

    def test_divergence_in_another_worker(self, folder: Path) -> None:
        out = folder / "poisoned"
        with pytest.raises(ParleyError) as caught:
            run_here(out, load=poisoned, workers=2, algorithm="dpsgd")
        assert isinstance(caught.value, Diverged), "the type crosses from one process to another"
        assert (caught.value.step, caught.value.epoch) == (1, 1)
        words = str(caught.value)
        assert words.startswith("loss: ")
        assert "at agent 7, step 1 of " in words
        assert "\n" not in words
        assert list(out.rglob("*.safetensors")) == []

    def test_divergence_keeps_the_last_good_checkpoint(self, folder: Path) -> None:
        out = folder / "late"
        with pytest.raises(ParleyError, match=r"training has diverged.*the checkpoint after epoch"):
            # Each step multiplies the models by 1 - lr · weight_decay.
            grows = {"lr": 0.1, "lr_decay": "step:1000,0.3,0.5", "weight_decay": 1.0}
            run_here(out, workers=2, algorithm="dpsgd", **grows)
        kept = list(out.rglob("*.safetensors"))
        assert {path.name for path in kept} == {"worker-0.safetensors", "worker-1.safetensors"}

    def test_divergence_under_torchrun(
        self, folder: Path, diverging: "subprocess.Popen[str]"
    ) -> None:
        """torchrun ends all processes at the first failure, but the user sees the reason first."""
        out, err = diverging.communicate(timeout=PATIENCE)
        assert diverging.returncode == 1, "torchrun's own; those of the processes are in its report"
        assert "exitcode  : 2" in err
        told = [line for line in err.splitlines() if line.startswith("error: ")]
        assert len(told) == 1, err
        assert "at agent " in told[0]
        assert "training has diverged" in told[0]
        assert 'File "' not in err.partition("error: ")[0]
        assert "parley/cli/main.py" not in err, "the other process has nothing to add"
        assert out == ""
        assert nothing_left("diverging")

    def test_a_mistake_in_the_code_of_a_worker(self) -> None:
        with pytest.raises(
            ParleyError, match=r"worker 1 \(.*, agents 5, 6, 7, 8, 9\): ZeroDivisionError"
        ):
            run_here(None, load=broken_elsewhere, workers=2)


class StopAfter:
    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, event: Any) -> None:
        if isinstance(event, parley.training.events.EpochDone) and event.epoch >= self.count:
            raise KeyboardInterrupt


def poisoned(experiment: Experiment, agents: Sequence[int]) -> Problem:
    """Agent 7, who lives in the second worker, has data beyond all measure."""
    made = problem(experiment, agents)
    samples = list(made.samples)
    if 7 in agents:
        own = samples[agents.index(7)]
        bad = type(own)(torch.full(own.inputs.shape, 3e38), own.targets)
        samples[agents.index(7)] = bad
    return dataclasses.replace(made, samples=samples)


def broken_elsewhere(experiment: Experiment, agents: Sequence[int]) -> Problem:
    if multiprocessing.parent_process() is not None:
        raise ZeroDivisionError("a mistake")
    return problem(experiment, agents)


class TestBadInput:
    """Each is one line on the first process, exit code 2, quickly, and nothing is written."""

    def refused(self, folder: Path, *words: str, environment: Mapping[str, str] = {}) -> str:
        out = folder / "refused"
        command = Command(folder, *RUN, *words, "--out", out, environment=environment)
        assert command.wait() == 2
        assert command.nothing_left()
        assert not out.exists()
        assert command.out == ""
        return command.error() if environment.get("RANK", "0") == "0" else command.err

    @pytest.mark.parametrize("launched", [False, True])
    def test_healing_is_for_peers(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, launched: bool
    ) -> None:
        if launched:
            for key, value in as_ranks(2)[0].items():
                monkeypatch.setenv(key, value)
        words = "on_failure: 'heal' is not valid .*only peers .*; valid: stop; or parley join"
        with pytest.raises(BadValue, match=words):
            heals = Experiment.of(agents=2, on_failure="heal")
            launch.execute(heals, problem, folder / "heals", False, print)
        assert not (folder / "heals").exists()

    def test_more_workers_than_agents(self, folder: Path) -> None:
        words = self.refused(folder, "--workers=11")
        assert words == "workers: 11 is not valid (every worker must host an agent); valid: 1 to 10"

    def test_workers_that_the_launcher_did_not_start(self, folder: Path) -> None:
        words = self.refused(folder, "--workers=3", environment=as_rank(0, 2))
        assert words == "workers: 3 is not valid (the launcher started 2 processes); valid: 2"
        assert self.refused(folder, "--workers=3", environment=as_rank(1, 2)) == ""

    def test_a_launcher_with_more_processes_than_agents(self, folder: Path) -> None:
        words = self.refused(folder, environment=as_rank(0, 11))
        assert words == "workers: 11 is not valid (every worker must host an agent); valid: 1 to 10"

    def test_a_launcher_that_says_too_little(self, folder: Path) -> None:
        words = self.refused(folder, environment={"RANK": "0", "WORLD_SIZE": "2"})
        assert words.startswith("workers: the launcher announced 2 processes")
        assert "MASTER_ADDR" in words

    def test_too_few_processes(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for key, value in as_rank(0, 2).items():
            monkeypatch.setenv(key, value)
        with pytest.raises(ParleyError, match="announced 2 processes, which did not all join"):
            run_here(tmp_path / "run", patience=1)
        assert not (tmp_path / "run").exists()

    def test_processes_with_different_experiments(self, folder: Path) -> None:
        """Found before the first message; the second worker follows quietly."""
        first, second = as_ranks(2)
        out = folder / "different"
        one = Command(folder, *RUN, "--out", out, environment=first)
        other = Command(folder, *RUN, "--seed=5", "--out", out, environment=second)
        assert (one.wait(), other.wait()) == (2, 2)
        here = socket.gethostname()
        assert one.error() == (
            f"hosts do not agree: seed is 5 at worker 1 ({here}, agents 5, 6, 7, 8, 9) "
            f"but 0 at worker 0 ({here}, agents 0, 1, 2, 3, 4)"
        )
        assert other.err == ""
        assert not out.exists()

    def test_another_experiment_in_the_folder(self, folder: Path, two: object) -> None:
        before = {p: p.read_bytes() for p in (folder / "two").rglob("*") if p.is_file()}
        with pytest.raises(
            ParleyError, match=r"holds a different experiment \(they differ in lr\)"
        ):
            run_here(folder / "two", workers=2, lr=0.2, resume=True)
        assert {p: p.read_bytes() for p in (folder / "two").rglob("*") if p.is_file()} == before

    def test_a_model_that_cannot_be_sent(self) -> None:
        data = [(torch.randn(8, 3), torch.randint(2, (8,))) for _ in range(2)]
        with pytest.raises(BadValue, match=r"workers: 2 .*cannot be sent to other processes"):
            parley.train(lambda: nn.Linear(3, 2), data, workers=2, epochs=1, progress=False)


def as_rank(rank: int, world: int) -> dict[str, str]:
    return as_ranks(world)[rank]


def as_ranks(world: int) -> list[dict[str, str]]:
    """The environment that a launcher gives each of its processes."""
    [port] = free_ports(1)
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{"RANK": str(rank), **common} for rank in range(world)]


@pytest.mark.parametrize(
    ("options", "there_are_kernels", "workers"),
    [
        ({"model": "mlp"}, False, 1),
        ({"model": "cnn5"}, True, 1),
        ({"model": "cnn5"}, False, 3),
        ({"model": "resnet20"}, False, 3),
        ({"model": "resnet18"}, True, 1),
        ({"model": "bert-mini", "data": "ag_news"}, True, 3),
        ({"model": "bert-mini", "data": "ag_news", "agents": 2}, True, 2),
    ],
)
def test_workers_by_default(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: dict[str, Any],
    there_are_kernels: bool,
    workers: int,
) -> None:
    monkeypatch.setattr(launch, "usable_cores", lambda: 3)
    monkeypatch.setattr(launch.kernels, "available", lambda: there_are_kernels)
    assert launch.default_workers(parley.Experiment.of(**options), tmp_path) == workers


def test_threads_are_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.training.run_setup.usable_cores", lambda: 6)
    seen = []
    build = engines.build

    def built(name: str, task: Any, seed: int = 0, threads: int = 0) -> Any:
        if threads:  # a trial of its speed has none
            seen.append(threads)
        return build(name, task, seed, threads or 1)

    monkeypatch.setattr("parley.training.run_setup.engines.build", built)
    options = {"epochs": 1, "progress": False}
    parley.train(**options, agents=8)
    parley.train(**options, agents=4)
    parley.train(**options, agents=8, threads=2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    parley.train(**options, agents=8)
    assert seen == [6, 4, 2, 1]


def test_a_container_s_share_of_time_counts_as_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(crew, "QUOTA", quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert crew.usable_cores() == 8
    for said, cores in (("max 100000", 8), ("150000 100000", 2), ("9900000 100000", 8), ("1", 8)):
        quota.write_text(said)
        assert crew.usable_cores() == cores


RANKS = """
import json, os, sys
from pathlib import Path
import parley

result = parley.train(agents=3, epochs=1, fraction=0.2, progress=False, out=sys.argv[1])
said = [result.records[-1]["accuracy_agents"], result.x_ND.tolist(), result.summary["step"]]
said.append([p.tolist() for p in result.model().parameters()])
Path(sys.argv[1] + "-" + os.environ["RANK"]).write_text(json.dumps(said))
"""


def test_from_python_every_process_of_torchrun_gets_the_result(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         str(tmp_path / "ranks.py"), str(tmp_path / "run")],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=PATIENCE,
        capture_output=True,
    )  # fmt: skip
    first, second = ((tmp_path / f"run-{rank}").read_text() for rank in (0, 1))
    assert first == second
    assert (tmp_path / "run" / "model.safetensors").is_file()
    for agent in range(3):
        assert (tmp_path / "run" / "agents" / f"agent-{agent}.safetensors").is_file()


def test_one_process_meets_nobody() -> None:
    """Seats, boards, handshakes and generations are for several processes."""
    package = str(Path(parley.__file__).parent) + os.sep
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        place = frame.f_code.co_filename
        if event == "call" and place.startswith(package) and frame.f_code.co_name != "<module>":
            called.add(place.removeprefix(package))

    parley.train(agents=2, epochs=1, engine="loop", progress=False)  # everything is imported
    sys.setprofile(note)
    try:
        parley.train(agents=2, epochs=1, engine="loop", progress=False)
    finally:
        sys.setprofile(None)
    assert {"training/trainer.py", "cluster/run.py"} <= called
    ours = {name for name in called if name.startswith(("fabric/", "peers/", "cluster/"))}
    assert ours == {"cluster/launch.py", "cluster/run.py", "cluster/host.py", "cluster/rank.py"}
