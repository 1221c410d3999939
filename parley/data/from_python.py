"""Datasets passed from Python: tensors, pairs, torch datasets."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parley.data import tables
from parley.data.decode import Source, columns_of, decoded, values_of
from parley.data.options import Options
from parley.data.samples import Samples
from parley.data.targets import Wrong, described, fitted
from parley.errors import BadValue
from parley.measures import CLASSIFICATION


def from_user(
    data: Sequence[Any],
    agents: Sequence[int] | None = None,
    task: str = CLASSIFICATION,
    options: Mapping[str, Any] | None = None,
) -> list[Samples]:
    """A user's own datasets, one per agent, as tensors.

    Each is a pair (inputs, targets) of tensors or arrays, a torch dataset of (input, target), or a
    Hugging Face dataset with an Image and a ClassLabel column, or a table. uint8 inputs are images
    of 0..255; other integers are kept (token IDs); all else becomes float32. Targets have the
    form that `parley.data.targets` describes for each task. `options` are those of Hugging Face
    datasets and pandas frames: label, resize, crop, target, drop.

    >>> [samples] = from_user([([[0.5, 1.0], [2.0, 3.0]], [0, 1])])
    >>> samples.inputs.dtype, samples.targets
    (torch.float32, tensor([0, 1]))
    """
    if not len(data):
        raise BadValue("data", [], "one dataset per agent")
    agents = range(len(data)) if agents is None else agents
    chosen = Options.of(options or {})
    samples = [
        _from_user(dataset, agent, task, chosen)
        for agent, dataset in zip(agents, data, strict=True)
    ]
    first = samples[0].inputs
    for agent, one in zip(agents, samples, strict=True):
        if one.inputs.shape[1:] != first.shape[1:] or one.inputs.dtype != first.dtype:
            raise BadValue(
                "data",
                f"agent {agent}",
                f"inputs like agent {agents[0]}'s: {described(first)}{_remedy(first, one.inputs)}",
                because=f"its inputs are {described(one.inputs)}",
            )
        wanted = samples[0].targets
        if one.targets.shape[1:] != wanted.shape[1:]:
            valid = f"targets like agent {agents[0]}'s: {described(wanted)}"
            because = f"its targets are {described(one.targets)}"
            raise BadValue("data", f"agent {agent}", valid, because)
    return samples


def _remedy(first: Tensor, other: Tensor) -> str:
    """What helps against images of different sizes."""
    if not all(inputs.dtype == torch.uint8 and inputs.ndim == 4 for inputs in (first, other)):
        return ""
    if first.shape[1] != other.shape[1]:
        return ""
    side = min(*first.shape[2:], *other.shape[2:])
    return f"; --data-option resize={side} scales and crops images to squares"


def numbered(
    parts: Sequence[Samples], found: Sequence[str], names: Sequence[str], where: str
) -> list[Samples]:
    """Samples whose classes are numbered by the names that were `found` there, numbered by those
    that all agents have."""
    if strange := [name for name in found if name not in names]:
        because = f"it has the class {strange[0]}"
        raise BadValue("data", where, f"the classes {', '.join(names)}", because)
    number = torch.tensor([names.index(name) for name in found])
    return [Samples(part.inputs, number[part.targets]) for part in parts]


def is_dataset(dataset: Any) -> bool:
    """Whether it is a Hugging Face dataset."""
    return hasattr(dataset, "features") and hasattr(dataset, "cast_column")


def reads_options(dataset: Any) -> bool:
    """Whether a dataset is of a kind that options apply to."""
    return is_dataset(dataset) or tables.is_frame(dataset)


def is_table(dataset: Any, options: Options) -> bool:
    """Whether a dataset is read as a table."""
    return tables.is_frame(dataset) or (is_dataset(dataset) and bool(options.target))


def open_table(dataset: Any, where: str, options: Options) -> Any:
    """The table, if it is one and the options name a column to predict."""
    if not is_table(dataset, options):
        because = f"it is a {type(dataset).__name__}, and the training data are a table"
        raise BadValue("data", where, "a pandas frame or a Hugging Face dataset", because)
    if not options.target:
        listed = ", ".join(map(str, dataset.columns))
        raise BadValue("data.target", "", f"the column to predict, of {listed}", "it is a table")
    return tables.opened(dataset, where)


def _from_user(dataset: Any, agent: int, task: str, options: Options) -> Samples:
    def wrong(valid: str, because: str = "") -> BadValue:
        return BadValue("data", f"agent {agent}", valid, because)

    if isinstance(dataset, Samples):
        pair: Any = (dataset.inputs, dataset.targets)
    elif isinstance(dataset, tuple | list) and len(dataset) == 2:
        pair = dataset
    elif is_table(dataset, options):
        open_table(dataset, f"agent {agent}", options)
        raise wrong("tables only, or none", "it is a table, and other data are not")
    elif is_dataset(dataset):
        columns = columns_of(dataset, f"agent {agent}", options.label, options.input)
        if columns.are_texts:
            raise wrong("images, or a pair (inputs, targets) with token IDs", "it has text")
        source = Source("", None).sized(options)
        [inputs] = decoded([dataset], columns.inputs, f"agent {agent}", source)
        pair = (inputs, list(values_of(dataset, columns.label)))
    elif hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        items = [dataset[i] for i in range(len(dataset))]
        if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
            raise wrong("a dataset of pairs (input, target)")
        pair = ([x for x, _ in items], [y for _, y in items])
    else:
        found = f"it is a {type(dataset).__name__}"
        raise wrong("a pair (inputs, targets), a map-style torch dataset, or a HF dataset", found)

    try:
        inputs, targets = (_tensor(values) for values in pair)
    except (ValueError, TypeError, RuntimeError) as error:
        raise wrong("numeric inputs, all of the same shape", str(error).splitlines()[0]) from None
    if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
        found = f"inputs {list(inputs.shape)}, targets {list(targets.shape)}"
        raise wrong("as many inputs as targets", found)
    if not len(targets):
        raise wrong("at least one sample", "it is empty")
    if inputs.is_complex() or targets.is_complex():
        raise wrong("real numbers", "it has complex ones")
    try:
        targets = fitted(task, targets)
    except Wrong as error:
        raise wrong(error.valid, error.found) from None
    to_be_standardised = isinstance(dataset, Samples) and inputs.dtype == torch.float64
    if inputs.dtype != torch.uint8 and not to_be_standardised:
        whole = not (inputs.is_floating_point() or inputs.dtype == torch.bool)
        inputs = inputs.to(torch.int64 if whole else torch.float32)
    return Samples(inputs.contiguous(), targets.contiguous())


def _tensor(values: Any) -> Tensor:
    """Stacks anything that holds numbers; copies only if necessary."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    if len(values) and isinstance(values[0], Tensor):
        return torch.stack([value.detach().cpu() for value in values])
    return torch.from_numpy(np.array(values))
