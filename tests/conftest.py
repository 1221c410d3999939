"""Shared by all tests: one thread, and nothing written outside the test's own folder."""

import os
from pathlib import Path
from typing import Any

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
    "test_digests::test_workers_that_the_run_starts_itself_give_the_same",
    "store/test_checkpoint::test_killed_at_any_moment_it_ends_with_the_same_numbers",
    "store/test_repeat::test_from_the_command_line",
    "test_first_contact::test_a_machine_without_a_compiler_says_what_is_used_instead",
    "test_first_contact::test_other_systems",
    "watch/test_progress::test_a_notebook_gets_one_display_without_widgets_and_shows_the_plot",
    *("data/test_data::test_real_datasets", "data/test_data::test_real_imagenette"),
    "results/test_report::test_the_same_plots_as_pictures",
    "results/test_report::test_the_command_writes_the_page_beside_the_runs",
    "cluster/test_membership::test_one_that_dies_right_after_settling_a_roster",
    "test_lock::test_a_file_that_was_changed_is_not_installed",
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
    *("algorithms/test_algorithms", "dash/test_dash_page", "results/test_web"),
    *("cluster/test_hosts", "store/test_lock", "results/test_report", "watch/test_trackers"),
    *("compute/test_fused", "wire/test_apart", "reproduce/test_theory", "algorithms/test_field"),
)
"""These begin first, or one of xdist's workers would be left alone with one of them at the end."""


def _group(test: str) -> str:
    """Tests of a file share what its first one has made, so they stay together."""
    name = test.partition(".py")[0].removeprefix("tests/")
    if name in MEASURING:
        return "measuring"
    return test.partition("[")[0] if name in APART else name


def _turn(item: pytest.Item) -> int:
    group = _group(item.nodeid).partition(".py")[0].removeprefix("tests/")
    return LONGEST.index(group) if group in LONGEST else len(LONGEST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Which tests are slow, and which come first."""
    for item in items:
        name = item.nodeid.partition(".py")[0].removeprefix("tests/")
        test = f"{name}::{getattr(item, 'originalname', item.name)}"
        fixtures = getattr(item, "fixturenames", ())
        if name in SLOW or test in SLOW or SLOW_FIXTURES.intersection(fixtures):
            item.add_marker(pytest.mark.slow)
    items.sort(key=_turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives each group to one of xdist's workers, in the order in which they were collected.

    Marks of xdist would not do: it writes the group into a test's id, where pytest 9.2 no longer
    looks, and every test would go to any worker.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    config.option.loadscopereorder = False
    return Groups(config, log)


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
