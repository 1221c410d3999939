"""Writes what the records say into the pages that show it: docs/benchmarks.md and -table.md.

python -m benchmarks.page
"""

import json
import re
from pathlib import Path

from benchmarks import bounds, costs, networks, profile
from benchmarks.steps import records
from benchmarks.table import render, side_by_side

FOLDER = Path(__file__).parent
DOCS = FOLDER.parent / "docs"
NONE = "*Not measured yet.*"


def parts() -> dict[str, str]:
    """What stands between the marks of each name in docs/benchmarks.md."""
    return {
        "networks": side_by_side(networks.records()) or NONE,
        "bounds": bounds.table(records("bounds")) or NONE,
        "costs": costs.table(records("costs")) or NONE,
    }


def updated(page: str) -> str:
    """The page with every part as the records have it."""
    for name, text in parts().items():
        begin, end = f"<!-- {name}: python -m benchmarks.page -->", f"<!-- end of {name} -->"
        marked = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if len(marked.findall(page)) != 1:
            raise ValueError(f"the page has not one place for {name}")
        page = marked.sub(lambda _, new=f"{begin}\n{text}\n{end}": new, page)
    return page


def tables() -> str:
    """All other tables."""
    results, profiles = (
        json.loads((FOLDER / name).read_text(encoding="utf-8"))
        for name in ("results.json", "profile.json")
    )
    return f"{render(results)}\n{profile.table(profiles)}\n"


if __name__ == "__main__":
    page = DOCS / "benchmarks.md"
    page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
    (DOCS / "benchmarks-table.md").write_text(tables(), encoding="utf-8")
