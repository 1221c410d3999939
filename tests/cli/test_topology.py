"""``parley topology``."""

import json
from pathlib import Path

import numpy as np
import pytest


def test_topology(command):
    code, out, _ = command("topology ring --agents 10 --picture ring.png --parameters 1000")
    assert code == 0 and "spectral gap" in out and "metropolis: symmetric, doubly stoch" in out
    assert out.count(" 0.33") == 30 and Path("ring.png").read_bytes()[:4] == b"\x89PNG"
    figures = json.loads(command("topology star --agents 5 --parameters 1000 --json")[1])
    assert (figures["diameter"], figures["degree_min"], figures["degree_max"]) == (2, 1, 4)
    assert figures["spectral_gap"] == pytest.approx(0.2)
    assert np.array(figures["weight_matrix"]).sum(0) == pytest.approx(np.ones(5))
    # 1.6 messages for each agent, of 32 bytes and 4000, or of 32 bytes, 4 and 125.
    assert figures["round_megabytes_models"] == pytest.approx(1.6 * 4032e-6, abs=1e-6)
    assert figures["round_megabytes_cross_gradients_1bit"] == pytest.approx(1.6 * 161e-6, abs=1e-6)
    code, out, _ = command("topology directed-ring --agents 12")
    assert code == 0 and "some one-way" in out and "not symmetric, doubly stochastic" in out
    Path("graph.txt").write_text("0 1\n1 2\n")
    assert json.loads(command("topology file:graph.txt --json")[1])["agents"] == 3
