"""A user's own model, loss or metric by name: ``module:function``, or a class, imported from this
host's own path.

Code runs only where the host itself has named it or allowed its module: what comes in a file that
hosts share, or in the folder of a run, is only a name.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from parley.errors import BadValue

ALLOWED = "PARLEY_ALLOW_CODE"
"""The environment variable with the modules that code may be imported from, comma-separated; it
reaches the processes that this one starts."""
VALID = "module:function, or module:Class"
PART = r"(?:^|(?<=[+,\s]))[A-Za-z_][\w.]*:[A-Za-z_]\w*(?=$|[+:,\s])"
"""A part of the user's own in the names of algorithms: ``ngc+module:Class:option=value,dpsgd``."""


def is_code(name: str) -> bool:
    """Whether a name refers to code.

    >>> is_code("mymodels:resnet"), is_code("mlp"), is_code("hf:owner/name"), is_code("hf:minilm")
    (True, False, False, False)
    """
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name) is not None and name[:3] != "hf:"


def module_of(name: str) -> str:
    """The module of a name that refers to code."""
    return name.partition(":")[0]


def allow(modules: Iterable[str]) -> None:
    """From now on, code may be imported from these modules, in this process and in those that it
    starts. For what a user of this host has said: never for what comes from a shared file."""
    known = [*filter(None, os.environ.get(ALLOWED, "").split(",")), *modules]
    for module in known:
        if not re.fullmatch(r"[A-Za-z_][\w.]*", module):
            raise BadValue("allow_code", module, "the name of a Python module")
    if known:
        os.environ[ALLOWED] = ",".join(dict.fromkeys(known))


def allow_named(options: Mapping[str, Any]) -> None:
    """Allows the modules of the model, task, loss, metrics and parts of the algorithm in these
    options: for what a user of this host has typed or written in a program, which names the code it
    wants to run."""
    named = {field: value for field, value in options.items() if isinstance(value, str)}
    metrics = named.get("metrics", "").split(",")
    bare = [name.strip().removesuffix(":lower").removesuffix(":higher") for name in metrics]
    names = [*(named.get(field, "") for field in ("model", "task", "loss")), *bare]
    parts = re.findall(PART, named.get("algorithm", ""))
    allow(module_of(name) for name in [*parts, *names] if is_code(name))


def check_allowed(
    name: str, allowed: Collection[str] = (), remedy: str = "", field: str = "model"
) -> None:
    """Refuses code from a module that nobody on this host has allowed.

    >>> check_allowed("mymodels:net", ["mymodels"])
    >>> check_allowed("mymodels:net")
    Traceback (most recent call last):
    parley.errors.BadValue: model: 'mymodels:net' is not valid (it is Python code, which this host
    does not run just because a file names it); valid: with --allow-code mymodels, or
    PARLEY_ALLOW_CODE=mymodels
    """
    module = module_of(name)
    if module not in (*allowed, *os.environ.get(ALLOWED, "").split(",")):
        because = "it is Python code, which this host does not run just because a file names it"
        valid = remedy or f"with --allow-code {module}, or {ALLOWED}={module}"
        raise BadValue(field, name, valid, because)


def imported(name: str, field: str, valid: str = VALID) -> Any:
    """What ``module:name`` refers to, imported from the current folder or an installed package."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # the current folder, as with python -m
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the module does when it is imported
        valid = f"{valid}, importable from the current folder"
        raise BadValue(field, name, valid, brief(error)) from error


def function_of(name: str, field: str = "model") -> Callable[..., Any]:
    """The function or class that a name refers to, imported."""
    found = imported(name, field)
    if not callable(found):
        raise BadValue(field, name, VALID, f"it is a {type(found).__name__}")
    made: Callable[..., Any] = found
    return made


def allowed_function(field: str, name: str) -> Callable[..., Any]:
    """The function that a name refers to, imported if its module is allowed."""
    check_allowed(name, field=field)
    return function_of(name, field)


def brief(error: Exception) -> str:
    """The type of an error, and the first line of its message."""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
