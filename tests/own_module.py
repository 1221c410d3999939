"""A user's own module on this process's path; nobody has said that it may be used."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parley import user_code


@contextmanager
def own_module(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Iterator[str]:
    """Its name, a different one for each test."""
    name = f"own_module_{abs(hash(str(folder))):x}"
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv(user_code.ALLOWED, "")
    yield name
    sys.modules.pop(name, None)
