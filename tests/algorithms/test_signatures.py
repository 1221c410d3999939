"""Named algorithms have typed signatures, which a type checker checks and an editor completes."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import parley
from parley.algorithms import ALGORITHMS, Algorithm, Combination, compose

ROOT = Path(__file__).parents[2]
COMBINATIONS = [kind for kind in ALGORITHMS.values() if issubclass(kind, Combination)]

SNIPPET = """
import parley
from parley.algorithms import Clustering, Recipe

parley.NGC(alpha=0.5, momentum=0.9, nesterov=True, gradient_at="mixed")
parley.NGC(alhpa=0.5)
parley.NGC(alpha="half")
parley.NGC(gradient_at="there")
parley.CompNGC(scope="tensor").alpha + parley.NGC().gamma
parley.CompNGC(scope="tensors")
parley.NGC(scope="tensor")
parley.QGM(mu=0.8, local_steps=4, codec="sign")
parley.CGA(mu=0.8)
Recipe(gradient=Clustering(alpha=0.5)).label
Recipe(gradient=0.5)
Clustering(beta=1)
parley.DMSGD(momentum="heavy")
"""
WRONG = {6: "alhpa", 7: "alpha", 8: "gradient_at", 10: "scope", 11: "scope", 13: "mu",
         15: "gradient", 16: "beta", 17: "momentum"}  # fmt: skip
"""Which lines are errors, and the argument that each error names."""


def test_a_type_checker_finds_wrong_options(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(SNIPPET, encoding="utf-8")
    words = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "snippet.py"]
    words += ["--config-file=", "--cache-dir", str(ROOT / ".mypy_cache" / "snippet")]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, env={"MYPYPATH": str(ROOT)}
    )
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith("snippet.py:"):
            _, number, kind, message = line.split(":", 3)
            assert kind.strip() == "error"
            found[int(number)] = message
    assert set(found) == set(WRONG), done.stdout + done.stderr
    for number, name in WRONG.items():
        assert name in found[number]


@pytest.mark.parametrize("kind", ALGORITHMS.values(), ids=ALGORITHMS)
def test_a_signature_has_the_options_with_their_defaults(kind: type[Algorithm]) -> None:
    shown = inspect.signature(kind).parameters
    assert {name: p.default for name, p in shown.items()} == {
        name: field.default for name, field in kind.options().items()
    }
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in shown.values())


@pytest.mark.parametrize("kind", COMBINATIONS, ids=lambda kind: kind.name)
def test_options_are_those_of_the_parts(kind: type[Combination]) -> None:
    """The same types, ranges and words; a part's options may also be fixed."""
    of_parts = {name: f for part in kind.kinds.values() for name, f in part.options().items()}
    for name, field in kind.options().items():
        if name not in ("gradient_at", "local_steps"):
            assert field.annotation == of_parts[name].annotation
            assert field.metadata == of_parts[name].metadata
            assert field.description == of_parts[name].description
            if kind is not parley.Quantized:
                assert field.default == of_parts[name].default
    fixed = set(of_parts) - set(kind.options())
    assert fixed <= {"codec"}


def test_combinations_have_a_signature_too() -> None:
    shown = inspect.signature(compose("ngc+qgm")).parameters
    assert shown["alpha"].default == 1.0 and shown["mu"].default == 0.9
