"""A user's own algorithm on the command line: ``--algorithm module:Class``.

Only flags can name one. A file may come from somebody else, and reading it must not run code.
"""

import inspect
import re
from typing import Any

from parley.algorithms import WITH_OPTIONS, Algorithm
from parley.algorithms.combinations import named_with
from parley.errors import BadValue
from parley.user_code import imported


def own_algorithm(spec: str) -> dict[str, Any] | None:
    """What ``module:Class`` or ``module:Class:option=value`` names, as a table of an experiment;
    None for the name of one of Parley's algorithms."""
    place, settings = named_with(spec, "algorithm")
    if not re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", place):
        return None
    if place.partition(":")[0] in WITH_OPTIONS:
        return None  # ngc:alpha lacks a value, and no module of the user's is meant
    found = imported(place, "algorithm", "module:Class")
    if isinstance(found, Algorithm):
        return {"name": found.kind, **found.settings(given=True), **settings}
    if not (isinstance(found, type) and issubclass(found, Algorithm)) or inspect.isabstract(found):
        because = "it is not a complete subclass of parley.algorithms.Algorithm"
        raise BadValue("algorithm", place, "a class with init and step, or an instance", because)
    return {"name": found, **settings}
