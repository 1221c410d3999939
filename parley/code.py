"""A user's own function by name: ``module:function``, imported from this host's own path.

Code runs only where the host itself has named it or allowed its module: what comes in a file that
hosts share is only a name.
"""

import importlib
import re
import sys
from collections.abc import Callable, Collection
from typing import Any

from parley.errors import BadValue

VALID = "module:function, importable from the current folder"


def is_code(name: str) -> bool:
    """Whether it names a function.

    >>> is_code("wards:focal"), is_code("huber")
    (True, False)
    """
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name) is not None


def module_of(name: str) -> str:
    """The module that a name refers to."""
    return name.partition(":")[0]


def function_of(field: str, name: str, allowed: Collection[str]) -> Callable[..., Any]:
    """What a name refers to, imported if its module is allowed.

    >>> function_of("loss", "math:sqrt", ["math"])(4)
    2.0
    >>> function_of("loss", "math:sqrt", [])
    Traceback (most recent call last):
    parley.errors.BadValue: loss: 'math:sqrt' is not valid (it is Python code, and a file that
    others may have written does not make this host run code); valid: with --allow-code math
    """
    module, _, attribute = name.partition(":")
    if module not in allowed:
        because = "it is Python code, and a file that others may have written does not make this "
        because += "host run code"
        raise BadValue(field, name, f"with --allow-code {module}", because)
    if "" not in sys.path:
        sys.path.insert(0, "")  # the current folder, as with python -m
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the module does when it is imported
        first = (str(error).splitlines() or [""])[0]
        raise BadValue(field, name, VALID, f"{type(error).__name__}: {first}") from error
    if not callable(found):
        raise BadValue(field, name, VALID, f"it is a {type(found).__name__}")
    made: Callable[..., Any] = found
    return made
