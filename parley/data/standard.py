"""Standardising tables over the training rows of all agents. Those on different hosts tell each
other how many rows they have, and the mean and spread of each column, but never a row.

Axes: n rows, f inputs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field, FiniteFloat
from typing_extensions import TypedDict

from parley.data.samples import Samples
from parley.data.tables import Form
from parley.errors import ParleyError

MOST_ROWS = 1 << 40


class Moments(TypedDict):
    """What an agent says about the inputs that its table became."""

    rows: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    means: list[FiniteFloat]
    squares: list[Annotated[FiniteFloat, Field(ge=0)]]
    """Of each input, the sum of squared differences from its mean."""


def moments(samples: Samples) -> Moments:
    """Of the rows of one agent."""
    rows_nf = samples.inputs.double()
    mean_f = rows_nf.mean(0)
    squares_f = (rows_nf - mean_f).square().sum(0)
    return {"rows": len(rows_nf), "means": mean_f.tolist(), "squares": squares_f.tolist()}


def agreed(form: Form, said: Mapping[int, Moments]) -> Form:
    """The form of tables whose numbers are standardised over all rows, given what each agent says.

    >>> from parley.data.tables import Column
    >>> each = {0: {"rows": 1, "means": [0.0], "squares": [0.0]},
    ...         2: {"rows": 3, "means": [4.0], "squares": [0.0]}}
    >>> agreed(Form((Column("age"),)), each).columns[0].mean
    3.0
    """
    inputs = sum(len(column.values) or 1 for column in form.columns)
    each = dict(sorted(said.items()))  # whoever adds them up has the same bits
    for agent, of_agent in each.items():
        if not len(of_agent["means"]) == len(of_agent["squares"]) == inputs:
            raise ParleyError(f"data: what agent {agent} says is not about {inputs} columns")
    made, following = [], 0
    for column in form.columns:
        place, following = following, following + (len(column.values) or 1)
        if column.values:  # text: each of its inputs is 0 or 1
            made.append(column)
            continue
        rows, mean, squares = 0, 0.0, 0.0
        for of_agent in each.values():
            more, step = of_agent["rows"], of_agent["means"][place] - mean
            squares += of_agent["squares"][place] + step * step * rows * more / (rows + more)
            rows += more
            mean += step * more / rows
        std = math.sqrt(squares / rows)
        if not (math.isfinite(mean) and math.isfinite(std)):
            raise ParleyError(f"data: column {column.name} has values that are too large")
        # A constant column carries no information: leave its deviation alone.
        made.append(replace(column, mean=mean, std=std or 1.0))
    return Form(tuple(made))


class Said(TypedDict):
    """What a host says about the columns of its agents' tables."""

    kept: list[tuple[FiniteFloat, Annotated[FiniteFloat, Field(gt=0)]]] | None
    """The mean and the deviation of each column, if the run or the model that it continues has
    them already."""
    agents: dict[str, Moments]
    """By their numbers."""


def settled(form: Form, said: Sequence[Said]) -> Form:
    """The form that all hosts use: the one that some have kept, or else what all rows give."""
    kept = [host["kept"] for host in said if host["kept"] is not None]
    if any(each != kept[0] or len(each) != len(form.columns) for each in kept):
        because = "some hosts continue with other means and deviations of the columns than others"
        raise ParleyError(f"data: {because}; start all from the same run")
    if not kept:
        known = {int(a): m for host in said for a, m in host["agents"].items() if a.isdecimal()}
        return agreed(form, known)
    pairs = zip(form.columns, kept[0], strict=True)
    return Form(tuple(replace(column, mean=mean, std=std) for column, (mean, std) in pairs))


def together(form: Form, parts: Sequence[Samples]) -> Form:
    """The same where the rows of all agents are at hand."""
    return agreed(form, {agent: moments(samples) for agent, samples in enumerate(parts)})


def standardised(samples: Samples, form: Form) -> Samples:
    """Rows as the form wants them, in single precision."""
    each = [column for column in form.columns for _ in column.values or (None,)]
    mean_f = torch.tensor([column.mean for column in each], dtype=torch.float64)
    std_f = torch.tensor([column.std for column in each], dtype=torch.float64)
    rows_nf = (samples.inputs.double() - mean_f) / std_f
    return Samples(rows_nf.to(torch.float32), samples.targets)
