"""Copies of what an experiment refers to: a run's folder is enough to repeat the run.

A graph from a file or from Python becomes ``graph.txt``, a partition's file ``partition.json``, and
a network's file ``links.toml``. The experiment in the folder names these.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from parley import graphs as topologies
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.files import Unreadable, path_in, read_text, user_path
from parley.graphs import Topology
from parley.store.folder import GRAPH, LINKS, PARTITION


@dataclass(frozen=True)
class Enclosed:
    """An experiment as stored in a folder."""

    experiment: Experiment
    """It refers to the files below, relative to the folder."""
    files: dict[str, str]
    """Their contents."""


def enclosed(experiment: Experiment, topology: Topology) -> Enclosed:
    """The experiment with copies of the graph and the files that it needs."""
    changes: dict[str, str] = {}
    files: dict[str, str] = {}
    if not _is_named(experiment, topology):
        kind, changes["weights"], files[GRAPH] = topologies.to_text(topology)
        changes["topology"] = f"{kind}:{GRAPH}"
    if (path := path_in(experiment.partition)) is not None:
        changes["partition"] = f"file:{PARTITION}"
        files[PARTITION] = _with_whole_paths(_read("partition", path))
    if (path := path_in(experiment.links)) is not None:
        changes["links"] = f"file:{LINKS}"
        files[LINKS] = _read("links", path)
    if experiment.init and not experiment.init.startswith("hf:"):
        changes["init"] = os.path.realpath(user_path(experiment.init))
    # A copy: its relative paths are only valid inside the folder.
    return Enclosed(experiment.model_copy(update=changes), files)


def _is_named(experiment: Experiment, topology: Topology) -> bool:
    """Whether the experiment's spec alone gives exactly this graph, here and anywhere."""
    if path_in(experiment.topology) is not None:
        return False
    words = (experiment.topology, experiment.agents, experiment.weights, experiment.seed)
    try:
        named = topologies.parse(*words)
    except BadValue:
        return False  # such as "graph", the name of a networkx graph
    return named.same_as(topology)


def _with_whole_paths(text: str) -> str:
    """A partition's file, with any folders as absolute paths."""
    entries = json.loads(text)
    if not all(isinstance(entry, str) for entry in entries):
        return text
    found = [str(Path(e).resolve()) if Path(e).is_dir() else e for e in entries]
    return json.dumps(found, indent=1) + "\n"


def _read(field: str, path: str) -> str:
    try:
        return read_text(Path(path))
    except Unreadable as error:
        raise BadValue(field, f"file:{path}", "a readable file", str(error)) from None
