"""Real processes for tests, made quickly: forked from a server that has imported everything."""

import contextlib
import io
import json
import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parley.files import parse_json

TOKEN = f"PARLEY_TEST_TOKEN_{os.getpid()}"
"""A variable by which our processes are known, and not those of tests that others run."""
PRELOADED = ["parley.cli.train", "parley.cli.compare", "parley.cli.join", "pytest"]
PATIENCE = 300.0
"""Seconds after which a test gives up; far more than is needed, since machines can be busy."""

TIMING = ("seconds", "gradients_per_second", "peak_memory_mb")
"""What a record says about the machine and not about the run."""


def process(target: Callable[..., Any], *arguments: Any) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    made = context.Process(target=target, args=arguments)
    made.start()
    return made


class Command:
    """``parley …`` in a process (and a process group) of its own."""

    def __init__(self, folder: Path, *arguments: object, environment: Mapping[str, str] = {}):
        self.token = uuid.uuid4().hex
        folder.mkdir(parents=True, exist_ok=True)
        self._stdout, self._stderr = (folder / f"{self.token}.{n}" for n in ("out", "err"))
        environment = {**os.environ, **environment, TOKEN: self.token}
        words = [str(a) for a in arguments]
        self.process = process(_command, words, environment, self._stdout, self._stderr)
        self.pid: int = self.process.pid

    def send(self, number: int) -> None:
        self.process.join(0)
        if self.process.is_alive():
            os.kill(self.pid, number)

    def interrupt_all(self) -> None:
        """Ctrl-C, as a terminal sends it: to every process of the group."""
        os.killpg(self.pid, signal.SIGINT)

    def wait(self) -> int:
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None, f"still running: {self.err}"
        code: int = self.process.exitcode
        return code

    def until(self, ready: Callable[[], bool]) -> bool:
        """Waits until something holds; False if the command has ended before."""
        return until(ready, lambda: self.process.exitcode is not None)

    @property
    def out(self) -> str:
        return self._stdout.read_text() if self._stdout.exists() else ""

    @property
    def err(self) -> str:
        return self._stderr.read_text() if self._stderr.exists() else ""

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found

    def error(self) -> str:
        """The one line that the user sees: no traceback, nothing of other processes."""
        told = (line for line in self.err.splitlines() if not line.startswith("note: "))
        lines = [line for line in told if ": epoch " not in line]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: "), self.err
        return lines[0].removeprefix("error: ")

    def workers(self) -> list[int]:
        """Those that were made by the command's own server of workers."""
        others = [pid for pid in processes_of(self.token, self.pid) if pid != self.pid]
        return [pid for pid in others if int(_stat(pid)[1]) in others]

    def nothing_left(self) -> bool:
        return nothing_left(self.token, self.pid)


def nothing_left(token: str, group: int = -1) -> bool:
    return until(lambda: not processes_of(token, group), pause=0.1)


def until(
    ready: Callable[[], bool], over: Callable[[], bool] = lambda: False, pause: float = 0.01
) -> bool:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if ready():
            return True
        if over():
            return False
        time.sleep(pause)
    raise TimeoutError("waited too long")


def processes_of(token: str, group: int = -1) -> list[int]:
    """Live processes that were started with this token, or that are in this process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, in_group = _stat(int(path.name))
            ours = f"{TOKEN}={token}".encode() in (path / "environ").read_bytes()
            if state != "Z" and (ours or int(in_group) == group):
                found.append(int(path.name))
    return found


def _stat(pid: int) -> tuple[str, str, str]:
    """State, parent and process group."""
    state, parent, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    return state, parent, group


def _command(words: list[str], environment: dict[str, str], out: Path, err: Path) -> None:
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(environment)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in ((1, out), (2, err)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
    import sys

    from parley.cli.main import main

    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb"), line_buffering=True)
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb"), line_buffering=True)
    sys.argv = ["parley", *words]
    main()


def recorded(run: Path) -> int:
    """How many records there are so far."""
    path = run / "records.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def without_torchrun(err: str) -> str:
    """What was printed but for torchrun's own log: when the host that keeps its store is the first
    to leave, the other hosts' torchrun reports that with a traceback."""
    agent = "torch/distributed/elastic/agent/"
    return "\n".join(line for line in err.splitlines() if agent not in line)


def records(run: Path) -> list[dict[str, Any]]:
    """The whole lines of ``records.jsonl``, without what depends on the machine."""
    path = run / "records.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    made: list[dict[str, Any]] = [parse_json(line) for line in lines]
    return [{k: v for k, v in record.items() if k not in TIMING} for record in made]
