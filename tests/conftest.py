"""Shared by all tests: one thread, and nothing written outside the test's own folder."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from parley.compute import kernels
from parley.compute.threads import usable_cores
from parley.watch.log import LOG, console

torch.set_num_threads(1)
# No deadline, since a busy machine is not a fault; the same examples each time, so that a red test
# stays red until it is mended.
settings.register_profile("parley", deadline=None, derandomize=True)
settings.load_profile("parley")
os.environ.setdefault("OMP_NUM_THREADS", "1")


SLOW = (
    *("cluster/test_launch", "cluster/test_faults", "cluster/test_hosts"),
    *("peers/test_join", "peers/test_strangers", "peers/test_heal", "peers/test_wire"),
    *("peers/test_rounds", "peers/test_features"),
    "peers/test_hosts::test_a_host_is_killed_and_replaced_by_another_machine",
    "peers/test_hosts::test_test_samples_on_an_absent_host_are_reported",
    *("cluster/test_join", "cluster/test_suspicious", "store/test_power", "store/test_lock"),
    *("wire/test_bytes", "wire/test_links", "dash/test_dash_page", "results/test_web"),
    *("test_docs", "test_examples", "test_benchmarks", "store/test_folders"),
    "reproduce/test_reproduce",
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
    "test_data_sizes::test_on_two_workers_it_is_what_it_is_on_one",
    "watch/test_progress::test_a_notebook_gets_one_display_without_widgets_and_shows_the_plot",
    *("data/test_data::test_real_datasets", "data/test_data::test_real_imagenette"),
    "results/test_report::test_the_same_plots_as_pictures",
    "results/test_report::test_the_command_writes_the_page_beside_the_runs",
    "test_lock::test_a_file_that_was_changed_is_not_installed",
    *("store/test_repeat", "reproduce/test_theory"),
    "dash/test_series::test_answers_are_bounded_however_many_records_there_are",
    "reproduce/test_guide::test_every_seed_runs_at_the_rate_that_won",
    "peers/test_views::test_never_two_views_of_one_number_and_training_goes_on",
    "peers/test_views::test_newcomers_join_and_whoever_is_removed_is_out_whatever_else_happens",
    "wire/test_apart::test_models_come_together_at_their_mean",
    "wire/test_apart::test_where_they_rest_does_not_depend_on_where_they_began",
    "graphs/test_topology::test_ten_thousand_agents_are_checked_without_a_dense_matrix",
    "graphs/test_topology::test_ten_thousand_agents_take_the_memory_of_their_edges",
    "data/test_mapped::test_memory_stays_below_the_size_of_the_dataset",
    "training/test_scoring::test_two_workers_record_what_one_does",
    "training/test_statistics::test_two_workers_give_the_same_to_the_bit",
    "api/test_runs::test_several_workers_give_the_same",
    "api/test_runs::test_every_worker_understands_a_mean_loss",
    "test_first_contact::test_training_loads_only_what_it_uses",
    "algorithms/test_own::test_it_is_compared_in_processes_of_its_own",
)
"""What starts hosts, kills processes, compiles or runs long: not part of `make check`."""
SLOW_FIXTURES = {
    *("chromium", "logged", "on_two_workers", "spread_out", "refusals", "uninterrupted"),
}
"""A browser, trackers, and many processes: whoever asks for one of them is slow, too."""
MEASURING = (
    *("peers/test_wire", "peers/test_rounds"),
    "wire/test_bytes",
    "wire/test_links",
    "test_benchmarks",
)
"""Files whose tests measure an interface or the clock: one at a time, by one of xdist's workers."""
APART = ("algorithms/test_algorithms", "test_digests", "compute/test_sanitizers")
"""Long files whose functions share nothing: each may go to another of xdist's workers."""
LONGEST = (
    *("measuring", "wire/test_transport", "cluster/test_launch", "compute/test_sanitizers"),
    *(
        "peers/test_heal",
        "peers/test_hosts",
        "results/test_report",
        "test_digests",
        "test_docs",
        "cluster/test_faults",
    ),
    *("dash/test_dash_page", "test_examples", "cluster/test_join", "peers/test_join"),
    *("store/test_lock", "peers/test_features", "cluster/test_hosts", "algorithms/test_algorithms"),
    *("sweep/test_compare", "graphs/test_sequences", "cluster/test_suspicious", "data/test_data"),
    *("api/test_runs", "store/test_power", "test_cache", "store/test_repeat", "store/test_status"),
    *("wire/test_apart", "watch/test_trackers", "compute/test_fused", "reproduce/test_reproduce"),
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
            # Real processes, ports and clocks on a machine that may do other things as well: one
            # more try, which the last lines report. Whoever fails twice has failed.
            item.add_marker(pytest.mark.flaky(reruns=1))
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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """More than there are cores: half of the time, slow tests wait for somebody's patience, and the
    fast ones for processes that they start."""
    return usable_cores() + 1 if config.option.markexpr == "not slow" else 2 * usable_cores()


def pytest_configure(config: pytest.Config) -> None:
    """Kernels that were built once for a checkout are used again, and the user's stay alone."""
    if hasattr(config, "cache"):
        os.environ["PARLEY_CACHE"] = str(config.cache.mkdir("parley"))


@pytest.fixture(scope="session", autouse=True)
def cache_of_all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all of xdist's workers, in which the kernels are: building them takes ten seconds."""
    base = tmp_path_factory.getbasetemp()
    made = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    made.mkdir(mode=0o700, exist_ok=True)
    if kernels.available():
        built = Path(kernels.library()._name)
        own = Path(shutil.copy2(built, tmp_path_factory.mktemp("kernels")))
        own.replace(made / built.name)  # there as a whole or not at all
    os.environ["PARLEY_CACHE"] = str(made)
    return made


@pytest.fixture
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons write an empty picture, since drawing one takes longer than small runs do; not
    for those who ask for `drawn`."""

    def empty(figure: object, out: Path) -> Path:
        out.touch()
        return out

    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("parley.results.curves.save", empty)


@pytest.fixture
def drawn() -> None:
    """For tests that look at a picture, where others of their file do not."""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """The command decides what SIGTERM does and what is shown: not for the tests after it."""
    signals, quiet = signal.getsignal(signal.SIGTERM), console.quiet
    level, handlers, propagate = LOG.level, list(LOG.handlers), LOG.propagate
    yield
    signal.signal(signal.SIGTERM, signals)
    console.quiet = quiet
    LOG.setLevel(level)
    LOG.handlers, LOG.propagate = handlers, propagate


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Local copies of the hub's datasets, where there are any."""
    root = Path(
        os.environ.get("PARLEY_DATA_ROOT", Path(__file__).parents[1] / ".." / "shared" / "data")
    )
    if not root.is_dir():
        pytest.skip(f"no local datasets: set PARLEY_DATA_ROOT (looked in {root})")
    return root.resolve()
