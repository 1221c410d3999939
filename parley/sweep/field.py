"""Every method on several partitions: one table and one picture."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from parley.errors import BadValue
from parley.experiment import Experiment
from parley.files import write_atomically
from parley.measures import of_record
from parley.results.curves import field_picture
from parley.results.table import Table, mean_and_spread
from parley.store.folder import RunFolder
from parley.sweep import compare as comparison
from parley.sweep.compare import slug
from parley.sweep.jobs import Job
from parley.training import problem as problems

KEPT = ("consensus_distance", "bytes_models", "bytes_cross_gradients", "seconds")
"""The fields of every record that the table and the picture need, besides the first metric's."""
PARTITIONS = ("skew:1", "dirichlet:0.1", "iid")
"""Classes fully separated, classes in very unequal shares, and no skew at all."""


def fitting(experiment: Experiment) -> Experiment:
    """The experiment on a graph that its method can use: the named one, or its spanning tree."""
    topology = problems.topology_of(experiment)
    try:
        experiment.algorithm.check(topology)
    except BadValue as refusal:
        on_tree = experiment.replace(topology=f"spanning-tree:{experiment.topology}")
        try:
            experiment.algorithm.check(problems.topology_of(on_tree))
        except BadValue:
            raise refusal from None
        return on_tree
    return experiment


def jobs(
    by_partition: Mapping[str, Sequence[Experiment]],
    seeds: int,
    out: Path,
    names: Sequence[str] | None = None,
) -> list[Job]:
    """All runs, in a folder for each partition; `names` as for `compare.jobs`."""
    return [
        Job(job.label, job.experiment, job.out, may_diverge=True)
        for partition, experiments in by_partition.items()
        for job in comparison.jobs(experiments, seeds, out / slug(partition), names=names)
    ]


def rows(done: Sequence[Job]) -> dict[str, list[dict[str, Any]]]:
    """For each partition one row per method as in `compare.rows`; diverged runs have none."""
    made: dict[str, list[dict[str, Any]]] = {}
    for partition in dict.fromkeys(job.experiment.partition for job in done):
        of = [j for j in done if j.experiment.partition == partition and j.failure is None]
        made[partition] = comparison.rows(of)
    return made


def table(made: Mapping[str, list[dict[str, Any]]]) -> Table:
    """The averaged model's metric on each partition, and what an epoch costs on the first."""
    first, *_ = partitions = list(made)
    by_label: dict[str, dict[str, dict[str, Any]]] = {}
    for partition, of in made.items():
        for row in of:
            by_label.setdefault(row["label"], {})[partition] = row
    lines = []
    for label, found in by_label.items():
        cells = [_figure(found[p]) if p in found else "diverged" for p in partitions]
        costs = ["", ""]
        if some := found.get(first):
            sent = (some["bytes_models"] + some["bytes_cross_gradients"]) / some["epochs"] / 1e6
            costs = [f"{sent:.3f}", f"{some['seconds'] / some['epochs']:.3f}"]
        lines.append([label, *cells, *costs])
    costs = [f"MB per epoch,\n{first}", f"s per epoch,\n{first}"]
    some_of_each = [next(iter(of.values())) for of in by_label.values()]
    return comparison.with_momentum(Table(["", *partitions, *costs], lines), some_of_each)


def _figure(row: Mapping[str, Any]) -> str:
    measure = of_record(row)[0]
    key, form = measure.field("mean_model"), ".1f" if measure.share else ".4g"
    std = measure.factor * row[f"{key}_std"] if row["seeds"] > 1 else None
    return mean_and_spread(measure.factor * row[key], std, form)


def write(out: Path, done: Sequence[Job], made: Mapping[str, list[dict[str, Any]]]) -> None:
    """Writes the table, the picture, and the records of all runs that both are made from."""
    write_atomically(out / "table.md", table(made).markdown())
    curves: dict[str, dict[str, list[Any]]] = {}
    lines = []
    for job in done:
        partition, records = job.experiment.partition, RunFolder(job.out).records()
        about = {"partition": partition, "label": job.label, "seed": job.experiment.seed}
        about |= {"lr": job.experiment.lr, "diverged": job.failure is not None}
        plain = cast(list[dict[str, Any]], records)
        first = job.experiment.measures[0]
        kept = ("epoch", "step", first.field("mean_model"), first.field("own"), *KEPT)
        lines += [about | {k: round(r[k], 5) for k in kept} for r in plain]
        if job.failure is None:
            curves.setdefault(partition, {}).setdefault(job.label, []).append(records)
    write_atomically(out / "field.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    field_picture(curves, out / "field.svg")
