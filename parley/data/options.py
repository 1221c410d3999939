"""How a dataset is read: its options, validated."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from parley.data.preparation import Preparation
from parley.data.tables import Told
from parley.errors import BadValue, unknown_name

MOST = 1_000_000
"""The largest length of a text or size of a vocabulary."""
MOST_SIDE = 4096
"""The largest side of images that are scaled or cropped."""


@dataclass(frozen=True)
class Options:
    """How a dataset is read: the options of `load`."""

    folder: str = ""
    """A folder to read a named dataset from instead of its usual location: a stand-in for it."""
    label: str = ""
    """The column with the classes; if empty, the dataset's usual one, or the first."""
    input: str = ""
    """The column with the images or texts; if empty, the first."""
    tokenizer: str = ""
    """For text: train (built from the training texts), a folder with tokenizer.json or vocab.txt,
    or a hub ID; if empty, the one that belongs to the model, or train."""
    length: int = 128
    """For text: the number of tokens kept; longer texts are truncated."""
    vocabulary: int = 30_522
    """For text: the maximum vocabulary size of a tokenizer built from it (BERT's size)."""
    target: str = ""
    """For tables: the column to predict, or several of them, comma-separated."""
    drop: str = ""
    """For tables: columns that are left out, comma-separated."""
    standardise: bool = True
    """For tables: whether columns of numbers are standardised, or used as they are."""
    labels: str = ""
    """For tables, and for agents with their own data: the names of all classes, comma-separated,
    if an agent may lack some of them."""
    resize: int = field(default=0, metadata={"most": MOST_SIDE})
    """For images of different sizes: they are scaled until their shorter side has this many pixels,
    then cropped to their central square."""
    mapped: bool = False
    """For images: whether those to train on stay on disk and are decoded when they are needed."""
    crop: int = field(default=0, metadata={"most": MOST_SIDE})
    """For images: the side of that square, by default `resize`; without `resize`, images are only
    cropped."""

    @property
    def preparation(self) -> Preparation:
        """What these options do to files of images."""
        return Preparation(self.resize, self.crop)

    @property
    def told(self) -> Told:
        """What they say about tables."""
        return Told.of(self.target, self.drop, self.standardise, self.labels)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Options":
        """From a table of options, validated.

        >>> Options.of({"lenght": 64})
        Traceback (most recent call last):
        parley.errors.BadValue: data: 'lenght' is not valid (did you mean 'length'?); valid: crop,
        drop, folder, input, label, labels, length, mapped, resize, standardise, target, tokenizer,
        vocabulary
        """
        known = {field.name: field for field in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise unknown_name("data", name, known)
            if known[name].type is str and not isinstance(value, str):
                raise BadValue(f"data.{name}", value, "text")
            if known[name].type is bool and not isinstance(value, bool):
                raise BadValue(f"data.{name}", value, "true or false")
            most = known[name].metadata.get("most", MOST)
            if known[name].type is int and (type(value) is not int or not 4 <= value <= most):
                raise BadValue(f"data.{name}", value, f"a whole number from 4 to {most}")
        made = cls(**values)
        for name in OF_TABLES:
            if name in values and not made.target:
                because = "data.target names no column to predict"
                raise BadValue(f"data.{name}", values[name], "none without data.target", because)
        if len({*made.told.labels}) < len(made.told.labels):
            raise BadValue("data.labels", made.labels, "names that are all different")
        if made.resize and made.crop > made.resize:
            because = f"data.resize is {made.resize}"
            raise BadValue("data.crop", made.crop, "at most data.resize", because)
        return made


OF_TEXTS = ("tokenizer", "length", "vocabulary")
OF_IMAGES = ("resize", "crop", "mapped")
OF_TABLES = ("drop", "standardise")
"""Options that only texts, only images, or only tables have."""
