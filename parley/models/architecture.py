"""How a model is built, in words that a file can keep: by its name, or by a Python function."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from parley.models import build
from parley.models.user import called

MOST_AXES = 16


class Architecture(BaseModel):
    """A model without its weights.

    >>> Architecture(model="logistic", input_shape=(1, 8, 8), classes=10).build()[1]
    Linear(in_features=64, out_features=10, bias=True)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(max_length=4096)
    """Its name, module:function, or what a Python program called it."""
    kind: Literal["name", "code", "python"] = "name"
    """What that is. A model that a Python program gave can be built by that program only."""
    options: dict[str, int | float | str | bool] = {}
    input_shape: tuple[int, ...] = Field(max_length=MOST_AXES)
    classes: int = Field(ge=0)
    """Of the outputs for each input, or for each place in it; 0: the task has none."""
    passes: tuple[Literal["input_shape", "classes"], ...] | None = None
    """What a function is called with besides options; by default, whichever it has a name for."""

    @property
    def reads_weights(self) -> bool:
        """Whether building it reads a checkpoint, so that the checkpoint determines its size."""
        from_hub = self.model.startswith("hf:") and not self.options.get("fresh")
        return self.kind == "name" and (from_hub or bool(self.options.get("pretrained")))

    def build(self) -> nn.Module:
        """A new model; code must have been allowed by whoever calls this."""
        if self.kind == "name":
            return build(self.model, self.input_shape, self.classes, **self.options)
        return called(self.model, self.input_shape, self.classes, self.options, self.passes)

    def described(self) -> dict[str, Any]:
        """For a file: what is not needed is left out."""
        return self.model_dump(mode="json", exclude_none=True)
