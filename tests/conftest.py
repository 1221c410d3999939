"""Shared by all tests: one thread, and nothing written outside the test's own folder."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# No deadline, since a busy machine is not a fault; the same examples each time, so that a red test
# stays red until it is mended.
settings.register_profile("parley", deadline=None, derandomize=True)
settings.load_profile("parley")
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Local copies of the hub's datasets, where there are any."""
    root = Path(
        os.environ.get("PARLEY_DATA_ROOT", Path(__file__).parents[1] / ".." / "shared" / "data")
    )
    if not root.is_dir():
        pytest.skip(f"no local datasets: set PARLEY_DATA_ROOT (looked in {root})")
    return root.resolve()
