"""Pydantic's checks of fields, with errors in this package's words."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError, model_validator
from pydantic.fields import FieldInfo

from parley.errors import BadValue


def first_error(error: ValidationError, fields: Mapping[str, FieldInfo]) -> BadValue:
    """The first of pydantic's complaints, in this package's words."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else error.title
    valid = valid_values(fields[name]) if name in fields else str(first["msg"])
    return BadValue(name, first["input"], valid)


def kind_of(field: FieldInfo) -> Any:
    """A field's type, without the None that means "not given".

    >>> kind_of(FieldInfo.from_annotation(int | None))
    <class 'int'>
    """
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    optional = len(kinds) == 1 and type(None) in get_args(field.annotation)
    return kinds[0] if optional else field.annotation


def valid_values(field: FieldInfo) -> str:
    """The values a field accepts, in words.

    >>> from pydantic import Field
    >>> valid_values(FieldInfo.from_annotated_attribute(float, Field(1.0, ge=0, le=1)))
    'a number from 0 to 1'
    """
    kind = kind_of(field)
    if get_origin(kind) is Literal:
        return ", ".join(str(choice) for choice in get_args(kind))
    nouns: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}
    noun = nouns.get(kind, "text")
    limits: dict[str, object] = {}
    for limit in field.metadata:
        limits |= {
            k: v for k in ("ge", "gt", "le", "lt") if (v := getattr(limit, k, None)) is not None
        }
    match limits:
        case {"ge": low, "le": high}:
            return f"{noun} from {low} to {high}"
        case {"gt": low, "le": high}:
            return f"{noun} above {low}, at most {high}"
        case {"ge": low, "lt": high}:
            return f"{noun} from {low} to below {high}"
        case {"ge": low}:
            return f"{noun} of at least {low}"
        case {"gt": low}:
            return f"{noun} above {low}"
    return noun


class Checked(BaseModel):
    """Fields in which True is not the number 1, which pydantic would make of it."""

    @model_validator(mode="before")
    @classmethod
    def _numbers_are_not_truth_values(cls, given: Any) -> Any:
        for name, value in given.items() if isinstance(given, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field and kind_of(field) in (int, float):
                raise BadValue(name, value, valid_values(field))
        return given
