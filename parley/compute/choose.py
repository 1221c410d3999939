"""The table of engines, and which of them is fastest for a model on this machine."""

import hashlib
import json
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from filelock import FileLock
from torch import nn

from parley.cache import cache_folder
from parley.compute import compiled as fused
from parley.compute import dense as stacked
from parley.compute import kernels
from parley.compute.agreement import Agreement
from parley.compute.compiled import FusedEngine
from parley.compute.dense import StackedEngine
from parley.compute.engine import Engine, LoopEngine, VmapEngine
from parley.compute.failing import failing_layer
from parley.compute.precision import FULL
from parley.compute.task import Task
from parley.data import Batch
from parley.errors import BadValue, unknown_name
from parley.files import make_folder, write_atomically

log = logging.getLogger(__name__)

Shape = tuple[int, ...] | None
"""Of one input, where it is known."""


def _no_kernels(task: Task, shape: Shape) -> str:
    return _only_float32(task) or fused.supports(task, shape) or kernels.reason()


def _no_vmap(task: Task, shape: Shape) -> str:
    if task.random or getattr(task.model, "loop_only", False):
        return "the model draws random numbers or cannot be batched"
    if any(isinstance(m, nn.modules.conv._ConvNd) for m in task.model.modules()):
        return "batched convolutions become grouped ones, which are slow"
    return ""


def _only_float32(task: Task) -> str:
    """Why an engine that does not leave products to torch cannot compute a task."""
    return "" if task.precision == FULL else f"it computes in float32, not {task.precision}"


ENGINES: dict[str, tuple[type[Engine], Callable[[Task, Shape], str]]] = {
    engine.name: (engine, reason)
    for engine, reason in (
        (FusedEngine, _no_kernels),
        (StackedEngine, lambda task, shape: _only_float32(task) or stacked.unsupported(task)),
        (VmapEngine, _no_vmap),
        (LoopEngine, lambda task, shape: ""),
    )
}
"""Each engine, and why it is not to be tried for a task (nothing: it may be)."""


def check_name(name: str) -> None:
    """Refuses an engine that does not exist."""
    if name not in (*ENGINES, "auto"):
        raise unknown_name("engine", name, [*ENGINES, "auto"])


def build(name: str, task: Task, seed: int = 0, threads: int = 1) -> Engine:
    """The engine of that name; ``auto`` is settled by `fastest`."""
    check_name(name)
    return ENGINES[name][0](task, seed, threads)


def check(name: str, task: Task, batch: Batch) -> None:
    """Refuses an engine that was asked for and cannot do this task, or does something else."""
    engine = build(name, task)
    if name == "loop":
        return
    agreement = Agreement(task, batch)  # where the loop fails, the model itself does not work
    try:
        because = _otherwise(agreement.difference(engine))
    except BadValue:
        raise
    except Exception as error:  # whatever a model does that an engine cannot
        layer = failing_layer(task.model, lambda: agreement.difference(engine))
        said = (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0]
        because = ": ".join(filter(None, (layer, said)))
    if because:
        raise BadValue("engine", name, "loop, auto", because)


def _otherwise(what: str) -> str:
    return f"{what} would not be what the model's own code gives" if what else ""


def missed(task: Task, shape: Shape = None) -> str:
    """What keeps a task from the compiled kernels: no compiler, or the layer that they do not know.

    Nothing where it was not to be expected: in float64, or on a GPU.
    """
    if task.dtype != torch.float32 or task.start().device.type != "cpu":
        return ""
    if why := fused.supports(task, shape):
        return f"no compiled kernels for this model: {why}"
    if task.precision != FULL and kernels.available():
        how = "--precision full is usually faster with them"
        return f"no compiled kernels, which compute in float32: {how}"
    return kernels.advice()


def candidates(task: Task, shape: Shape = None) -> list[str]:
    """Engines worth a try for a task, the likely fastest first.

    >>> candidates(Task(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Softsign())))
    ['vmap', 'loop']
    """
    fit = _fitting(task, shape)
    # vmap does for any model what the first two do for those they know, and slower.
    return [name for name in fit if name != "vmap" or fit[0] == "vmap"]


