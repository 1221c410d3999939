"""Saving and resuming a run's state: safetensors files, written atomically, checked on reading.

Axes: A agents hosted here, I their incoming edges, O their outgoing edges, D flat parameters.

Each worker writes the rows of the agents it hosts into
``checkpoint/epoch-000012/worker-0.safetensors`` with the numbers of those agents and edges beside
them, so that another placement can read what it needs. The two newest epochs are kept.
"""

import json
import shutil
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from parley.errors import ParleyError
from parley.transport import Kind, Transport

KEPT = 2


class Loaded(NamedTuple):
    """What a checkpoint holds for the agents hosted here."""

    state: Any
    about: dict[str, Any]
    sent: dict[Kind, Tensor]


def folder(run: Path, epoch: int) -> Path:
    """Where the checkpoint after that many epochs lies."""
    return run / "checkpoint" / f"epoch-{epoch:06d}"


def epochs_present(run: Path) -> list[int]:
    """Epochs that have a checkpoint, newest last."""
    found = (run / "checkpoint").glob("epoch-*/worker-*.safetensors")
    return sorted({int(path.parent.name.removeprefix("epoch-")) for path in found})


def _axes(transport: Transport) -> dict[str, list[list[int]]]:
    """What each row of an axis stands for: an agent, or an edge as [sender, receiver]."""
    edges = transport.topology.edges
    incoming = [list(edges[e]) for r in transport.incoming_of for e in r]
    outgoing = [list(edges[e]) for r in transport.outgoing_of for e in r]
    return {"A": [[a] for a in transport.placement.agents], "I": incoming, "O": outgoing}


def _axis(field: str) -> str:
    return field.rpartition("_")[2][0]


def save(run: Path, epoch: int, state: Any, transport: Transport, about: dict[str, Any]) -> None:
    """Writes this worker's part: whole or not at all."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in state._asdict().items()}
    tensors |= {f"sent_{kind}_A": value for kind, value in transport.sent.items()}
    checks = {
        name: zlib.crc32(t.numpy().data.cast("B")) for name, t in tensors.items() if t.numel()
    }
    metadata = {"about": about, "axes": _axes(transport), "checks": checks}
    target = folder(run, epoch) / f"worker-{transport.placement.here}.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".partial")
    try:
        save_file(tensors, temporary, {"parley": json.dumps(metadata)})
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def prune(run: Path) -> None:
    """Removes all but the newest checkpoints; called once every worker has written the newest."""
    for epoch in epochs_present(run)[:-KEPT]:
        shutil.rmtree(folder(run, epoch))


def load(run: Path, epoch: int, template: Any, transport: Transport) -> Loaded:
    """The rows that belong to the agents hosted here, whichever worker wrote them.

    `template` is a state of the right type and shapes, as `Algorithm.init` makes it.
    """
    axes = {axis: {tuple(k): r for r, k in enumerate(ks)} for axis, ks in _axes(transport).items()}
    fields = {name: torch.empty_like(value) for name, value in template._asdict().items()}
    sent = {kind: torch.empty_like(value) for kind, value in transport.sent.items()}
    targets = fields | {f"sent_{kind}_A": value for kind, value in sent.items()}
    missing = {axis: set(keys) for axis, keys in axes.items()}
    about: dict[str, Any] = {}
    for path in sorted(folder(run, epoch).glob("worker-*.safetensors")):
        tensors, metadata = _read(path, epoch)
        about = metadata["about"]
        rows: dict[str, tuple[list[int], list[int]]] = {}
        for axis, keys in metadata["axes"].items():
            wanted = [
                (axes[axis][tuple(k)], r) for r, k in enumerate(keys) if tuple(k) in axes[axis]
            ]
            rows[axis] = ([here for here, _ in wanted], [there for _, there in wanted])
            missing[axis] -= {tuple(k) for k in keys}
        for name, target in targets.items():
            here, there = rows[_axis(name)]
            if name not in tensors or tensors[name].shape[1:] != target.shape[1:]:
                raise ParleyError(f"checkpoint: {path} is of another model or algorithm ({name})")
            target[here] = tensors[name][there].to(target)
    if missing["A"]:
        raise ParleyError(
            f"checkpoint: {folder(run, epoch)} has nothing for agent {min(missing['A'])[0]}"
        )
    return Loaded(type(template)(**fields), about, sent)


def _read(path: Path, epoch: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            metadata = json.loads(file.metadata()["parley"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        for name, check in metadata["checks"].items():
            if zlib.crc32(tensors[name].numpy().data.cast("B")) != check:
                raise ValueError(f"{name} does not match its checksum")
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise ParleyError(
            f"checkpoint: {path} is damaged ({error}); remove {path.parent} "
            "to go on from the checkpoint before it"
        ) from None
    return tensors, metadata
