"""Which library of kernels is used, and that C and Python describe the same things."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from parley.compute import kernels
from parley.compute.kernels import build, interface
from tests.compiler import compiler

ROOT = Path(__file__).parents[2]
SKYLAKE = (
    "flags : avx avx2 bmi1 bmi2 f16c fma abm movbe avx512f avx512bw avx512cd avx512dq avx512vl"
)
HASWELL = "flags : avx avx2 bmi1 bmi2 f16c fma abm movbe"
cc = shutil.which("cc")
compiled = pytest.mark.skipif(cc is None, reason="no C compiler")


@compiled
def test_c_lays_structures_out_as_python_does(tmp_path: Path) -> None:
    structures = (*interface.STRUCTURES.values(), interface.Value, interface.Node)
    structures = (*structures, interface.Graph, interface.Sizes)
    fields = [(s, name) for s in structures for name, *_ in s._fields_ if name != "options"]
    numbers = [f"sizeof({s.__name__})" for s in structures]
    numbers += [f"offsetof({s.__name__}, {name})" for s, name in fields]
    (tmp_path / "interface.h").write_text(interface.header())
    program = '#include <stddef.h>\n#include <stdio.h>\n#include "interface.h"\nint main(void) {'
    program += "".join(f'printf("%zu ", {number});' for number in numbers) + "}"
    (tmp_path / "sizes.c").write_text(program)
    made = tmp_path / "sizes"
    build.run([str(cc), "-I", str(build.HERE), str(tmp_path / "sizes.c"), "-o", str(made)])
    expected = [ctypes.sizeof(s) for s in structures]
    expected += [getattr(s, name).offset for s, name in fields]
    assert build.run([str(made)]).split() == [*map(str, expected)]


@pytest.mark.parametrize(
    ("processor", "level"),
    [(SKYLAKE, "avx512"), (HASWELL, "avx2"), (f"{HASWELL} avx512f", "avx2"), ("arm", "portable")],
)
def test_the_widest_vectors_that_a_processor_has(
    processor: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "HERE", tmp_path)
    assert build.prebuilt(processor) is None, "a checkout has none"
    for name in ("avx512", "avx2", "portable"):
        (tmp_path / f"kernels-{name}-0123.so").touch()
    assert build.prebuilt(processor) == tmp_path / f"kernels-{level}-0123.so"
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(kernels, "processor", lambda: processor)
    assert kernels._found() == tmp_path / f"kernels-{level}-0123.so"
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(build.Unavailable, match="the environment variable CC names it"):
        kernels._found()


SCRIPT = """
import hashlib, json, sys
from pathlib import Path
from safetensors.torch import load_file
import parley
from parley.compute import kernels

if __name__ == "__main__":
    site, out = map(Path, sys.argv[1:])
    assert Path(parley.__file__).is_relative_to(site)
    digests = []
    for workers in (1, 2):
        parley.train("cnn5", algorithm="dpsgd", agents=4, epochs=1, fraction=0.05, seed=1,
                     engine="fused", workers=workers, progress=False, out=out / str(workers))
        model = load_file(out / str(workers) / "model.safetensors")
        said = b"".join(model[name].numpy().tobytes() for name in sorted(model))
        digests.append(hashlib.sha256(said).hexdigest())
    about = json.loads((out / "1/environment.json").read_text())
    print(json.dumps([kernels.identity(), about["kernels"], *digests]))
"""


@compiled
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="several processes require Linux")
def test_a_wheel_needs_no_compiler(tmp_path: Path) -> None:
    """Each of its libraries that can run here trains, with the same bits in every placement."""
    quick = compiler(tmp_path / "cc", str(cc), "-O0")
    build_it = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--quiet"]
    build_it += ["--no-build-isolation", "--wheel-dir", str(tmp_path)]
    subprocess.run(build_it, env={**os.environ, "CC": quick}, check=True)
    [wheel] = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name and not wheel.name.endswith("-any.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    libraries = {path.name.split("-")[1]: path for path in site.rglob("kernels-*.so")}
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {k: v for k, v in os.environ.items() if k not in ("CC", "PARLEY_KERNELS")}
    environment |= {"PATH": "/nowhere", "PYTHONPATH": str(site)}
    environment["PARLEY_CACHE"] = str(tmp_path / "cache")
    while (expected := fitting(libraries)) is not None:
        command = [sys.executable, str(script), str(site), str(tmp_path / expected.stem)]
        # Elsewhere than in the checkout, whose package the other worker would find first.
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        used, written, one, two = json.loads(done.stdout.splitlines()[-1])
        assert used == written == expected.stem
        assert one == two
        expected.unlink()
        del libraries[expected.stem.split("-")[1]]
    assert not [*(tmp_path / "cache").rglob("kernels-*")], "nothing was compiled"


def fitting(libraries: dict[str, Path]) -> Path | None:
    has = {*kernels.processor().split()}
    found = (libraries[v.name] for v in build.LEVELS if v.name in libraries and v.needs <= has)
    return next(found, None)
