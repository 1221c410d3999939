"""Datasets passed from Python: tensors, pairs, torch datasets."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parley.data.decode import columns_of, decoded, values_of
from parley.data.samples import Samples
from parley.data.targets import Wrong, described, fitted
from parley.errors import BadValue
from parley.measures import CLASSIFICATION


def from_user(
    data: Sequence[Any], agents: Sequence[int] | None = None, task: str = CLASSIFICATION
) -> list[Samples]:
    """A user's own datasets, one per agent, as tensors.

    Each is a pair (inputs, targets) of tensors or arrays, a torch dataset of (input, target), or a
    Hugging Face dataset with an Image and a ClassLabel column. uint8 inputs are images of 0..255;
    other integers are kept as they are (token IDs); anything else becomes float32. Targets have the
    form that `parley.data.targets` describes for each task.

    >>> [samples] = from_user([([[0.5, 1.0], [2.0, 3.0]], [0, 1])])
    >>> samples.inputs.dtype, samples.targets
    (torch.float32, tensor([0, 1]))
    """
    if not len(data):
        raise BadValue("data", [], "one dataset per agent")
    agents = range(len(data)) if agents is None else agents
    samples = [
        _from_user(dataset, agent, task) for agent, dataset in zip(agents, data, strict=True)
    ]
    first = samples[0].inputs
    for agent, one in zip(agents, samples, strict=True):
        if one.inputs.shape[1:] != first.shape[1:] or one.inputs.dtype != first.dtype:
            raise BadValue(
                "data",
                f"agent {agent}",
                f"inputs like agent {agents[0]}'s: {described(first)}",
                because=f"its inputs are {described(one.inputs)}",
            )
    return samples


def _from_user(dataset: Any, agent: int, task: str) -> Samples:
    def wrong(valid: str, because: str = "") -> BadValue:
        return BadValue("data", f"agent {agent}", valid, because)

    if isinstance(dataset, Samples):
        pair: Any = (dataset.inputs, dataset.targets)
    elif isinstance(dataset, tuple | list) and len(dataset) == 2:
        pair = dataset
    elif hasattr(dataset, "features") and hasattr(dataset, "cast_column"):
        columns = columns_of(dataset, f"agent {agent}")
        if columns.are_texts:
            raise wrong("images, or a pair (inputs, targets) with token IDs", "it has text")
        [inputs] = decoded([dataset], columns.inputs, f"agent {agent}")
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
    try:
        targets = fitted(task, targets)
    except Wrong as error:
        raise wrong(error.valid, error.found) from None
    if inputs.dtype != torch.uint8:
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
