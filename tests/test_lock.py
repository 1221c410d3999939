"""What is installed: the lock covers the package's ranges, and a file that it does not know is not
installed."""

import base64
import hashlib
import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def tool(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def locked() -> dict[str, tuple[str, list[str]]]:
    text = (ROOT / "requirements.lock").read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            pin, *hashes = line.split()
            name, version = pin.split("==")
            found[name] = version, [h.removeprefix("--hash=sha256:") for h in hashes]
    return found


def test_every_requirement_is_locked_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], "hatchling"]
    for requirements in project["optional-dependencies"].values():
        wanted += requirements
    pins = locked()
    for requirement in map(Requirement, wanted):
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name != "parley-learning":
            assert name in pins, name
            assert requirement.specifier.contains(pins[name][0], prereleases=True), name


def test_every_file_is_locked_by_its_hash() -> None:
    pins = locked()
    assert len(pins) > 100
    for name, (version, hashes) in pins.items():
        assert re.fullmatch(r"[\w.]+(\+\w+)?", version), name
        assert hashes and all(re.fullmatch("[0-9a-f]{64}", digest) for digest in hashes), name
    assert f"torch=={pins['torch'][0].partition('+')[0]}" in (ROOT / "constraints.txt").read_text()
    assert "://" not in (ROOT / "requirements.lock").read_text()


def wheel(folder: Path, content: str) -> str:
    """A package of one module; the hash of its file."""
    path = folder / "lockproof-1.0-py3-none-any.whl"
    files = {
        "lockproof.py": content,
        "lockproof-1.0.dist-info/METADATA": "Metadata-Version: 2.1\n"
        "Name: lockproof\nVersion: 1.0\n",
        "lockproof-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{name},sha256={digest.decode()},{len(text.encode())}")
    record = "lockproof-1.0.dist-info/RECORD"
    files[record] = "\n".join([*rows, f"{record},,"]) + "\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_that_was_changed_is_not_installed(tmp_path: Path) -> None:
    install = tool("install")
    known = wheel(tmp_path, "x = 1\n")
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"lockproof==1.0 --hash=sha256:{known}\n")
    target = tmp_path / "installed"
    options = ("--no-index", "--find-links", str(tmp_path), "--target", str(target))
    install.from_lock(lock, options)
    assert (target / "lockproof.py").read_text() == "x = 1\n"

    wheel(tmp_path, "x = 'changed'\n")
    other = ("--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "other"))
    with pytest.raises(install.Tampered, match="DO NOT MATCH THE HASHES"):
        install.from_lock(lock, other)
    assert not (tmp_path / "other" / "lockproof.py").exists()

    lock.write_text(f"lockproof==2.0 --hash=sha256:{known}\n")
    assert "lockproof==2.0" in install.from_lock(lock, other), "why, in pip's words"


def test_licences() -> None:
    rows = {name: words for name, _, words in tool("licences").rows()}
    assert "BSD" in rows["torch"] and "Apache" in rows["safetensors"]
    command = [sys.executable, str(ROOT / "tools" / "licences.py")]
    assert "numpy" in subprocess.check_output(command, text=True)
