"""What users read: the value as they typed it, and one line whatever it was."""

import copy
import pickle

import pytest
from pydantic import Field
from pydantic.fields import FieldInfo

from parley import graphs, models
from parley.algorithms import ALGORITHMS
from parley.errors import BadValue, ParleyError, unknown_name
from parley.validation import valid_values


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.5, "1.5"),
        ("1.5", "1.5"),  # from the command line
        ("1e-3", "1e-3"),
        ("abc", "'abc'"),
        ("", "''"),
        ("a\nb", r"'a\nb'"),
        (True, "True"),
        ([1, 2], "[1, 2]"),
    ],
)
def test_a_value_looks_as_it_was_typed(value, shown):
    assert str(BadValue("lr", value, "a number")) == f"lr: {shown} is not valid; valid: a number"


def test_any_value_makes_one_line():
    class Long:
        def __repr__(self):
            return "line\n" * 1000

    message = str(BadValue("data", Long(), "data"))
    assert "\n" not in message and len(message) < 200


def test_what_is_missing_is_called_missing():
    assert str(BadValue("out", None, "a folder")) == "out: missing; valid: a folder"


def test_errors_survive_the_way_between_processes():
    error = BadValue("alpha", 2, "a number from 0 to 1", "it is too large")
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(copied) is BadValue
        assert (str(copied), copied.field) == (str(error), "alpha")
    assert str(pickle.loads(pickle.dumps(ParleyError("no")))) == "no"


def test_no_nearest_name_is_made_up():
    assert "did you mean" not in str(unknown_name("algorithm", "xyz", ["dpsgd", "ngc"]))
    # Each shares some letters with a name, and means something else.
    for name, names in [
        ("mesh", graphs.EXAMPLES), ("adam", ALGORITHMS), ("fedprox", ALGORITHMS),
        ("transformer", models.MODELS),
    ]:  # fmt: skip
        assert "did you mean" not in str(unknown_name("name", name, names)), name


@pytest.mark.parametrize(
    ("kind", "limits", "words"),
    [
        (int, {"ge": 1}, "a whole number of at least 1"),
        (float, {"gt": 0}, "a number above 0"),
        (float, {"gt": 0, "le": 1}, "a number above 0, at most 1"),
        (float, {"ge": 0, "lt": 1}, "a number from 0 to below 1"),
        (float, {"ge": 0, "le": 1}, "a number from 0 to 1"),
        (bool, {}, "true or false"),
        (str, {}, "text"),
    ],
)
def test_what_is_valid_in_words(kind, limits, words):
    field = FieldInfo.from_annotated_attribute(kind, Field(..., **limits))
    assert valid_values(field) == words


def test_a_long_number_is_cut_like_other_values() -> None:
    assert len(str(BadValue("keep", "1" * 5000, "a whole number"))) < 200


def test_a_value_that_cannot_be_shown_is_named_by_its_type() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, 16**10_000):
        assert f"a value of type {type(value).__name__} that" in str(
            BadValue("data", value, "text")
        )
