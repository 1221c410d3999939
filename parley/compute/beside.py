"""What a model's code keeps beside its tensors: counters, and generators of random numbers.

Neither a trace nor a gradient shows them. Looked at are the global generators, and whatever can be
reached from the attributes, classes and hooks of layers: through containers, objects, and what
functions name, enclose or have as defaults.
"""

import inspect
import itertools
import random
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

MOST_ITEMS = 1000
"""Of a container."""
DEEPEST = 6
"""Steps from a layer."""
SMALL = 64
"""Numbers in an array or tensor that may be a counter."""
_OF_EVERY_LAYER = {"training", *nn.Module().__dict__}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_CONTAINERS = (list, dict, set, deque)
_AROUND = (MethodType, BuiltinMethodType, partial, property, staticmethod, classmethod)
_NOT_THEIRS = {"torch", "numpy", *sys.stdlib_module_names} - {"__main__"}


class Known(NamedTuple):
    """Something that code may change."""

    state: Any
    what: str
    draws: bool
    """Whether it is a generator of random numbers."""


class Beside:
    """What the code of a model, and of a function that is called with it, keeps as it is now.

    >>> class Counting(nn.Identity):
    ...     calls = 0
    ...     def forward(self, x): self.calls += 1; return x
    >>> model = Counting()
    >>> before = Beside(model)
    >>> model(torch.zeros(1))
    tensor([0.])
    >>> before.changed().what
    "the model (Counting) changes its attribute 'calls' whenever it is called"
    """

    def __init__(self, model: nn.Module, *functions: object) -> None:
        self._model, self._functions = model, functions
        self._known = _known(model, functions)

    def changed(self) -> Known | None:
        """Something that is different or new by now; a generator if there is one."""
        now = _known(self._model, self._functions)
        found = [
            each
            for place, each in now.items()
            if place not in self._known or each.state != self._known[place].state
        ]
        return max(found, key=lambda each: each.draws, default=None)


class Attributes:
    """The attributes of a model's layers, with the contents of those that are containers."""

    def __init__(self, model: nn.Module) -> None:
        self._attributes = [(layer, dict(layer.__dict__)) for layer in model.modules()]
        self._contents = [
            (value, value.copy())
            for _, attributes in self._attributes
            for name, value in attributes.items()
            if isinstance(value, _CONTAINERS) and name not in _OF_EVERY_LAYER
        ]

    def restore(self) -> None:
        """Gives the layers back what they had."""
        for layer, attributes in self._attributes:
            layer.__dict__.clear()
            layer.__dict__.update(attributes)
        for value, contents in self._contents:
            value.clear()
            (value.update if isinstance(value, dict | set) else value.extend)(contents)


def named(path: str, layer: nn.Module) -> str:
    """A layer as it is called in messages."""
    kind = type(layer).__name__
    return f"layer {path} ({kind})" if path else f"the model ({kind})"


def code_of_its_own(model: nn.Module) -> str:
    """Which layer does something else than its class says; empty if none does. What is read from
    types has to know, as a hook may only act later."""
    for path, layer in model.named_modules():
        if any(layer.__dict__.get(hooks) for hooks in _HOOKS):
            return f"{named(path, layer)} has hooks"
        if "forward" in layer.__dict__:
            return f"{named(path, layer)} has a forward of its own"
    return ""


