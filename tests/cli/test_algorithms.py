"""``parley algorithms``."""

import json
from pathlib import Path

import parley
from parley.algorithms import ALGORITHMS


def test_algorithms(command):
    code, out, _ = command("algorithms")
    assert code == 0 and all(name in out for name in ALGORITHMS)
    code, out, _ = command("algorithms ngc")
    assert code == 0 and "alpha = 1.0  [a number from 0 to 1]" in out
    assert "gradient_at = own, as run mixed" in out and "qp_floor" not in out
    assert json.loads(command("algorithms --json")[1]).keys() == ALGORITHMS.keys()
    defaults = json.loads(command("algorithms dpsgd --json")[1])
    assert defaults == {"dpsgd": parley.DPSGD().settings()}


def test_a_users_own_algorithm(command):
    """Its options, as they are behind its class on the command line."""
    lines = [
        "from pydantic import Field",
        "from parley.algorithms.exactdiffusion import ExactDiffusion",
        "class Mine(ExactDiffusion):",
        "    'Something of mine.'",
        "    name, title = 'mine', 'Mine'",
        "    beta: float = Field(0.3, ge=0, lt=1)",
        "    'β, the momentum on edges.'",
    ]
    Path("listed_here.py").write_text("\n".join(lines), encoding="utf-8")
    code, out, _ = command("algorithms listed_here:Mine")
    assert code == 0 and "Mine: Something of mine." in out
    assert "beta = 0.3  [a number from 0 to below 1]" in out and "β, the momentum on edges." in out
