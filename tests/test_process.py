"""What is changed in the process is changed in one module, and is as it was afterwards."""

import ctypes
import gc
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import parley
from parley import process

PACKAGE = Path(parley.__file__).parent
EFFECTS = re.compile(
    r"set_num_threads|setswitchinterval|mallopt|group_count|set_terminate|Function\.apply ="
    r"|gc\.(disable|enable|freeze)|os\.environ\[[^]]+\] = |os\.environ\.(update|setdefault|pop)"
    r"|signal\.(signal|pthread_sigmask)\(|set_default_(dtype|device)|set_start_method|setlocale"
)
ELSEWHERE = {
    "cli/main.py": "the signals of a command",
    "cluster/launch.py": "SIGTERM in workers, which follow the first one",
    "user_code.py": "what a user has allowed, which holds from then on",
    "watch/trackers.py": "what MLflow reads whenever it likes",
}


def test_the_process_is_changed_in_one_module() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        if name != "process.py" and EFFECTS.search(path.read_text(encoding="utf-8")):
            found.add(name)
    assert found == {*ELSEWHERE}


@pytest.mark.parametrize("collected", [True, False])
def test_loading_pauses_the_search_for_garbage_and_leaves_it_as_it_was(collected: bool) -> None:
    before = gc.isenabled()
    (gc.enable if collected else gc.disable)()
    frozen = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError), process.loading():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is collected
        assert gc.get_freeze_count() == frozen
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_training_leaves_the_settings_of_the_program(engine: str) -> None:
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": ""}  # which torch sets for itself
    before = torch.get_num_threads(), sys.getswitchinterval(), variables
    try:
        torch.set_num_threads(3)
        parley.train(agents=2, epochs=1, engine=engine, progress=False)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before[0])
    assert (sys.getswitchinterval(), {**os.environ, "TORCHINDUCTOR_CACHE_DIR": ""}) == before[1:]


def test_settings_hold_while_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.getswitchinterval()
    monkeypatch.setenv("PARLEY_TRIED", "mine")
    monkeypatch.delenv("PARLEY_NEW", raising=False)
    with (
        process.switching(0.5),
        process.variable("PARLEY_TRIED", "yours"),
        process.variable("PARLEY_NEW", "there"),
    ):
        assert sys.getswitchinterval() == pytest.approx(0.5)
        assert (os.environ["PARLEY_TRIED"], os.environ["PARLEY_NEW"]) == ("yours", "there")
    assert sys.getswitchinterval() == pytest.approx(before)
    assert os.environ["PARLEY_TRIED"] == "mine" and "PARLEY_NEW" not in os.environ


RETURNED = """
import torch
from pathlib import Path
from parley.process import kept_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

with kept_memory():
    blocks = [torch.ones(1 << 18) for _ in range(64)]  # below the size that is mapped alone
    del blocks
    inside = resident()
print(inside - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_kept_memory_goes_back_to_the_system() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    command = [sys.executable, "-c", RETURNED]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(found.stdout) > 32 << 20


@pytest.mark.skipif(platform.system() != "Linux", reason="GNU's C++ library")
def test_the_handler_of_aborts_is_there_while_gloo_may_abort() -> None:
    library = ctypes.CDLL("libstdc++.so.6")
    current = library["_ZSt13get_terminatev"]
    current.restype = ctypes.c_void_p
    before = current()
    with process.last_words(lambda: "one"):
        inside = current()
        with process.last_words(lambda: "another"):
            assert current() == inside != before
        assert current() == inside
    assert current() == before
