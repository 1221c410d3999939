"""Puts into a wheel what cannot be made where it is used: the commit, and compiled kernels."""

import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags


class WheelHook(BuildHookInterface[Any]):
    """Adds ``parley/_commit.txt`` and the kernels' libraries, unless it is an editable install,
    which asks git itself and compiles on first use."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from parley.compute.kernels import build
        from parley.version import commit

        self.made = tempfile.TemporaryDirectory()
        written = Path(self.made.name) / "_commit.txt"
        written.write_text(f"{commit() or ''}\n", encoding="utf-8")
        included = build_data["force_include"]
        included[str(written)] = "parley/_commit.txt"
        if self.target_name != "wheel":
            return
        try:
            libraries = build.for_wheel(Path(self.made.name), platform.machine())
        except build.Unavailable as error:
            self.app.display_warning(f"the wheel has no compiled kernels: {error}")
            return
        for path in libraries:
            path.chmod(0o755)
            included[str(path)] = f"parley/compute/kernels/{path.name}"
        # No Python is linked to, and no newer C library is needed than the one that is here.
        tags = [*platform_tags()]
        known = (tag for tag in tags if tag.startswith(("manylinux", "musllinux")))
        build_data["tag"] = f"py3-none-{next(known, tags[0])}"
        build_data["pure_python"] = False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The package has it now."""
        if version != "editable":
            self.made.cleanup()
