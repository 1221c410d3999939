"""A user's own model by name: ``module:function``, or a class, imported from this host's own path.

Code runs only where the host itself has named it or allowed its module: what comes in a file that
hosts share, or in the folder of a run, is only a name.
"""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from parley.errors import BadValue

ALLOWED = "PARLEY_ALLOW_CODE"
"""The environment variable with the modules that models may be imported from, comma-separated; it
reaches the processes that this one starts."""
VALID = "module:function, or module:Class, importable from the current folder"
OFFERED = ("input_shape", "classes")
"""What a function is given if it has a parameter of that name."""


def is_code(name: str) -> bool:
    """Whether a model is named as code.

    >>> is_code("mymodels:resnet"), is_code("mlp"), is_code("hf:owner/name"), is_code("hf:minilm")
    (True, False, False, False)
    """
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name) is not None and name[:3] != "hf:"


def module_of(name: str) -> str:
    """The module of a model that is named as code."""
    return name.partition(":")[0]


def allow(modules: Iterable[str]) -> None:
    """From now on, models may be imported from these modules, in this process and in those that it
    starts. For what a user of this host has said: never for what comes from a shared file."""
    known = [*filter(None, os.environ.get(ALLOWED, "").split(",")), *modules]
    for module in known:
        if not re.fullmatch(r"[A-Za-z_][\w.]*", module):
            raise BadValue("allow_code", module, "the name of a Python module")
    if known:
        os.environ[ALLOWED] = ",".join(dict.fromkeys(known))


def check_allowed(name: str, allowed: Collection[str] = (), remedy: str = "") -> None:
    """Refuses code from a module that nobody on this host has allowed.

    >>> check_allowed("mymodels:net", ["mymodels"])
    >>> check_allowed("mymodels:net")
    Traceback (most recent call last):
    parley.errors.BadValue: model: 'mymodels:net' is not valid (it is Python code, which a file
    alone does not make this host run); valid: with --allow-code mymodels, or
    PARLEY_ALLOW_CODE=mymodels
    """
    module = module_of(name)
    if module not in (*allowed, *os.environ.get(ALLOWED, "").split(",")):
        because = "it is Python code, which a file alone does not make this host run"
        valid = remedy or f"with --allow-code {module}, or {ALLOWED}={module}"
        raise BadValue("model", name, valid, because)


def function_of(name: str) -> Callable[..., Any]:
    """What a name refers to, imported."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # the current folder, as with python -m
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the module does when it is imported
        raise BadValue("model", name, VALID, _brief(error)) from error
    if not callable(found):
        raise BadValue("model", name, VALID, f"it is a {type(found).__name__}")
    made: Callable[..., Any] = found
    return made


def called(
    name: str,
    input_shape: tuple[int, ...],
    classes: int,
    options: Mapping[str, Any],
    passes: Sequence[str] | None = None,
) -> nn.Module:
    """The model that a user's function makes of the options, and of what it asks for by name."""
    function = function_of(name)
    offered: dict[str, Any] = {"input_shape": input_shape, "classes": classes}
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some callables of C have none
        parameters = {}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = [
        p.name for p in parameters.values() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    for option in options:
        if parameters and option not in named and not takes_all:
            valid = ", ".join(n for n in named if n not in OFFERED) or "no options: it has none"
            raise BadValue("model", option, valid, f"{name} has no such option")
    wanted = [n for n in OFFERED if n in named] if passes is None else passes
    arguments = {**{n: offered[n] for n in wanted}, **options}
    try:
        made = function(**arguments)
    except BadValue:
        raise
    except Exception as error:  # whatever the user's code may raise
        raise BadValue("model", name, "a function that succeeds", _brief(error)) from error
    if not isinstance(made, nn.Module):
        because = f"it returned a {type(made).__name__}"
        raise BadValue("model", name, "a function that returns an nn.Module", because)
    return made


def _brief(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
