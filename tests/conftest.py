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
    *("compute/test_sanitizers", "test_stopping::test_all_workers_hear_of_it"),
    "algorithms/test_own::test_on_two_workers_it_is_what_it_is_on_one",
    *("algorithms/test_own::test_it_is_resumed", "test_cache::test_a_planted_library_does_not_run"),
    "cli/test_main::test_the_command_in_a_process_of_its_own",
    "compute/test_fused::test_a_broken_library_is_built_anew_and_a_whole_one_is_used_again",
    "dash/test_dash::test_a_real_run_while_active_and_after_it_was_killed",
    "store/test_status::test_stopped_is_told_from_killed",
    "sweep/test_compare::test_runs_side_by_side_stopped_and_resumed_are_those_one_by_one",
    "sweep/test_compare::test_runs_end_with_a_command_that_is_killed",
)
"""What starts hosts, kills processes, compiles or runs long: not part of `make check`."""
SLOW_FIXTURES = {"chromium", "logged", "on_two_workers", "spread_out"}
"""A browser, trackers, and many processes: whoever asks for one of them is slow, too."""
MEASURING = (
    "peers/test_wire",
    "wire/test_bytes",
    "wire/test_links",
    "cluster/test_heal",
    "test_benchmarks",
)
"""Files whose tests measure an interface or the clock: one at a time, by one of xdist's workers."""
APART = ("algorithms/test_algorithms", "test_digests", "compute/test_sanitizers")
"""Long files whose functions share nothing: each may go to another of xdist's workers."""
LONGEST = (
    *("measuring", "compute/test_sanitizers", "cluster/test_launch", "store/test_power"),
    *("test_digests", "test_docs", "cluster/test_faults", "reproduce/test_reproduce"),
    *("peers/test_join", "wire/test_transport", "cluster/test_suspicious", "peers/test_heal"),
    *(
        "algorithms/test_algorithms",
        "dash/test_dash_page",
        "results/test_web",
        "cluster/test_hosts",
    ),
    *("cluster/test_hosts", "store/test_lock", "results/test_report", "watch/test_trackers"),
    *("compute/test_fused", "wire/test_apart", "reproduce/test_theory", "algorithms/test_field"),
)
"""These begin first, or one of xdist's workers would be left alone with one of them at the end."""


def _group(name: str, function: str) -> str:
    """Tests of a file share what its first one has made, so they stay together."""
    if name in MEASURING:
        return "measuring"
    return f"{name}::{function}" if name in APART else name


def _turn(item: pytest.Item) -> int:
    [mark] = item.iter_markers("xdist_group")
    file = str(mark.args[0]).partition("::")[0]
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)


# First of all: xdist reads the groups in the same hook, and its own would come before this one.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Which tests are slow, which must not run beside each other, and which come first."""
    for item in items:
        name = item.nodeid.partition(".py")[0].removeprefix("tests/")
        function = getattr(item, "originalname", item.name)
        fixtures = getattr(item, "fixturenames", ())
        if name in SLOW or f"{name}::{function}" in SLOW or SLOW_FIXTURES.intersection(fixtures):
            item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.xdist_group(_group(name, function)))
    items.sort(key=_turn)


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
