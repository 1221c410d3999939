"""What a model's code keeps beside its tensors: counters, and generators of random numbers.

A trace does not show them. Looked at are the global generators, the attributes of layers, the
globals and the variables around functions that their code names, and the items of lists,
dictionaries, sets and tuples among these.
"""

import copy
import inspect
import itertools
import random
from collections import deque
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

MOST_ITEMS = 1000
"""Of a container."""
_OF_EVERY_LAYER = {"training", *nn.Module().__dict__}
_CONTAINERS = (list, dict, set, deque)


class Known(NamedTuple):
    """Something that code may change."""

    name: str
    state: Any
    own: bool = False
    """Whether it is an attribute of the layer."""
    draws: bool = False
    """Whether it is a generator of random numbers."""


class Beside:
    """What a model's code keeps, as it is now.

    >>> class Counting(nn.Identity):
    ...     calls = 0
    ...     def forward(self, x): self.calls += 1; return x
    >>> model = Counting()
    >>> before = Beside(model)
    >>> model(torch.zeros(1))
    tensor([0.])
    >>> [(path, known.name) for path, known in before.changed()]
    [('', 'calls')]
    >>> before.restore(); model.calls
    0
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._attributes = [(layer, dict(layer.__dict__)) for layer in model.modules()]
        self._contents = [
            (value, copy.copy(value))
            for _, attributes in self._attributes
            for name, value in attributes.items()
            if isinstance(value, _CONTAINERS) and name not in _OF_EVERY_LAYER
        ]
        self._known = _known(model)

    def changed(self) -> list[tuple[str, Known]]:
        """What is different or new by now, each with the path of its layer; generators first."""
        now = _known(self._model)
        found = [
            (path, now[path, place])
            for path, place in now
            if now[path, place] != self._known.get((path, place))
        ]
        return sorted(found, key=lambda each: not each[1].draws)

    def restore(self) -> None:
        """Gives the layers back the attributes that they had, with their contents."""
        for layer, attributes in self._attributes:
            layer.__dict__.clear()
            layer.__dict__.update(attributes)
        for value, contents in self._contents:
            value.clear()
            (value.update if isinstance(value, dict | set) else value.extend)(contents)


def _known(model: nn.Module) -> dict[tuple[str, str], Known]:
    everywhere = {"random": random.getstate(), "numpy": np.random.get_state(legacy=False)}
    everywhere["torch"] = torch.get_rng_state()
    found = {
        ("", f"global {name}"): Known(name, _comparable(state), draws=True)
        for name, state in everywhere.items()
    }
    for path, layer in model.named_modules():
        own = {n: v for n, v in layer.__dict__.items() if n not in _OF_EVERY_LAYER}
        # Attributes of its class, too: the first change makes them its own.
        written = _written(type(layer))
        own = {n: v for of in written for n, v in vars(of).items() if not n.startswith("__")} | own
        functions = [value for value in own.values() if isinstance(value, FunctionType)]
        for is_own, values in ((True, own), (False, _around(functions))):
            for name, value in values.items():
                for place, each in _with_items(name, value):
                    if (state := _state(each)) is not None:
                        known = Known(name, state, is_own, draws=_generator(each) is not None)
                        found[path, f"{'own' if is_own else 'global'} {place}"] = known
    return found


def _written(kind: type) -> list[type]:
    """The classes of a layer that are not torch's, the most general first."""
    mine = (of for of in kind.__mro__ if of is not object)
    return [of for of in mine if of.__module__.split(".")[0] != "torch"][::-1]


def _around(functions: list[FunctionType]) -> dict[str, Any]:
    """The globals that functions name, and the variables of the functions around them."""
    found: dict[str, Any] = {}
    for function in functions:
        plain = inspect.unwrap(function)
        if not isinstance(plain, FunctionType):
            continue
        names = _names(plain.__code__)
        found |= {n: plain.__globals__[n] for n in names if n in plain.__globals__}
        for name, cell in zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
    return found


def _names(code: CodeType) -> set[str]:
    inner = (_names(part) for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*inner)


def _with_items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield name, value
    if isinstance(value, (*_CONTAINERS, tuple)):
        yield f"len({name})", len(value)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in itertools.islice(items, MOST_ITEMS):
            yield f"{name}[{key!r}]", item


def _state(value: Any) -> Any:
    """Something that is equal as long as nothing has changed; None for what is not looked into."""
    if (drawn := _generator(value)) is not None:
        return drawn
    if isinstance(value, int | float | str | bytes | itertools.count):
        return repr(value)
    return None


def _generator(value: Any) -> Any:
    """Where a generator of random numbers stands; None for anything else."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return _comparable(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return _comparable(value.get_state(legacy=False))
    if isinstance(value, torch.Generator):
        return _comparable(value.get_state())
    return None


def _comparable(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _comparable(value) for name, value in state.items()}
    if isinstance(state, Tensor):
        state = state.numpy()
    return state.tobytes() if isinstance(state, np.ndarray) else state
