"""``parley algorithms``."""

import json

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
