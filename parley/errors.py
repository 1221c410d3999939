"""What users see when something they gave is wrong: one line, no traceback."""

import difflib
from collections.abc import Iterable


class ParleyError(Exception):
    """A user's mistake or a run that cannot go on; the message is complete in one line."""


class BadValue(ParleyError):
    """A value that is not valid: names the field, the value, and what would be valid.

    >>> str(BadValue("alpha", 1.5, "a number from 0 to 1"))
    'alpha: 1.5 is not valid; valid: a number from 0 to 1'
    >>> str(BadValue("topology", "chain", "a connected graph", because="agent 3 is cut off"))
    "topology: 'chain' is not valid (agent 3 is cut off); valid: a connected graph"
    """

    def __init__(self, field: str, value: object, valid: str, because: str = "") -> None:
        reason = f" ({because})" if because else ""
        super().__init__(f"{field}: {value!r} is not valid{reason}; valid: {valid}")
        self.field = field


def unknown_name(field: str, name: str, names: Iterable[str]) -> BadValue:
    """The error for a name that is not in a table, with the nearest one that is.

    >>> str(unknown_name("algorithm", "ncg", ["dpsgd", "ngc"]))
    "algorithm: 'ncg' is not valid (did you mean 'ngc'?); valid: dpsgd, ngc"
    """
    names = sorted(names)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    because = f"did you mean {near[0]!r}?" if near else ""
    return BadValue(field, name, ", ".join(names), because)