def _known(model: nn.Module, functions: tuple[object, ...]) -> dict[str, Known]:
    found: dict[str, Known] = {}
    seen: set[int] = set()

    def look(place: str, value: Any, where: str, name: str, left: int) -> None:
        drawn = _generator(value)
        state = _state(value) if drawn is None else drawn
        if state is not None:
            does = f"changes {name} whenever it is called"
            if drawn is not None:
                does = f"draws random numbers from a generator that is not torch's own: {name}"
            found[place] = Known(state, f"{where} {does}", drawn is not None)
        elif left and id(value) not in seen:
            seen.add(id(value))
            for inside, each, other in _inside(value):
                look(f"{place}/{inside}", each, where, other or name, left - 1)

    whole = named("", model)
    for name, state in (
        ("Python's global generator", random.getstate()),
        ("NumPy's global generator", _comparable(np.random.get_state(legacy=False))),
    ):
        found[name] = Known(state, f"{whole} draws random numbers from {name}", True)
    for path, layer in model.named_modules():
        where = named(path, layer)
        for name, value in layer.__dict__.items():
            if name in _HOOKS or name not in _OF_EVERY_LAYER:
                look(f"{path}/{name}", value, where, f"its attribute {name!r}", DEEPEST)
        look(f"{path}/class", type(layer), where, "its class", DEEPEST)
    for number, function in enumerate(functions):
        look(f"function {number}", function, "the loss", "something of its own", DEEPEST)
    return found


def _inside(value: Any) -> Iterator[tuple[str, Any, str]]:
    """What can be reached from something: a place, a value, and its name if that is another one."""
    if isinstance(value, (*_CONTAINERS, tuple)):
        yield "length", len(value), ""
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in itertools.islice(items, MOST_ITEMS):
            yield repr(key), item, ""
    elif isinstance(value, _AROUND):
        for name in ("__func__", "__self__", "func", "args", "keywords", "fget"):
            yield name, getattr(value, name, None), ""
    elif isinstance(value, GeneratorType):
        yield "locals", value.gi_frame and value.gi_frame.f_locals, ""
    elif isinstance(value, ModuleType) or not _is_theirs(value):
        return
    elif isinstance(value, FunctionType):
        yield from _around(value)
    elif isinstance(value, type):
        for of in filter(_is_theirs, value.__mro__):
            for name, each in vars(of).items():
                yield f"{of.__name__}.{name}", each, f"its attribute {name!r}"
    else:
        yield "class", type(value), ""
        for name, each in getattr(value, "__dict__", {}).items():
            yield name, each, ""
        for of in type(value).__mro__:
            for name, each in vars(of).items():
                if isinstance(each, MemberDescriptorType):  # of __slots__
                    yield name, getattr(value, name, None), ""


def _is_theirs(value: Any) -> bool:
    """Whether a function, a class or the class of a value was written by users, or for them."""
    of = value if isinstance(value, type | FunctionType) else type(value)
    return str(of.__module__).partition(".")[0] not in _NOT_THEIRS


def _around(function: FunctionType) -> Iterator[tuple[str, Any, str]]:
    """Defaults, variables around a function, and globals that it names, also in other modules."""
    plain = inspect.unwrap(function)
    if not isinstance(plain, FunctionType):
        return
    yield "defaults", plain.__defaults__, "a default of its code"
    yield "keywords", plain.__kwdefaults__, "a default of its code"
    for name, cell in zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True):
        with suppress(ValueError):  # not assigned yet
            yield name, cell.cell_contents, f"{name!r}, which is not its own"
    names = _names(plain.__code__)
    for name in sorted(names & plain.__globals__.keys()):
        value = plain.__globals__[name]
        yield name, value, f"{name!r}, which is not its own"
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] not in _NOT_THEIRS:
            for other in sorted(names & vars(value).keys()):
                yield f"{name}.{other}", vars(value)[other], f"{other!r}, which is not its own"


def _names(code: CodeType) -> set[str]:
    inner = (_names(part) for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*inner)


def _state(value: Any) -> Any:
    """Something that is equal as long as nothing has changed; None for what is not looked into."""
    if isinstance(value, int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
        with suppress(TypeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that some cannot be pickled one day
            return repr(value.__reduce__())
    if isinstance(value, np.ndarray) and value.size <= SMALL:
        return repr(value)
    if isinstance(value, Tensor) and value.numel() <= SMALL and not value.is_meta:
        return repr(value.tolist())
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
