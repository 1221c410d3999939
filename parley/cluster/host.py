"""A host's own part of a run: which agents live here, and where their data are.

All hosts share one experiment. What differs from host to host is in a small TOML file next to it,
or in flags, and no other host learns it except for the agents' numbers:

    agents = [0, 1]
    allow_code = ["mymodels"]    # modules that the experiment may name code from

    [data]
    0 = "/srv/ward-a"        # a folder
    1 = "wards:second"       # a Python function: module:function
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from parley.errors import BadValue
from parley.experiment import read_file
from parley.validation import first_error


class Host(BaseModel):
    """What only this host knows.

    >>> Host(data={"0": "/srv/ward-a"}).hosted()
    (0,)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    agents: tuple[int, ...] | None = None
    """Agents that live here; by default those in `data`, or a share of the unclaimed ones."""
    data: dict[int, str] = {}
    """For each agent here a folder, a hub ID owner/name, or module:function."""
    allow_code: tuple[str, ...] = ()
    """Modules that the model, loss and metrics of the shared experiment may be imported from."""

    @field_validator("agents")
    @classmethod
    def _each_once(cls, agents: tuple[int, ...] | None) -> tuple[int, ...] | None:
        return tuple(sorted(set(agents))) if agents is not None else None

    @classmethod
    def of(
        cls, file: Path | None = None, agents: str | None = None, data: Sequence[str] = ()
    ) -> "Host":
        """From a file and overriding flags: ``agents`` as 0,1 and ``data`` as 0=FOLDER each."""
        given = read_file(file, "host") if file else {}
        if agents is not None:
            try:
                given["agents"] = [int(number) for number in agents.split(",")]
            except ValueError:
                raise BadValue("agents_here", agents, "agent numbers, for example 0,1") from None
        places = {}
        for pair in data:
            number, equals, place = pair.partition("=")
            if not (number.isdecimal() and equals and place):
                raise BadValue("data_here", pair, "AGENT=PLACE, for example 0=/srv/ward-a")
            places[number] = place
        try:
            if places:
                given["data"] = {**given.get("data", {}), **places}
            return cls(**given)
        except ValidationError as error:
            raise first_error(error, cls.model_fields) from None
        except TypeError:
            raise BadValue("host", str(file), "a TOML file with agents and data") from None

    def hosted(self) -> tuple[int, ...] | None:
        """The agents that this process takes; None: a share of the unclaimed ones.

        If a launcher started several processes on this host, they share its agents.
        """
        agents = self.agents if self.agents is not None else tuple(sorted(self.data)) or None
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if agents is None or here == 1:
            return agents
        part = np.array_split(np.array(agents, dtype=int), here)
        return tuple(part[int(os.environ["LOCAL_RANK"])].tolist())
