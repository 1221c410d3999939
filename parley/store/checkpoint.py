"""Saving and resuming a run's state: safetensors files, whole and on disk, checked on reading.

Axes: A agents hosted here, I their incoming edges, O their outgoing edges, D flat parameters.

Each worker writes the rows of the agents it hosts into
``checkpoint/epoch-000012/worker-0.safetensors`` along with the numbers of those agents and edges,
so that another placement can read what it needs. The newest `keep` epochs are kept.
"""

import json
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from parley.errors import NotWritten, ParleyError
from parley.files import make_folder, parse_json, regular, replacing, sync_folder
from parley.store import checkpoint_header
from parley.wire.transport import KINDS, Kind, Transport

KEPT = 2
MOST_EPOCHS = 10**9 - 1
"""The largest number of an epoch that the name of a folder has."""


class Loaded(NamedTuple):
    """What a checkpoint holds for the agents hosted here."""

    state: Any
    about: dict[str, Any]
    sent: dict[Kind, Tensor]
    b_AS: Tensor | None = None
    """Running statistics, if the model has some."""


STATISTICS = "statistics_AS"


def folder(run: Path, epoch: int) -> Path:
    """The folder of the checkpoint after that many epochs."""
    return run / "checkpoint" / f"epoch-{epoch:06d}"


def epochs_present(run: Path) -> list[int]:
    """Epochs for which some worker has written its part, newest last."""
    return [epoch for epoch, path in _folders(run) if _parts(path)]


def newest(run: Path, transport: Transport) -> int:
    """The newest epoch for which every worker finds all it needs; 0 if there is none.

    A run that was stopped while saving has an epoch that only some workers have written.
    Workers on different hosts may see different files.
    """
    present = epochs_present(run)
    limit, known = max(present, default=0), MOST_EPOCHS
    while True:
        usable = (e for e in reversed(present) if e <= limit and _complete(run, e, transport))
        found = torch.full((len(transport.placement.agents),), next(usable, 0))
        everyone = transport.gather(found)
        _check_epochs(everyone, transport, known)
        limit = known = int(everyone.min())
        if limit == int(everyone.max()):
            return limit


def _check_epochs(epoch_N: Tensor, transport: Transport, most: int) -> None:
    """Nobody can have a checkpoint of an epoch that was ruled out, or there would be no end."""
    wrong = torch.nonzero((epoch_N < 0) | (epoch_N > most)).flatten().tolist()
    if wrong:
        placement = transport.placement
        who = f"agent {placement.number(wrong[0])} (worker {placement.worker_of[wrong[0]]})"
        raise ParleyError(
            f"suspicious: {who} reported a checkpoint of epoch "
            f"{int(epoch_N[wrong[0]])}; valid: 0 to {most}"
        )


def save(
    run: Path,
    epoch: int,
    state: Any,
    transport: Transport,
    about: dict[str, Any],
    b_AS: Tensor | None = None,
) -> None:
    """Writes this worker's part, completely or not at all; it is on disk before this returns."""
    tensors = flat(state) | _statistics(b_AS)
    tensors |= {f"sent_{kind}_A": value for kind, value in transport.sent.items()}
    arrays = {name: _array(name, value) for name, value in tensors.items()}
    checks = {name: _check(array) for name, array in arrays.items()}
    text = json.dumps({"about": about, "axes": _axes(transport), "checks": checks})
    target = folder(run, epoch) / f"worker-{transport.placement.here}.safetensors"
    temporary = target.with_suffix(".partial")
    try:
        make_folder(target.parent)
        with replacing(target, temporary):
            save_file(arrays, temporary, {"parley": text, "check": str(zlib.crc32(text.encode()))})
    except (OSError, SafetensorError) as error:
        raise NotWritten(f"checkpoint: {target} cannot be written ({error})") from None


def size(run: Path, epoch: int) -> int:
    """Bytes of what this host sees of a checkpoint."""
    return sum(path.stat().st_size for path in _parts(folder(run, epoch)))


def prune(run: Path, epoch: int, kept: int = KEPT) -> None:
    """Removes all but the newest checkpoints; called once every worker has written that epoch's."""
    # Every worker may do this at once, and a fast one may already be writing the next.
    for _, path in [f for f in _folders(run) if f[0] <= epoch][:-kept]:
        shutil.rmtree(path, ignore_errors=True)


