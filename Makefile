# `make demo` and `make test` need Python 3.11+ and make, nothing else: both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint format docs bench web clean

# Installed anew only when what it depends on changes.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Parley needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "Setting up .venv; the first time this takes a few minutes."
	$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/installed
	$(BIN)/parley demo

test: .venv/installed
	$(BIN)/python -m pytest

# The documentation site, in build/docs/index.html. Warnings are errors; nothing is fetched.
docs: .venv/docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --conf-dir docs . build/docs

.venv/docs: .venv/installed
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

# Ratios, measured side by side; on a machine that does nothing else.
bench: .venv/installed
	$(BIN)/python -m benchmarks.steps --missing
	$(BIN)/python -m benchmarks.profile
	{ $(BIN)/python -m benchmarks.steps --table; $(BIN)/python -m benchmarks.profile --table; } > docs/benchmarks-table.md

# The pages inside the wheel, from web/; needs Node 20 or newer, which users do not.
web:
	cd web && npm ci --silent && npm run --silent build

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv web/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis
