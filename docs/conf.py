"""The documentation site, built by `make docs` with Sphinx from the Markdown as it is.

The source folder is the root of the repository, so that a link that works in a repository viewer
works on the site too. Nothing is fetched: MathJax comes with a package and is copied into the site.
"""

import importlib
import pkgutil
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from sphinx.application import Sphinx

import parley
from parley.version import __version__

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"

project = "Parley"
version = release = __version__
html_title = f"Parley {release}"
root_doc = "docs/index"
include_patterns = ["docs/**", "*.md"]
exclude_patterns = [".venv", "build", "results", "web"]  # not looked into
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",
]

myst_enable_extensions = ["html_image"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # a test executes the notebook; the site shows what it holds

suppress_warnings = [
    "myst.header",  # tables made by a program start at the level of the page that they belong to
    "ref.python",  # a type in a signature whose name two modules have; broken links are others
]

html_theme = "furo"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["site"]  # index.html, which leads from / to the first page

default_role = "code"  # docstrings have Markdown's backticks
autodoc_default_options = {"members": True, "show-inheritance": True, "ignore-module-all": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"


# The sidebar


LINK = re.compile(r"\]\((?!http)([^)#]+)\.(?:md|ipynb)\)")
FILE = re.compile(r"\[([^\]]+)\]\((?!http)([\w./-]+)\)")
CODE = re.compile(r"\]\((?:\.\./)*(parley/[\w/]+)\.py\)")


def reference_of(path: str) -> str:
    """The reference page of a module, from the module's path."""
    return f"docs/reference/{path.removesuffix('/__init__').replace('/', '.')}.rst"


def is_shown(target: Path) -> bool:
    """Whether the site has something to link to: not for folders, nor for pages outside docs."""
    target = target.resolve()
    outside = target.parent != ROOT and not target.is_relative_to(ROOT / "docs")
    return not (target.is_dir() or (target.suffix == ".md" and outside))


def add_links(app: Sphinx, name: str, source: list[str]) -> None:
    """Links to code lead to the reference; those to what a site cannot show are text. Each section
    of docs/index.md is a caption of the sidebar, and its links are the pages."""
    here = Path(app.env.doc2path(name)).parent
    source[0] = FILE.sub(lambda m: m[0] if is_shown(here / m[2]) else m[1], source[0])
    source[0] = CODE.sub(lambda found: f"](/{reference_of(found[1])})", source[0])
    if name.startswith("docs/records/"):  # made by programs, and linked where they are discussed
        source[0] = f"---\norphan: true\n---\n{source[0]}"
    if name == "docs/reference":
        source[0] += toctree("Packages", ["reference/parley"])
    if name == root_doc:
        for section in source[0].split("\n## ")[1:]:
            caption, _, text = section.partition("\n")
            source[0] += toctree(caption, list(dict.fromkeys(LINK.findall(text))))


def toctree(caption: str, pages: list[str]) -> str:
    """A part of the sidebar in MyST."""
    return "\n".join(
        ["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""]
    )


def fold(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """The sidebar shows where one is, not all of the reference on every page: with all of it, the
    site would be several times as large, and so would the time to build it."""
    whole = context["toctree"]
    context["toctree"] = lambda **options: whole(**options | {"collapse": True})


# The reference: a page for each module, as the package tree has them


def write_reference(app: Sphinx) -> None:
    """Writes docs/reference, which is not kept in the repository. What is unchanged keeps its time,
    so that a second build reads only what is new."""
    found = pkgutil.walk_packages(parley.__path__, "parley.")
    names = ["parley", *(info.name for info in found if not info.name.endswith("__main__"))]
    REFERENCE.mkdir(exist_ok=True)
    for page in REFERENCE.glob("*.rst"):
        if page.stem not in names:
            page.unlink()
    for name in names:
        inside = [n for n in names if n.rpartition(".")[0] == name]
        text = reference_page(importlib.import_module(name), inside)
        page = REFERENCE / f"{name}.rst"
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def reference_page(module: ModuleType, inside: list[str]) -> str:
    """A module's own definitions, the names it passes on, and links to what is inside it."""
    name = module.__name__
    lines = [name, "=" * len(name), "", f".. automodule:: {name}"]
    if fields := only_fields(module):
        lines += [f"   :exclude-members: {', '.join(sorted(fields))}"]
    lines += [""]
    if passed_on := [n for n in getattr(module, "__all__", []) if is_from_elsewhere(module, n)]:
        lines += ["Public names", "------------", ""]
        lines += [f"- :py:obj:`{n} <{where(module, n)}>`" for n in passed_on] + [""]
    if inside:
        lines += ["Modules", "-------", "", ".. toctree::", "   :titlesonly:", ""]
        lines += [f"   {n}" for n in inside]
    return "\n".join(lines) + "\n"


def only_fields(module: ModuleType) -> set[str]:
    """Names of pydantic fields, which tables explain; not those that also name something else."""
    here = [v for v in vars(module).values() if getattr(v, "__module__", "") == module.__name__]
    models = [v for v in here if isinstance(v, type) and issubclass(v, BaseModel)]
    fields = {field for model in models for field in model.model_fields}
    others = {name for v in [module, *here] for name in getattr(v, "__dict__", {})}
    return fields - others


def where(module: ModuleType, name: str) -> str:
    """The full name under which something is defined."""
    value = getattr(module, name)
    return f"{getattr(value, '__module__', module.__name__)}.{getattr(value, '__name__', name)}"


def is_from_elsewhere(module: ModuleType, name: str) -> bool:
    """Whether a module passes on a name that another one defines."""
    return where(module, name) != f"{module.__name__}.{name}"


# Docstrings


def skip_member(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool:
    """Leaves out pydantic's settings and what named tuples say of their fields."""
    return skip or name == "model_config" or str(value.__doc__).startswith("Alias for field number")


def signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, arguments: str, returns: str
) -> tuple[str, str] | None:
    """A pydantic model's arguments are its fields, which are in its table."""
    return ("", "") if isinstance(value, type) and issubclass(value, BaseModel) else None


def docstring(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """From the little Markdown that docstrings use; a pydantic model's fields follow as a table."""
    text = "\n\n".join(restructured(block) for block in "\n".join(lines).split("\n\n"))
    if isinstance(value, type) and issubclass(value, BaseModel) and value.model_fields:
        rows = [["field", "type", "default", "meaning"]]
        rows += [field_row(*item) for item in value.model_fields.items()]
        text += "\n\n" + table(rows, ":widths: 17 20 15 48")
    lines[:] = text.splitlines()


COLUMNS = re.compile(r"\S {2,}\S")


def restructured(block: str) -> str:
    """A literal block, a table, or text without reStructuredText's own signs."""
    rows = block.strip("\n").splitlines()
    if rows and rows[0].startswith(">>>"):
        return block
    if rows and (rows[0].startswith("    ") or all(COLUMNS.search(row) for row in rows)):
        block = textwrap.indent(textwrap.dedent(block), "    ")
        return "::\n\n" + block.strip("\n")
    if rows and rows[0].startswith("|"):
        cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
        return table([cells[0], *cells[2:]])
    return escaped(block)


def escaped(text: str) -> str:
    """Outside backticks, `|` and `*` are themselves."""
    parts = re.split(r"(`+[^`]*`+)", text)
    parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def field_row(name: str, field: FieldInfo) -> list[str]:
    """A field of a pydantic model in words."""
    kind = field.annotation
    shown = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
    limits = ", ".join(
        f"{sign} {getattr(limit, key)}"
        for limit in field.metadata
        for key, sign in LIMITS.items()
        if hasattr(limit, key)
    )
    default = (
        "required"
        if field.is_required()
        else f"``{field.get_default(call_default_factory=True)!r}``"
    )
    meaning = escaped(" ".join((field.description or "").split()))
    return [f"``{name}``", f"``{shown}`` {limits}", default, meaning]


def table(rows: list[list[str]], widths: str = ":widths: auto") -> str:
    """A table whose first row is its header."""
    lines = [".. list-table::", "   :header-rows: 1", f"   {widths}", ""]
    for first, *others in rows:
        lines += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
    return "\n".join(lines)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_reference)
    app.connect("source-read", add_links)
    app.connect("html-page-context", fold, priority=400)  # before the theme draws it
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", docstring)
