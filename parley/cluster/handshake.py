"""What the processes of a run must agree on before the first step, and who takes which agents.

Every process announces what it was started with and what it has loaded. All compare, and all reach
the same verdict: either they continue, or every host reports what differs and where.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from typing_extensions import TypedDict

from parley import models
from parley.compute.task import Task
from parley.data.tables import Form
from parley.errors import BadValue, ParleyError
from parley.experiment import HOW, OWN, Experiment
from parley.fabric.base import Member, listed
from parley.fabric.board import Board
from parley.fabric.messages import Agent, understood
from parley.graphs import Topology
from parley.store.enclosed import enclosed
from parley.store.folder import ENCLOSED
from parley.training.problem import Problem
from parley.version import full_version


class Seat(TypedDict):
    """Where a process runs, and which agents it has claimed."""

    host: str
    agents: list[Agent] | None


class Claims(TypedDict):
    """What a process was started with and what it has loaded."""

    host: str
    agents: list[Agent]
    said: dict[str, Any]


def code() -> str:
    """Version and commit of the code that hosts must share, regardless of local changes."""
    return full_version().replace("-dirty", "")


def plan(experiment: Experiment, topology: Topology, version: str | None = None) -> dict[str, Any]:
    """What must be the same everywhere and is known before any data are loaded."""
    # Hosts may have the same files in different places.
    kept = enclosed(experiment, topology)
    files = {ENCLOSED[name]: zlib.crc32(text.encode()) for name, text in kept.files.items()}
    chosen = kept.experiment.model_dump(mode="json")
    algorithm = chosen.pop("algorithm")
    # Weights may be in different places too: what is learned is broadcast, what is frozen compared.
    chosen["init"] = bool(experiment.init)
    if models.is_code(experiment.model) or "model" in experiment.from_python:
        # Each host has its own code: what it makes of it is compared, parameter by parameter.
        chosen |= {"model": OWN, "model_options": {}}
    together = {"on_failure", "patience", "suspicious"}
    said = {name: value for name, value in chosen.items() if name not in HOW or name in together}
    return {
        "version": version or code(),
        **said,
        **{f"file of {field}": f"checksum {found}" for field, found in files.items()},
        **{f"algorithm.{name}": value for name, value in algorithm.items()},
        "graph": _graph(topology),
    }


def claims(
    experiment: Experiment, problem: Problem, task: Task, version: str | None = None
) -> dict[str, Any]:
    """Everything that must be the same everywhere, under the names used in errors."""
    inputs = problem.test.inputs if problem.test_is_shared else problem.samples[0].inputs
    parameters = zip(task.names, task.shapes, strict=True)
    table = problem.preparation.table
    return {
        **plan(experiment, problem.topology, version),
        "label names": list(problem.class_names),
        "input shape": list(inputs.shape[1:]),
        "input type": str(inputs.dtype).removeprefix("torch."),
        **({"columns": list(table.names)} if table else {}),
        **({"means": _means(table)} if table and not problem.standardise else {}),
        "parameters": {name: list(shape) for name, shape in parameters},
        "buffers": {name: list(b.shape) for name, b in sorted(task.whole.named_buffers())},
        "frozen parameters": task.frozen,
        "normalisation": [list(problem.transform.mean), list(problem.transform.std)],
    }


def _means(table: Form) -> list[str]:
    """Of the columns, with their deviations, unless hosts have yet to agree on them."""
    return [f"{column.mean:.9g} ± {column.std:.9g}" for column in table.columns]


def agree(board: Board, agents: Sequence[int], said: Mapping[str, Any]) -> None:
    """Refuses to continue if some process differs from the first."""
    text = json.dumps({"host": board.host, "agents": list(agents), "said": dict(said)})
    mine = understood(text, Claims, "this process", "claims")  # as the others read it
    everyone = board.share("claims", mine, Claims)
    first = everyone[0]
    if changed := [key for key in said if _differs(everyone[board.rank], mine, key)]:
        # It announced something else at the start, the only time the others could object.
        what = _difference(everyone[board.rank], mine, board.rank, changed[0])
        raise BadValue(
            "host", board.host, "what this host started with", what.replace(" but ", ", was ")
        )
    for rank, other in enumerate(everyone[1:], start=1):
        differing = [
            key for key in {**first["said"], **other["said"]} if _differs(first, other, key)
        ]
        if differing:
            what = "; ".join(_difference(first, other, rank, key) for key in differing[:3])
            more = f"; and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise ParleyError(f"hosts do not agree: {what}{more}")


def _differs(first: Any, other: Any, key: str) -> bool:
    return bool(first["said"].get(key) != other["said"].get(key))


def _difference(first: Any, other: Any, rank: int, key: str) -> str:
    mine, theirs = first["said"].get(key), other["said"].get(key)
    if isinstance(mine, dict) and isinstance(theirs, dict):
        name = next(n for n in {**mine, **theirs} if mine.get(n) != theirs.get(n))
        key, mine, theirs = f"{key} {name}", mine.get(name), theirs.get(name)
    return (
        f"{key} is {_brief(theirs)} at worker {rank} ({other['host']}, {listed(other['agents'])}) "
        f"but {_brief(mine)} at worker 0 ({first['host']}, {listed(first['agents'])})"
    )


def _brief(value: Any) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _graph(topology: Topology) -> str:
    what = f"{topology.edges} {np.round(topology.edge_weights, 9).tolist()}"
    return f"{len(topology.edges)} edges, checksum {zlib.crc32(what.encode())}"


def seats(board: Board, agents: int, mine: Sequence[int] | None) -> tuple[int, ...]:
    """The worker of every agent: claimed agents go to their claimants, the rest are distributed.
    From then on the board knows who hosts what.
    """
    own = {"host": board.host, "agents": None if mine is None else [*mine]}
    claimed = board.share("agents", own, Seat)
    worker_of: dict[int, int] = {}
    for rank, said in enumerate(claimed):
        for agent in said["agents"] or ():
            if not 0 <= agent < agents:
                raise BadValue("agents_here", agent, f"0 to {agents - 1}", _who(rank, said))
            if agent in worker_of:
                before = worker_of[agent]
                raise ParleyError(
                    f"agents_here: agent {agent} is hosted both by {_who(before, claimed[before])} "
                    f"and by {_who(rank, said)}"
                )
            worker_of[agent] = rank
    open_ = [rank for rank, said in enumerate(claimed) if said["agents"] is None]
    rest = [agent for agent in range(agents) if agent not in worker_of]
    if rest and not open_:
        raise ParleyError(f"agents_here: no worker hosts {listed(rest)}")
    if len(rest) < len(open_):
        who = _who(open_[-1], claimed[open_[-1]])
        raise BadValue("workers", board.world, f"fewer: {who} is left without an agent")
    for rank, block in zip(open_, np.array_split(rest, len(open_)) if open_ else [], strict=True):
        worker_of |= {int(agent): rank for agent in block}
    for rank, said in enumerate(claimed):
        if said["agents"] == []:
            raise BadValue("agents_here", "", "at least one agent", _who(rank, said))
    hosted = [tuple(a for a in range(agents) if worker_of[a] == r) for r in range(board.world)]
    said_and_hosted = enumerate(zip(claimed, hosted, strict=True))
    board.introduce(
        {r: Member(f"worker {r}", said["host"], mine) for r, (said, mine) in said_and_hosted}
    )
    return tuple(worker_of[agent] for agent in range(agents))


def _who(rank: int, said: Mapping[str, Any]) -> str:
    return f"worker {rank} ({said['host']})"