def _fitting(task: Task, shape: Shape) -> list[str]:
    return [name for name in ENGINES if not reason_against(name, task, shape)]


def reason_against(name: str, task: Task, shape: Shape = None) -> str:
    """Why an engine is not worth a try for a task; empty if it is."""
    return ENGINES[name][1](task, shape)


def fastest(task: Task, batch: Batch) -> str:
    """The name of the fastest engine for a task on batches like this one, of those that compute
    what the loop does.

    Found by a short trial of each candidate; remembered for this model and machine.
    """
    names: list[str] = []
    fit = _fitting(task, tuple(batch.inputs.shape[2:]))
    agreement = Agreement(task, batch) if len(fit) > 1 else None
    for name in fit:
        if name == "vmap" and names:
            continue
        if agreement is None or name == "loop" or _agrees(name, agreement):
            names.append(name)
    if len(names) == 1 or names[0] == "vmap":
        # Of a model of which nothing is known but its name, nothing can be remembered; and a trial
        # of its speed could end otherwise the next time, and change the last digits of a run.
        return names[0]
    memory = cache_folder() / "engines.json"
    parts = (repr(task.model), task.sizes, batch.inputs.shape[1:], task.dtype, names)
    made_of = (torch.__version__, kernels.identity(), kernels.processor())
    about = (*map(str, parts), *made_of, batch.inputs.device.type)
    key = hashlib.sha256("\0".join(about).encode()).hexdigest()[:20]
    known = _remembered(memory)
    if known.get(key) not in names:
        seconds = {name: _trial(name, task, batch) for name in names}
        return _settled(memory, key, names, min(names, key=lambda name: seconds[name]))
    return known[key]


def _agrees(name: str, agreement: Agreement) -> bool:
    """Whether an engine can do a task, and does what the loop does; if not, that is said."""
    try:
        with warnings.catch_warnings():
            # Vmap warns where it falls back to a slow loop; others pass on what the model says.
            warnings.simplefilter("error" if name == "vmap" else "ignore")
            because = _otherwise(agreement.difference(build(name, agreement.task)))
    except Exception as error:  # whatever a model does that an engine cannot
        log.debug("engine %s cannot compute this model: %s", name, error)
        return False
    if because:
        log.info("engine %s is not used: %s", name, because)
    return not because


def _remembered(memory: Path) -> dict[str, str]:
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _settled(memory: Path, key: str, names: Sequence[str], found: str) -> str:
    """Remembers the outcome of a trial. Runs that started together have each made one: the first to
    write decides for all, or their last digits could differ."""
    # A cache that cannot be written costs a trial each time, no more.
    with suppress(OSError):
        make_folder(memory.parent)
        with FileLock(f"{memory}.lock", timeout=LOCK_SECONDS):
            known = _remembered(memory)
            if known.get(key) not in names:
                write_atomically(memory, json.dumps(known | {key: found}, indent=1))
                return found
            return known[key]
    return found


TRIALS, TRIAL_SECONDS = 3, 0.05
LOCK_SECONDS = 30.0
"""A file that somebody else has locked for longer is not written."""


def _trial(name: str, task: Task, batch: Batch) -> float:
    """Seconds for one pair among as many as there are agents."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = build(name, task)
        _seconds(engine, batch, 1)  # the first call has set-up to do
        # Small models are what engines differ in by their number; large ones take their time.
        pairs = int(TRIAL_SECONDS / _seconds(engine, batch, 1))
        pairs = min(max(pairs, 1), len(batch.sizes))
        return min(_seconds(engine, batch, pairs) / pairs for _ in range(TRIALS))


def _seconds(engine: Engine, batch: Batch, pairs: int) -> float:
    rows = range(pairs)
    x_PD = engine.task.start().expand(pairs, -1).clone()
    started = time.perf_counter()
    engine.gradients(x_PD, batch, rows, rows)
    return time.perf_counter() - started
