"""A user's own algorithm on the command line: ``--algorithm module:Class``.

Only flags can name one. A file may come from somebody else, and reading it must not run code.
"""

import importlib
import inspect
import re
import sys
from typing import Any

from parley.algorithms import Algorithm
from parley.errors import BadValue
from parley.experiment import named_with

VALID = "module:Class, importable from the current folder"


def own_algorithm(spec: str) -> dict[str, Any] | None:
    """What ``module:Class`` or ``module:Class:option=value`` names, as a table of an experiment;
    None for the name of one of Parley's algorithms."""
    place, settings = named_with(spec, "algorithm")
    if not re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", place):
        return None
    module, _, name = place.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # the current folder, as with python -m
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BadValue("algorithm", place, VALID, str(error)) from error
    if isinstance(found, Algorithm):
        return {"name": found.kind, **found.settings(given=True), **settings}
    if not (isinstance(found, type) and issubclass(found, Algorithm)) or inspect.isabstract(found):
        because = "it is not a complete subclass of parley.algorithms.Algorithm"
        raise BadValue("algorithm", place, "a class with init and step, or an instance", because)
    return {"name": found, **settings}
