"""One run, one folder: the experiment, its records as they come, its checkpoints, its summary.

experiment.toml     the full experiment
environment.json    versions and machine
records.jsonl       one line for every evaluation
checkpoint/         what resuming needs
summary.json        written when the run is complete
"""

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import parley
from parley.errors import BadValue, ParleyError
from parley.experiment import Experiment

EXPERIMENT = "experiment.toml"
RECORDS = "records.jsonl"
SUMMARY = "summary.json"
ENVIRONMENT = "environment.json"


def write_atomically(path: Path, text: str) -> None:
    """The whole text or nothing."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


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

    def open(self, experiment: Experiment, resume: bool) -> None:
        """Makes the folder, or checks that it holds this very experiment."""
        present = self.path / EXPERIMENT
        if self.path.exists() and not self.path.is_dir():
            raise BadValue("out", str(self.path), "a folder", "it is a file")
        if present.exists():
            other = Experiment.from_toml(present.read_text(encoding="utf-8"), str(present))
            differing = experiment.same_as(other)
            if differing:
                raise ParleyError(
                    f"out: {str(self.path)!r} holds another experiment "
                    f"(it differs in {', '.join(differing)}); choose another folder"
                )
            if not resume:
                raise ParleyError(
                    f"out: {str(self.path)!r} already holds this experiment; "
                    "add --resume to go on with it, or choose another folder"
                )
            return
        if self.path.exists() and any(self.path.iterdir()):
            raise BadValue("out", str(self.path), "a new or empty folder, or one that holds a run")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path / ENVIRONMENT, json.dumps(environment(), indent=2) + "\n")
            write_atomically(present, experiment.to_toml())
        except OSError as error:
            raise BadValue(
                "out", str(self.path), "a folder that can be written", str(error)
            ) from None

    def records(self) -> list[dict[str, Any]]:
        """All whole records; a half-written last line is passed over."""
        path = self.path / RECORDS
        if not path.exists():
            return []
        records = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return records

    def append(self, record: dict[str, Any]) -> None:
        """One more record, on disk before this returns."""
        with (self.path / RECORDS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rewind(self, epoch: int) -> list[dict[str, Any]]:
        """Drops records that are newer than the checkpoint a run goes on from."""
        kept = [r for r in self.records() if r["epoch"] <= epoch]
        if (self.path / RECORDS).exists():
            write_atomically(self.path / RECORDS, "".join(json.dumps(r) + "\n" for r in kept))
        return kept

    def summary(self) -> dict[str, Any] | None:
        """The summary of a complete run, else None."""
        path = self.path / SUMMARY
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def finish(self, summary: dict[str, Any]) -> None:
        """Marks the run as complete."""
        write_atomically(self.path / SUMMARY, json.dumps(summary, indent=2) + "\n")


def environment() -> dict[str, Any]:
    """Versions and machine, for whoever wants to repeat the run."""

    def installed(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    packages = ("torch", "numpy", "scipy", "networkx", "scikit-learn", "datasets")
    return {
        "parley": parley.__version__,
        "python": platform.python_version(),
        **{package: installed(package) for package in packages},
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }
