# `make demo` and `make test` need Python 3.11+ and make, nothing else: both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin
# Pytest's workers: as many as tests/conftest.py thinks best for the cores that there are.
CORES ?= auto

.PHONY: demo check test test-pythons lint format docs bench wheel licences clean

.venv/made:
	$(PYTHON) -c 'import sys; sys.exit("Parley needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "Setting up .venv; the first time this takes a few minutes."
	$(PYTHON) -m venv .venv
	touch $@

# Reinstalled only when its dependencies change. What the demo needs:
.venv/demo: .venv/made pyproject.toml constraints.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

# All of that, and what tests, checks and documentation need, with hashes: see SECURITY.md.
.venv/installed: .venv/made pyproject.toml constraints.txt requirements.lock
	@$(BIN)/python tools/install.py
	touch $@ .venv/demo

demo: .venv/demo
	$(BIN)/parley demo

# Groups of tests, and which come first, are in tests/conftest.py. Bytecode is kept whatever the
# environment says, or every process that a test starts would compile the whole package again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(CORES) --dist loadgroup

# The fast half: nothing that starts hosts, kills processes, opens a browser or runs all of the docs.
check: .venv/installed
	$(PYTEST) -m 'not slow'

# Everything. A file's tests stay together: many share what their first one has made.
test: .venv/installed
	$(PYTEST)

# The fast half on every available Python, pyenv's included, each with its own environment.
test-pythons:
	@for version in 3.11 3.12 3.13; do \
	  found=; \
	  for candidate in python$$version $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python; do \
	    $$candidate -c '' 2> /dev/null && found=$$candidate; \
	  done; \
	  test -n "$$found" || { echo "python$$version is not here"; continue; }; \
	  echo "$$found"; \
	  $$found -m venv .venv-$$version && \
	  .venv-$$version/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' && \
	  .venv-$$version/bin/python -m pytest -n $(CORES) --dist loadgroup -m 'not slow' || exit 1; \
	done

# The documentation site, in build/docs/index.html. Warnings are errors; nothing is fetched.
docs: .venv/installed
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --conf-dir docs . build/docs

# Ratios, measured side by side; on a machine that does nothing else.
bench: .venv/installed
	$(BIN)/python -m benchmarks.networks
	$(BIN)/python -m benchmarks.bounds
	$(BIN)/python -m benchmarks.costs
	$(BIN)/python -m benchmarks.steps --missing
	$(BIN)/python -m benchmarks.profile
	$(BIN)/python -m benchmarks.page

# The wheel for this platform, in dist/, with kernels compiled for its processors: see docs/kernels.md.
wheel: .venv/made
	$(BIN)/pip wheel . --quiet --disable-pip-version-check --no-deps --wheel-dir dist

# What may be done with each package that is installed, as it says itself.
licences: .venv/installed
	@$(BIN)/python tools/licences.py

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/ci.yml

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-3.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
