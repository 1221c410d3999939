"""Checks what an algorithm hands back, so that a mistake in one is named where it is made.

Axes: A agents hosted here, I their incoming edges, O their outgoing edges, D flat parameters.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from parley.algorithms.base import Algorithm, Stepped
from parley.errors import BadValue

AXES = {"A": "agents", "I": "incoming edges", "O": "outgoing edges"}


class Seam:
    """The bounds of what `init` and `step` may return, for the agents of one worker."""

    def __init__(self, algorithm: Algorithm, rows: Mapping[str, int], size: int) -> None:
        """`rows` is the length of each axis, and `size` that of D."""
        self._class, self._rows, self._size = type(algorithm).__name__, rows, size

    def state(self, state: Any, method: str = "init") -> Any:
        """The state, if it is one."""
        fields = getattr(state, "_fields", None)
        if fields is None or isinstance(state, Stepped):
            valid = "a NamedTuple of tensors, whose first field is x_AD"
            raise self._wrong(method, type(state).__name__, valid)
        if not fields or fields[0] != "x_AD":
            valid = "a NamedTuple whose first field is x_AD, the models of the agents"
            raise self._wrong(method, f"{type(state).__name__}({', '.join(fields)})", valid)
        self._check_fields(method, state)
        return state

    def step(self, stepped: Any) -> Stepped:
        """The result of a step, if it is one."""
        if not isinstance(stepped, Stepped):
            valid = "Stepped(state, loss_A)"
            raise self._wrong("step", type(stepped).__name__, valid)
        self.state(stepped.state, "step")
        for name in ("loss_A", "active_A"):
            value = getattr(stepped, name)
            if value is None and name == "active_A":
                continue
            if not isinstance(value, Tensor) or value.shape != (self._rows["A"],):
                valid = f"{name} of shape [{self._rows['A']}], one value for each agent here"
                raise self._wrong("step", f"{name} of {_shape(value)}", valid)
        if stepped.active_A is not None and stepped.active_A.dtype != torch.bool:
            raise self._wrong("step", f"active_A of {stepped.active_A.dtype}", "active_A of bool")
        return stepped

    def _check_fields(self, method: str, state: Any, prefix: str = "") -> None:
        for name, value in zip(getattr(state, "_fields", ()), state, strict=False):
            field = prefix + name
            if isinstance(value, tuple):
                self._check_fields(method, value, f"{field}.")
                continue
            if value is None:
                continue
            axis = name.rpartition("_")[2][:1] if "_" in name else ""
            if axis not in AXES:
                valid = "names that end in their axes, like x_AD, e_ID or sent_OD"
                raise self._wrong(method, f"a state with a field {field}", valid)
            shape = tuple(value.shape) if isinstance(value, Tensor) else ()
            wide = name.endswith(f"_{axis}D") and shape[1:] != (self._size,)
            if shape[:1] != (self._rows[axis],) or wide:
                raise self._misshapen(method, field, value)

    def _misshapen(self, method: str, field: str, value: object) -> BadValue:
        axis = field.rpartition("_")[2][:1]
        rows, wide = self._rows[axis], field.endswith("D")
        shape = f"[{rows}, {self._size}]" if wide else f"[{rows}, …]"
        axes = f"{AXES[axis]} × parameters" if wide else f"one row for each of the {AXES[axis]}"
        valid = f"{field} of shape {shape}: {axes}"
        return self._wrong(method, f"{field} of {_shape(value)}", valid)

    def _wrong(self, method: str, found: str, valid: str) -> BadValue:
        return BadValue("algorithm", self._class, valid, f"its {method} returned {found}")


def _shape(value: object) -> str:
    return f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
