"""Installs what development and CI need into this Python's environment, from requirements.lock.

    .venv/bin/python tools/install.py

Every file must have a hash that the lock knows. A file that has not is never installed: that ends
the installation. Where the lock cannot be used at all (another system or Python needs other
packages, or the index has another build of torch, which brings packages of its own), this says so
and installs by the ranges of pyproject.toml and constraints.txt, without hashes. PARLEY_LOCK=only
refuses to do that; PARLEY_LOCK=off does nothing else.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
CHECK = (sys.executable, "-m", "pip", "check", "--disable-pip-version-check")
MISMATCH = "DO NOT MATCH THE HASHES"
"""What pip says when a file is not the one that was locked."""


class Tampered(Exception):
    """A file that is not the one that was locked."""


def from_lock(lock: Path = LOCK, options: tuple[str, ...] = ()) -> str:
    """Installs all that is locked: why that cannot be done here, or nothing if it was."""
    # The lock has everything, so pip need not look for more; what a build of torch for graphics
    # cards needs beside it is not in the lock, and is noticed by the check.
    command = [*PIP, *options, "--require-hashes", "--no-deps", "--requirement", str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        checked = subprocess.run(CHECK, capture_output=True, text=True, check=False)
        lacking = [line for line in checked.stdout.splitlines() if "which is not installed" in line]
        return lacking[0] if lacking else ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if MISMATCH in done.stderr:
        start = next(i for i, line in enumerate(lines) if MISMATCH in line)
        raise Tampered("\n".join(lines[start:]))
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return errors[0] if errors else f"pip ended with status {done.returncode}"


def main() -> None:
    """Installs; exits with the reason if it must not."""
    how = os.environ.get("PARLEY_LOCK", "")
    if how not in ("", "only", "off"):
        sys.exit(f"PARLEY_LOCK: {how!r} is not valid; valid: only, off, or unset")
    why = "PARLEY_LOCK is off"
    if how != "off":
        try:
            why = from_lock()
        except Tampered as error:
            sys.exit(f"{error}\n\nNothing was installed. If the packages were changed on purpose, "
                     "make the lock anew: python tools/lock.py")  # fmt: skip
    if not why:
        # Its build requirements are locked, too.
        own = ("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        subprocess.run([*PIP, *own], check=True)
        print(f"installed from {LOCK.name}: every file has a hash that it knows")
        return
    if how == "only":
        sys.exit(f"{LOCK.name} cannot be used here: {why}")
    print(f"{LOCK.name} cannot be used here: {why}\n"
          "Installing by the ranges of pyproject.toml, without hashes.")  # fmt: skip
    ranges = ("--constraint", str(ROOT / "constraints.txt"), "--editable", f"{ROOT}[dev,docs]")
    subprocess.run([*PIP, *ranges], check=True)


if __name__ == "__main__":
    main()
