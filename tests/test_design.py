"""docs/design.md describes the tree as it is: its table of packages, its modules, its verbs."""

import ast
import re
import tomllib
from pathlib import Path

from parley.neighbourhood import Neighbourhood

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "parley"
MODULES = sorted(PACKAGE.rglob("*.py"))
FOUNDATIONS = {
    "cache",
    "files",
    "measures",
    "user_code",
    "validation",
    "errors",
    "version",
    "process",
}
"""The last rows of the table, which the last column leaves out."""


def in_backticks(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def imports() -> dict[str, set[str]]:
    """What each package imports of the others, wherever in a file it does."""
    found: dict[str, set[str]] = {}
    for path in MODULES:
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        of = found.setdefault(here, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not isinstance(node, ast.Import) or not any(
                name.name.startswith("parley.") for name in node.names
            ), f"{path}: written as from parley… import, which this test reads"
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "parley":
                for name in node.names:
                    _, package, *inner = f"{node.module}.{name.name}".split(".")
                    of.add("wire.codec" if [package, *inner[:1]] == ["wire", "codec"] else package)
        of -= {here, "wire.codec"} if here == "wire" else {here}
    return found


def test_the_table_lists_the_packages_in_their_order_with_what_they_import() -> None:
    rows = re.findall(r"^\| (`[^|]+) \| [^|]+ \| ([^|]+) \|$", PAGE.partition("## What")[0], re.M)
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = contract["tool"]["importlinter"]["contracts"][0]["layers"]
    ordered = [name.removeprefix("parley.") for layer in layers for name in layer.split(" | ")]
    listed = [name.rstrip("/").removesuffix(".py") for row, _ in rows for name in in_backticks(row)]
    assert sorted(listed[-len(FOUNDATIONS) :]) == sorted(FOUNDATIONS)
    place = [ordered.index(name) for name in listed if name not in FOUNDATIONS]
    assert place == sorted(place)
    there = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES}
    assert {*listed} == there - {"__init__", "__main__"} == {*ordered} - {"__main__"}

    actual = imports()
    for names, said in rows:
        packages = [name.rstrip("/").removesuffix(".py") for name in in_backticks(names)]
        if said == "anything below":
            continue
        used = set().union(*(actual[package] for package in packages))
        if "wire" in used:
            used.discard("wire.codec")
        expected = set(in_backticks(said)) if said != "nothing else" else set()
        assert used - FOUNDATIONS == expected, names


def test_every_module_that_the_page_names_is_there() -> None:
    named = {name for name in in_backticks(PAGE) if re.fullmatch(r"parley/[\w/]+\.(py|c|h)", name)}
    assert len(named) > 20
    assert not [name for name in named if not (ROOT / name).is_file()]


def test_the_tables_of_verbs_are_complete_and_algorithms_use_nothing_else() -> None:
    section = PAGE.partition("### The verbs")[2].partition("### Flow")[0]
    tables = "\n".join(line for line in section.splitlines() if line.startswith("| `"))
    named = {re.split(r"\W", name)[0] for name in in_backticks(tables)}
    public = {*vars(Neighbourhood), *Neighbourhood.__annotations__}
    of_the_loop = {"at", "aside", "meter"}
    assert {name for name in public if not name.startswith("_")} - of_the_loop <= named
    for path in (PACKAGE / "algorithms").glob("*.py"):
        used = set(re.findall(r"\bhood\.(\w+)", path.read_text(encoding="utf-8")))
        assert used <= named, path


def test_tests_mirror_the_tree() -> None:
    packages = {path.parent.relative_to(PACKAGE) for path in PACKAGE.glob("*/__init__.py")}
    for package in packages:
        assert list((ROOT / "tests" / package).glob("test_*.py")), package