def drop_after(run: Path, epoch: int) -> None:
    """Removes checkpoints newer than the epoch a run resumes from: incomplete or obsolete."""
    newer = [path for number, path in _folders(run) if number > epoch]
    for path in newer:
        shutil.rmtree(path, ignore_errors=True)
    if newer:
        # Records are cut next: a checkpoint that came back after a power cut would lack its record.
        sync_folder(run / "checkpoint")


def _statistics(b_AS: Tensor | None) -> dict[str, Tensor]:
    return {} if b_AS is None or not b_AS.shape[1] else {STATISTICS: b_AS}


def load(
    run: Path, epoch: int, template: Any, transport: Transport, b_AS: Tensor | None = None
) -> Loaded:
    """The rows that belong to the agents hosted here, whichever worker wrote them.

    `template` is a state of the right type and shapes, as `Algorithm.init` makes it, and `b_AS` are
    running statistics like those that are there.
    """
    axes = {axis: {tuple(k): r for r, k in enumerate(ks)} for axis, ks in _axes(transport).items()}
    missing = {axis: set(keys) for axis, keys in axes.items()}
    wanted = flat(template) | _statistics(b_AS)
    fields = {name: torch.empty_like(value) for name, value in wanted.items()}
    sent = {kind: torch.empty_like(value) for kind, value in transport.sent.items()}
    targets = fields | {f"sent_{kind}_A": value for kind, value in sent.items()}
    seconds, samples = 0.0, 0.0
    others: dict[str, Any] = {}
    for path in _parts(folder(run, epoch)):
        header = _header(path)
        rows: dict[str, tuple[list[int], list[int]]] = {}
        for axis, keys in header["axes"].items():
            there = [r for r, key in enumerate(keys) if tuple(key) in axes[axis]]
            rows[axis] = [axes[axis][tuple(keys[r])] for r in there], there
            missing[axis] -= {tuple(key) for key in keys}
        if not any(here for here, _ in rows.values()):
            continue
        arrays = _arrays(path, header)
        for name, target in targets.items():
            here, there = rows[checkpoint_header.axis_of(name)]
            if "." in name and not any("." in known for known in arrays):
                why = "it was written by an earlier version of Parley, which kept different state"
                raise ParleyError(f"checkpoint: {path} cannot be resumed ({why}); start a new run")
            if name not in arrays or arrays[name].shape[1:] != target.shape[1:]:
                raise ParleyError(
                    f"checkpoint: {path} is from a different model or algorithm ({name})"
                )
            target[here] = torch.from_numpy(arrays[name][there]).to(target)
        # A worker's count of samples is split among its agents, which may be hosted elsewhere now.
        share = len(rows["A"][0]) / len(header["axes"]["A"])
        seconds = max(seconds, header["about"]["seconds"])
        others |= {k: v for k, v in header["about"].items() if k in ("clock", "frozen")}
        samples += share * header["about"]["samples"]
    for axis, keys in missing.items():
        if keys:
            what = f"agent {min(keys)[0]}" if axis == "A" else "edge {} -> {}".format(*min(keys))
            raise ParleyError(
                f"checkpoint: {folder(run, epoch)} has nothing for {what}: it is from a different "
                "graph, or incomplete"
            )
    about = {"epoch": epoch, "seconds": seconds, "samples": samples, **others}
    return Loaded(_filled(template, fields), about, sent, fields.get(STATISTICS))


