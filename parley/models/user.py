"""A user's own model by name: what its function or class is called with."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from parley.errors import BadValue
from parley.user_code import brief, function_of

OFFERED = ("input_shape", "classes")
"""What a function is given if it has a parameter of that name."""


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
    if not classes:
        del offered["classes"]  # the task has none
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
    wanted = [n for n in offered if n in named] if passes is None else passes
    arguments = {**{n: offered[n] for n in wanted}, **options}
    try:
        made = function(**arguments)
    except BadValue:
        raise
    except Exception as error:  # whatever the user's code may raise
        raise BadValue("model", name, _given(arguments, offered), brief(error)) from error
    if not isinstance(made, nn.Module):
        because = f"it returned a {type(made).__name__}"
        raise BadValue("model", name, "a function that returns an nn.Module", because)
    return made


def _given(arguments: Mapping[str, Any], offered: Mapping[str, Any]) -> str:
    """What a function has to succeed with."""
    given = " and ".join(arguments) or "no arguments"
    others = " or ".join(name for name in offered if name not in arguments)
    more = f"a parameter named {others} gets that too, and " if others else ""
    return f"a function that succeeds with {given}; {more}--model-option sets others"
