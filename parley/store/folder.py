"""One run, one folder: the experiment, its records, its checkpoints, its summary.

experiment.toml     the full experiment
graph.txt           its graph, if it came from a file or from Python; likewise
partition.json      the partition, and
links.toml          the simulated network (`parley.store.enclosed`)
environment.json    versions and machine, the command, and the algorithm's label
agents.json         who talks to whom, who holds which classes, and how columns are prepared
records.jsonl       one line for every evaluation
generations.jsonl   which workers took part from which step on, if a run heals
checkpoint/         what resuming needs
status.json         where the run is, until it is complete (`parley.store.status`)
.lock, .lock-…      held by the processes of the run (`parley.store.lock`)
confusion.json      confusion matrices of the best and the worst agent, at the end
model.safetensors   the averaged model, at the end; beside it model.json, and for text
tokenizer.json; agents/ has the models of the agents hosted here (`parley.store.outputs`)
summary.json        written when the run is complete
"""

import logging
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parley.compute import kernels
from parley.errors import BadValue, NotWritten, ParleyError
from parley.files import (
    LARGEST,
    SMALL,
    Unreadable,
    append_line,
    is_partial,
    is_sealed,
    lines_of,
    make_folder,
    parse_json,
    read_text,
    sealed,
    write_atomically,
)
from parley.schedule import depends_on_length
from parley.store.status import LOCK, STATUS
from parley.training.record import Record, parse_record
from parley.version import __version__, commit

if TYPE_CHECKING:  # an experiment names an algorithm, which needs torch; the dashboard does not
    from parley.algorithms import AlgorithmKind
    from parley.data.tables import Form
    from parley.experiment import Experiment

log = logging.getLogger(__name__)

EXPERIMENT = "experiment.toml"
RECORDS = "records.jsonl"
GENERATIONS = "generations.jsonl"
MEMBERSHIP, REVISIONS = "membership.json", "revisions.json"
"""What a peer must remember; written before the experiment, once the peers have met."""
SUMMARY = "summary.json"
ENVIRONMENT = "environment.json"
AGENTS = "agents.json"
CONFUSION = "confusion.json"
MODEL, CARD, TOKENIZER = "model.safetensors", "model.json", "tokenizer.json"
GRAPH, PARTITION, LINKS = "graph.txt", "partition.json", "links.toml"
ENCLOSED = {GRAPH: "topology", PARTITION: "partition", LINKS: "links"}
"""Copies of files that the experiment names, and the field that names each."""


UNVERIFIED = "%s have no checksums, since an older version wrote them: they cannot be verified"