def flat(state: Any, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a state by name; those of a part as ``part.name``."""
    found: dict[str, Tensor] = {}
    for name, value in (state._asdict() if state else {}).items():
        if isinstance(value, tuple):
            found |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[prefix + name] = value
    return found


def _filled(template: Any, values: Mapping[str, Tensor], prefix: str = "") -> Any:
    """A state like the template with these tensors."""
    if not template:
        return template
    found = {}
    for name, value in template._asdict().items():
        if isinstance(value, tuple):
            found[name] = _filled(value, values, f"{prefix}{name}.")
        else:
            found[name] = values.get(prefix + name)
    return type(template)(**found)


def models(run: Path, agents: Sequence[int]) -> Loaded | None:
    """The newest complete models of all these agents, whatever the graph was.

    The state is the models alone: what was kept on edges belongs to a different graph.
    """
    for epoch in reversed(epochs_present(run)):
        try:
            if (found := _models(run, epoch, agents)) is not None:
                return found
        except ParleyError:
            continue  # damaged: the one before it may be intact
    return None


def _models(run: Path, epoch: int, agents: Sequence[int]) -> Loaded | None:
    rows: dict[int, Tensor] = {}
    kept: dict[int, Tensor] = {}
    sent: dict[Kind, dict[int, int]] = {kind: {} for kind in KINDS}
    about: dict[str, Any] = {"epoch": epoch, "seconds": 0.0, "samples": 0}
    for path in _parts(folder(run, epoch)):
        header = _header(path)
        there = {key[0]: row for row, key in enumerate(header["axes"]["A"]) if key[0] in agents}
        if not there:
            continue
        arrays = _arrays(path, header)
        with _damage_named(path):
            rows |= {agent: torch.from_numpy(arrays["x_AD"][row]) for agent, row in there.items()}
            if STATISTICS in arrays:
                kept |= {a: torch.from_numpy(arrays[STATISTICS][r]) for a, r in there.items()}
            for kind, counts in sent.items():
                of_kind = arrays[f"sent_{kind}_A"]
                counts |= {agent: int(of_kind[row]) for agent, row in there.items()}
            if len({(row.shape, row.dtype) for row in rows.values()}) > 1:
                raise ValueError("its models differ in size from those of another worker")
        about["seconds"] = max(about["seconds"], header["about"]["seconds"])
        about["samples"] += header["about"]["samples"] * len(there) / len(header["axes"]["A"])
    if set(rows) != set(agents):
        return None
    counted = {kind: torch.tensor([of[a] for a in agents]) for kind, of in sent.items()}
    b_AS = torch.stack([kept[a] for a in agents]) if kept else None
    return Loaded(torch.stack([rows[a] for a in agents]), about, counted, b_AS)


def _folders(run: Path) -> list[tuple[int, Path]]:
    """The folder of each epoch, whatever is in it, newest last."""
    found = ((path.name.removeprefix("epoch-"), path) for path in run.glob("checkpoint/epoch-*"))
    return sorted(
        (int(number), path) for number, path in found if re.fullmatch("[0-9]{1,9}", number)
    )


def _parts(path: Path) -> list[Path]:
    return sorted(path.glob("worker-*.safetensors"))


def _complete(run: Path, epoch: int, transport: Transport) -> bool:
    written = {key[0] for path in _parts(folder(run, epoch)) for key in _header(path)["axes"]["A"]}
    return written.issuperset(transport.placement.hosted)


def _axes(transport: Transport) -> dict[str, list[list[int]]]:
    """What each row of an axis stands for: an agent, or an edge as [sender, receiver]."""
    number = transport.placement.number
    edges = [[number(sender), number(receiver)] for sender, receiver in transport.topology.edges]
    incoming = [edges[e] for e in transport.edges.incoming]
    outgoing = [edges[e] for e in transport.edges.outgoing]
    return {"A": [[a] for a in transport.placement.hosted], "I": incoming, "O": outgoing}


def _array(name: str, value: Tensor) -> "np.ndarray[Any, Any]":
    if checkpoint_header.axis_of(name) not in checkpoint_header.AXES:
        raise TypeError(
            f"{name}: the name of a state's field must end in its axes, like x_AD or e_ID"
        )
    return np.ascontiguousarray(value.detach().cpu().numpy())


def _check(array: "np.ndarray[Any, Any]") -> int:
    return zlib.crc32(array.tobytes(), zlib.crc32(f"{array.dtype} {array.shape}".encode()))


def _header(path: Path) -> dict[str, Any]:
    """The metadata stored with the tensors."""
    with _damage_named(path), regular(path), safe_open(path, "np") as file:
        metadata = file.metadata()
        if str(zlib.crc32(metadata["parley"].encode())) != metadata["check"]:
            raise ValueError("its header does not match its checksum")
        return checkpoint_header.checked(parse_json(metadata["parley"]))


def _arrays(path: Path, header: dict[str, Any]) -> dict[str, "np.ndarray[Any, Any]"]:
    checks, axes = header["checks"], header["axes"]
    with _damage_named(path), regular(path), safe_open(path, "np") as file:
        arrays = {name: file.get_tensor(name) for name in checks}
        for name, array in arrays.items():
            if _check(array) != checks[name]:
                raise ValueError(f"{name} does not match its checksum")
            if array.ndim < 1 or len(array) != len(axes[checkpoint_header.axis_of(name)]):
                raise ValueError(f"{name} does not have a row for each of its axis")
            if array.dtype.kind not in "fiu":
                raise ValueError(f"{name} does not hold numbers")
        return arrays


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, KeyError, TypeError, ValueError, ArithmeticError, OSError) as error:
        raise ParleyError(
            f"checkpoint: {path} is damaged ({error}); remove {path.parent} "
            "to continue from the checkpoint before it"
        ) from None
