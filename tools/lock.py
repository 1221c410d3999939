"""Writes requirements.lock: the exact files that development and CI install, with their hashes.

    python tools/lock.py                     resolve anew: takes some minutes
    python tools/lock.py --report FILE...    use what `pip install --report` has written

pip resolves the package's ranges for this system. The lock has the version of everything it chose,
the hash of the file it chose, and the hashes of the index's other files of that version, for other
systems and Pythons. The index is the one that pip is set up with; nothing about it is written.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
WANTED = (".[dev,docs]",)
BUILD = ("hatchling", "editables")
"""What installing the package itself needs."""
OWN = "parley-learning"


def here() -> str:
    """This Python and system, as the lock names those that it was made for."""
    python = ".".join(map(str, sys.version_info[:2]))
    return f"Python {python}, {platform.system()} {platform.machine()}"


def resolved(reports: list[Path]) -> dict[str, tuple[str, set[str]]]:
    """Version and hash of what pip has chosen, by name."""
    found: dict[str, tuple[str, set[str]]] = {}
    for report in reports:
        for item in json.loads(report.read_text(encoding="utf-8"))["install"]:
            name = normalised(item["metadata"]["name"])
            if name == OWN:
                continue
            version = item["metadata"]["version"]
            digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
            found.setdefault(name, (version, set()))[1].add(digest)
    return dict(sorted(found.items()))


def normalised(name: str) -> str:
    """A package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def ask_pip(wanted: tuple[str, ...]) -> Path:
    """What pip would install for these."""
    report = Path(tempfile.mkdtemp()) / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--report", str(report), "--constraint", "constraints.txt", *wanted]
    subprocess.run(command, check=True, cwd=ROOT)
    return report


def index() -> str:
    """The index that pip asks."""
    if own := os.environ.get("PIP_INDEX_URL"):
        return own
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "https://pypi.org/simple"


def other_files(where: str, name: str, version: str) -> set[str]:
    """Hashes of all files of that version in the index; none where it does not tell them."""
    try:
        with urllib.request.urlopen(f"{where.rstrip('/')}/{name}/", timeout=60) as answer:
            page = answer.read().decode()
    except OSError as error:
        print(f"{name}: the index does not answer ({error}); only this system's file is locked")
        return set()
    found = set()
    for digest, file in re.findall(r'#sha256=([0-9a-f]{64})"[^>]*>\s*([^<\s]+)', page):
        stem, _, rest = file.partition(f"-{version}")
        if normalised(stem) == name and rest.startswith(("-", ".tar", ".zip")):
            found.add(digest)
    return found


def text(packages: dict[str, tuple[str, set[str]]]) -> str:
    """The lock."""
    lines = [
        "# Made by tools/lock.py: do not edit. Installed by tools/install.py, see SECURITY.md.",
        f"# for: {here()}",
    ]
    for name, (version, hashes) in packages.items():
        lines.append(f"{name}=={version} \\")
        lines += [f"    --hash=sha256:{digest} \\" for digest in sorted(hashes)]
        lines[-1] = lines[-1].removesuffix(" \\")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes the lock."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", type=Path, nargs="+", help="of pip install --report")
    reports = parser.parse_args().report or [ask_pip(WANTED), ask_pip(BUILD)]
    packages = resolved(reports)
    where = index()

    def complete(entry: tuple[str, tuple[str, set[str]]]) -> tuple[str, Any]:
        name, (version, hashes) = entry
        if "+" in version:
            return entry  # torch 2.13.0+cpu: the index's 2.13.0 is another build, with other needs
        return name, (version, hashes | other_files(where, name, version))

    with ThreadPoolExecutor(8) as pool:
        packages = dict(pool.map(complete, packages.items()))
    LOCK.write_text(text(packages), encoding="utf-8")
    count = sum(len(hashes) for _, hashes in packages.values())
    print(f"{len(packages)} packages, {count} files, for {here()}")


if __name__ == "__main__":
    main()
