"""Before anything is trained: what starting costs, and where it works."""

import os
import pkgutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import parley
import parley.cli
from parley.algorithms import ALGORITHMS
from parley.cli import main as entry
from parley.version import commit, full_version

ROOT = Path(__file__).parents[1]


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["train", "--help"], ["dash", "--help"]]
)
def test_help_and_version_do_not_load_torch(words: list[str]) -> None:
    code = """
        import sys
        from parley.cli.main import main
        sys.argv = ["parley", *sys.argv[1:]]
        try:
            main()
        finally:
            print("loaded", [name for name in ("torch", "scipy") if name in sys.modules])
    """
    done = python(code, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("loaded []\n")


def test_training_loads_only_what_it_uses(tmp_path: Path) -> None:
    """Each of these takes as long to import as the demo's training takes, or longer."""
    code = """
        import sys
        import parley, parley.cli.train
        parley.train(agents=3, epochs=1, out=sys.argv[1], progress=False)
        heavy = "matplotlib", "scipy.optimize", "sklearn", "pandas", "torch._dynamo", "sympy"
        print([name for name in heavy if name in sys.modules])
    """
    assert python(code, str(tmp_path / "run")).stdout == "[]\n"


def test_the_dashboard_does_not_load_torch_for_runs_that_are_complete(tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    parley.train(agents=3, epochs=1, out=tmp_path / "run", progress=False)
    code = """
        import sys
        from pathlib import Path
        import parley.dash.app, parley.dash.serve
        from parley.dash.runs import Runs
        [row] = Runs(Path(sys.argv[1])).listing()["runs"]
        print(row["label"], row["state"], "torch" in sys.modules)
    """
    assert python(code, str(tmp_path)).stdout == "NGC finished False\n"


def test_the_list_of_commands_is_that_of_the_commands() -> None:
    """The list is kept apart from them, so that it can be shown without loading them."""
    modules = {m.name for m in pkgutil.iter_modules(parley.cli.__path__)}
    shared = {"main", "flags", "fields", "options", "screen", "methods", "own_algorithm", "paper"}
    assert modules - shared == entry.COMMANDS.keys()
    for name, help_ in entry.COMMANDS.items():
        words = " ".join((entry.load(name).help or "").split())
        assert words.startswith(help_.rstrip(".")), name


def test_every_command_can_say_more_or_less() -> None:
    commands = [entry.load(name) for name in entry.COMMANDS]
    while commands:
        command = commands.pop()
        below = list(getattr(command, "commands", {}).values())
        commands += below
        flags = {flag for option in command.params for flag in option.opts}
        assert below or {"-v", "--verbose", "-q", "--quiet"} <= flags, command.name


def test_every_name_of_the_package_is_there() -> None:
    for name in parley.__all__:
        assert getattr(parley, name) is not None
    exported = [getattr(parley, name) for name in parley.__all__]
    assert all(algorithm in exported for algorithm in ALGORITHMS.values())
    assert set(parley._HOME_OF) | {"__version__"} == set(parley.__all__) <= set(dir(parley))
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = parley.nonsense


def test_the_version_names_the_commit() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    head = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    found = commit()
    assert found and head.startswith(found.removesuffix("-dirty"))
    assert full_version() == f"{parley.__version__} (commit {found})"


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_other_systems(tmp_path: Path, platform: str) -> None:
    """What Windows and macOS lack is taken away, and a small run is made and read."""
    code = """
        import sys, os, signal
        platform, out = sys.argv[1:]
        # These as they are here; only our own code meets another system.
        import torch, datasets, sklearn.datasets, filelock, matplotlib.pyplot, networkx, typer
        import multiprocessing.connection
        if platform == "win32":
            class Gone:
                def find_spec(self, name, path=None, target=None):
                    if name in ("fcntl", "resource", "pwd", "grp", "termios"):
                        raise ImportError(f"no {name} on this system")
            for name in ("fcntl", "resource", "pwd", "grp", "termios"):
                sys.modules.pop(name, None)
            sys.meta_path.insert(0, Gone())
            for name in ("O_NOFOLLOW", "O_DIRECTORY", "killpg", "setpgid", "sched_getaffinity"):
                delattr(os, name)
            for name in ("SIGKILL", "pthread_sigmask"):
                delattr(signal, name)
            multiprocessing.get_all_start_methods = lambda: ["spawn"]
        sys.platform = platform
        import parley
        result = parley.train(agents=3, epochs=2, out=out, progress=False)
        assert len(parley.load(out).records) == 2
        import parley.cli.train, parley.cli.main, parley.sweep.compare, parley.dash.runs
        from parley.store.status import held, is_held
        from pathlib import Path
        with held(Path(out)) as locked:
            print(locked, is_held(Path(out)), result.summary["peak_memory_mb"] > 0)
        print(is_held(Path(out)))
    """
    done = python(code, platform, str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    memory = platform != "win32"
    assert done.stdout == f"True True {memory}\nFalse\n"


def test_a_machine_without_a_compiler_says_what_is_used_instead(tmp_path: Path) -> None:
    code = """
        import parley
        parley.train(agents=3, epochs=1, engine="auto")
    """
    done = python(code, PATH="/nowhere", CC="", PARLEY_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert line.startswith("note: using engine stacked, with no compiled kernels: no C compiler")
    assert "install gcc or clang" in line
    switched_off = python(code, PATH="/nowhere", CC="", PARLEY_KERNELS="off")
    assert "note: " not in switched_off.stderr


def test_hints_name_our_distribution() -> None:
    """``parley`` on its own is someone else's package."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "parley").rglob("*.py")]
    for page in pages:
        assert "parley[" not in page.read_text(encoding="utf-8"), page
