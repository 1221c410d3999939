"""A user's own algorithm or part on the command line: ``--algorithm module:Class``, or
``ngc+module:Class``.

Only flags can name one. A file may come from somebody else, and reading it must not run code.
"""

import inspect
from typing import Any

from parley.algorithms import Algorithm, Part, find, is_own
from parley.algorithms.combinations import named_with
from parley.errors import BadValue
from parley.user_code import allow_named, imported


def own_algorithm(spec: str) -> dict[str, Any] | None:
    """The table of an experiment for ``module:Class``, or ``ngc+module:Class`` with a part, with
    any ``:option=value`` after it; None for the name of one of Parley's algorithms."""
    place, settings = named_with(spec, "algorithm")
    own = [word.strip() for word in place.split("+") if is_own(word.strip())]
    if not own:
        return None
    found = imported(own[0], "algorithm", "module:Class")
    if "+" in place or (isinstance(found, type) and issubclass(found, Part)):
        allow_named({"algorithm": place})
        return {"name": find(place), **settings}
    if isinstance(found, Algorithm):
        return {"name": found.kind, **found.settings(given=True), **settings}
    if not (isinstance(found, type) and issubclass(found, Algorithm)) or inspect.isabstract(found):
        because = "it is not a complete subclass of parley.algorithms.Algorithm, nor a part"
        raise BadValue("algorithm", place, "a class with init and step, or an instance", because)
    return {"name": found, **settings}
