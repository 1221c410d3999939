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


SLOW = (
    *("cluster/test_launch", "cluster/test_faults", "cluster/test_heal", "cluster/test_hosts"),
    *("peers/test_join", "peers/test_strangers", "peers/test_heal", "peers/test_wire"),
    *("cluster/test_join", "cluster/test_suspicious", "store/test_power", "store/test_lock"),
    *("wire/test_bytes", "wire/test_links", "dash/test_dash_page", "results/test_web"),
    *("test_docs", "test_benchmarks", "store/test_folders", "reproduce/test_reproduce"),
    *("compute/test_sanitizers", "test_digests::test_two_workers_give_the_same"),
)
"""What starts hosts or browsers, kills processes or runs long: not part of `make check`."""
MEASURING = (
    "peers/test_wire",
    "wire/test_bytes",
    "wire/test_links",
    "cluster/test_heal",
    "test_benchmarks",
)
"""Files whose tests measure an interface or the clock: one at a time, by one of xdist's workers."""


# First of all: xdist reads the groups in the same hook, and its own would come before this one.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Which tests are slow, and which must not run beside each other."""
    for item in items:
        name = item.nodeid.partition(".py")[0].removeprefix("tests/")
        test = f"{name}::{getattr(item, 'originalname', item.name)}"
        if name in SLOW or test in SLOW:
            item.add_marker(pytest.mark.slow)
        # Tests of a file share what its first one has made, so they stay together.
        item.add_marker(pytest.mark.xdist_group("measuring" if name in MEASURING else name))


@pytest.fixture(scope="session")
def cache_of_all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all of xdist's workers, since building the kernels takes more than ten seconds."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"


@pytest.fixture(autouse=True)
def _own_cache(cache_of_all: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_CACHE", str(cache_of_all))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Local copies of the hub's datasets, where there are any."""
    root = Path(
        os.environ.get("PARLEY_DATA_ROOT", Path(__file__).parents[1] / ".." / "shared" / "data")
    )
    if not root.is_dir():
        pytest.skip(f"no local datasets: set PARLEY_DATA_ROOT (looked in {root})")
    return root.resolve()
