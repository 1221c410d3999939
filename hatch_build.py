"""Puts the commit into what is built, where it can no longer be asked of git."""

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    """Adds ``parley/_commit.txt``, unless it is an editable install, which asks git itself."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        if version == "editable":
            return
        root = Path(self.root)
        spec = importlib.util.spec_from_file_location("version", root / "parley" / "version.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made = Path(self.directory) / "_commit.txt"
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(f"{module.commit() or ''}\n", encoding="utf-8")
        build_data["force_include"][str(made)] = "parley/_commit.txt"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The package has it now."""
        (Path(self.directory) / "_commit.txt").unlink(missing_ok=True)