def fresh_name(parent: Path, stem: str) -> Path:
    """The first of ``stem-001``, ``stem-002``, … that does not exist."""
    number = 1
    while (path := parent / f"{stem}-{number:03d}").exists():
        number += 1
    return path


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def experiment(self, own: "AlgorithmKind | None" = None) -> "Experiment | None":
        """The experiment of the run in this folder, if any; `own` as in `Experiment.from_toml`."""
        from parley.experiment import Experiment

        present = self.path / EXPERIMENT
        if not os.path.lexists(present):
            return None
        return Experiment.from_toml(_text("experiment", present, SMALL), str(present), own)

    def check(
        self, experiment: "Experiment", resume: bool, files: Mapping[str, str] | None = None
    ) -> None:
        """Refuses a folder that this experiment must not be written to; changes nothing.

        `files` are those that the experiment refers to, as in `parley.store.enclosed`.
        """
        if self.path.exists() and not self.path.is_dir():
            raise BadValue("out", str(self.path), "a folder", "it is a file")
        other = self.experiment(experiment.algorithm.kind)
        if other is not None:
            differing = experiment.same_as(other)
            for name, text in (files or {}).items():
                path = self.path / name
                if os.path.lexists(path) and _text(ENCLOSED[name], path) != text:
                    differing.append(ENCLOSED[name])
            if differing:
                raise ParleyError(
                    f"out: {str(self.path)!r} holds a different experiment "
                    f"(they differ in {', '.join(differing)}); choose another folder"
                )
            if resume:
                self._refuse_misplaced()
                if experiment.epochs < other.epochs:
                    self._check_length(experiment)
            else:
                raise ParleyError(
                    f"out: {str(self.path)!r} already holds this experiment; "
                    "add --resume to continue it, or choose another folder"
                )
            return
        # A run that was killed right at the start leaves its lock, an unfinished file, and what a
        # peer had promised by then.
        present = self.path.iterdir() if self.path.exists() else iter(())
        early = (EXPERIMENT, MEMBERSHIP, REVISIONS)
        known = (p.name in early[1:] or any(is_partial(p, name) for name in early) for p in present
                 if not p.name.startswith(LOCK))  # fmt: skip
        if not all(known):
            raise BadValue("out", str(self.path), "a new or empty folder, or one that holds a run")

    def _refuse_misplaced(self) -> None:
        """Refuses folders where a run writes files, and files where it has folders, before it has
        trained and cannot write, or takes its checkpoints to be gone."""
        written = (ENVIRONMENT, AGENTS, CONFUSION, MODEL, CARD, TOKENIZER, SUMMARY, STATUS)
        places = [*(self.path / name for name in written), *self.path.glob("agents/*.safetensors")]
        for path in places:
            if path.is_dir():
                raise ParleyError(f"out: {path} is a folder; remove it, since a file belongs there")
        for path in (self.path / "checkpoint", self.path / "agents"):
            if os.path.lexists(path) and not path.is_dir():
                raise ParleyError(f"out: {path} is not a folder; put the folder back, or remove it")

    def _check_length(self, experiment: "Experiment") -> None:
        """Refuses to make a run shorter than it is."""
        from parley.store import checkpoint  # with torch, which reading a folder does without

        recorded = max((record["epoch"] for record in self.records()), default=0)
        trained = max([recorded, *checkpoint.epochs_present(self.path)])
        # The last epoch has a record, which only the training of that epoch can make.
        least = trained if trained == recorded else trained + 1
        if experiment.epochs < least:
            because = f"{self.path} has trained {trained} epochs already"
            because += ", the last of them without a record" * (least > trained)
            raise BadValue("epochs", experiment.epochs, f"at least {least}", because)

    def goes_on_for(self, experiment: "Experiment") -> bool:
        """Whether the folder holds this run with a different number of epochs."""
        other = self.experiment(experiment.algorithm.kind)
        return other is not None and any(
            getattr(experiment, field) != getattr(other, field) for field in ("epochs", "stop_when")
        )

    def extend(self, experiment: "Experiment") -> None:
        """Changes how long the run in the folder is: it is no longer complete."""
        if not self.goes_on_for(experiment):
            return
        other = self.experiment(experiment.algorithm.kind)
        for field in ("lr_decay", "gamma_decay"):
            spec = getattr(experiment, field)
            longer = other is not None and other.epochs != experiment.epochs
            if longer and depends_on_length(spec):
                log.warning(
                    "%s %s depends on the number of epochs: training so far followed the schedule "
                    "for %d epochs, so the result will differ from a new run of %d epochs",
                    *(field, spec, other.epochs if other else 0, experiment.epochs),
                )
        with self._writing():
            write_atomically(self.path / EXPERIMENT, experiment.to_toml())
            for name in (SUMMARY, CONFUSION, CARD, MODEL):
                (self.path / name).unlink(missing_ok=True)

    def check_kept(self) -> None:
        """Refuses to go on if the folder was removed while the run wrote to it: what is left of the
        run would be a part that nothing can read."""
        if not (self.path / EXPERIMENT).is_file():
            raise NotWritten(
                f"out: {self.path / EXPERIMENT} was removed during the run, which ends"
            )

    def touch(self, mark: Path) -> None:
        """Creates the folder and an empty file in it."""
        with self._writing():
            make_folder(self.path)
            mark.touch()

    def create(self, experiment: "Experiment", files: Mapping[str, str] | None = None) -> None:
        """Writes the experiment to the folder, unless it is there already."""
        named = {"label": experiment.algorithm.label}
        about = sealed(environment() | named, indent=2) + "\n"
        texts = {EXPERIMENT: experiment.to_toml(), ENVIRONMENT: about, **(files or {})}
        with self._writing():
            make_folder(self.path)
            for name, text in texts.items():
                if not (self.path / name).is_file():
                    write_atomically(self.path / name, text)

    def open(
        self, experiment: "Experiment", resume: bool, files: Mapping[str, str] | None = None
    ) -> None:
        """Creates the folder, or checks that it holds this experiment."""
        self.check(experiment, resume, files)
        self.create(experiment, files)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            wrong = BadValue("out", str(self.path), "a writable folder", str(error))
            raise NotWritten(str(wrong)) from None

    def records(self, unverified: list[Path] | None = None) -> list[Record]:
        """All records, for resuming: damage is refused. A half-written last line is skipped.
        Readers of many folders are given those without checksums as a list, and say so once."""
        path = self.path / RECORDS
        if not os.path.lexists(path):
            return []
        records: list[Record] = []
        verified = True
        try:
            for number, line in enumerate(lines_of(path), start=1):
                if (record := parse_record(line)) is None:
                    raise ParleyError(
                        f"records: line {number} of {path} is damaged; remove the line to "
                        "continue without it"
                    )
                records.append(record)
                verified &= is_sealed(line)
        except Unreadable as error:
            raise ParleyError(f"records: {path} is damaged ({error})") from None
        if not verified and unverified is not None:
            unverified.append(self.path)
        elif not verified:
            log.info("%s", UNVERIFIED % f"the records in {self.path}")
        return records

    def append(self, record: Mapping[str, Any] | Record, to: str = RECORDS) -> None:
        """Appends a record, which is on disk before this returns."""
        with self._writing():
            append_line(self.path / to, sealed(record))

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The valid lines of a file of JSON objects."""
        found: list[dict[str, Any]] = []
        with suppress(Unreadable):  # there may be no such file
            for number, line in enumerate(lines_of(self.path / name), start=1):
                try:
                    read = parse_json(line)
                except Unreadable as error:
                    log.warning("%s: line %d is left out (%s)", self.path / name, number, error)
                    continue
                found += [read] if isinstance(read, dict) else []
        return found

    def rewrite(self, name: str, lines: Sequence[Mapping[str, Any] | Record]) -> None:
        """The lines of a file of JSON objects, all at once."""
        with self._writing():
            write_atomically(self.path / name, "".join(sealed(line) + "\n" for line in lines))

    def rewind(self, records: list[Record], epoch: int) -> list[Record]:
        """Drops records newer than the checkpoint a run resumes from."""
        kept = [r for r in records if r["epoch"] <= epoch]
        if kept or (self.path / RECORDS).exists():
            self.rewrite(RECORDS, kept)
        return kept

    def summary(self) -> dict[str, Any] | None:
        """The summary of a complete run, otherwise None."""
        try:
            found = parse_json(read_text(self.path / SUMMARY))
        except Unreadable:
            return None  # damaged: resuming recreates it from the records
        return found if isinstance(found, dict) else None

    def columns(self) -> "Form | None":
        """How the columns of tables are prepared, if the run has begun to train on tables."""
        from pydantic import TypeAdapter, ValidationError

        from parley.data.tables import Column, Form

        path = self.path / AGENTS
        if not path.exists():
            return None
        try:
            found = parse_json(read_text(path))
            given = found.get("columns") if isinstance(found, dict) else None
            return (
                None
                if given is None
                else Form(TypeAdapter(tuple[Column, ...]).validate_python(given))
            )
        except (Unreadable, ValidationError) as error:
            why = str(error).splitlines()[0]
            raise ParleyError(
                f"data: {path} is damaged ({why}); it says how columns are prepared"
            ) from None

    def write_once(self, name: str, content: dict[str, Any]) -> None:
        """Writes a small file next to the records, unless it is there already."""
        if not (self.path / name).exists():
            with self._writing():
                write_atomically(self.path / name, sealed(content) + "\n")

    def finish(self, summary: dict[str, Any]) -> None:
        """Marks the run as complete."""
        with self._writing():
            write_atomically(self.path / SUMMARY, sealed(summary, indent=2) + "\n")


def _text(what: str, path: Path, most: int = LARGEST) -> str:
    try:
        return read_text(path, most)
    except Unreadable as error:
        raise ParleyError(f"{what}: {path} is damaged ({error})") from None


def environment() -> dict[str, Any]:
    """Versions and machine, for anyone who wants to repeat the run."""
    packages = ("torch", "numpy", "scipy", "networkx", "datasets")
    return {
        "command": command(),
        "parley": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        **{package: _installed(package) for package in packages},
        "kernels": kernels.identity() or None,
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }


@cache
def _installed(package: str) -> str | None:
    """Its version. Kept, since reading what a package says about itself takes 10 ms."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def command() -> str:
    """The command that started this process, as far as Python knows it."""
    program, *words = sys.argv or [""]
    name = Path(program).name
    if name in ("parley", "parley.exe") or Path(program).parts[-2:] == ("parley", "__main__.py"):
        return shlex.join(["parley", *words])
    return shlex.join(["python", *([program, *words] if program else [])])
