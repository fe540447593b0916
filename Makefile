# install · demo · test · test-long · check · lock; every target says what it does in the line above it.
VENV := .venv
PYTHON := python3
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: install demo test test-long check format lock clean

# The virtual environment, from requirements/cpu.lock.
install: $(INSTALLED)

$(INSTALLED): requirements/cpu.lock requirements/install.py pyproject.toml
	@$(PYTHON) requirements/install.py $(VENV)
	@touch $@

# A real language model plays itself on this machine: games, shards, an MLflow run.
demo: install
	@$(BIN)/selfplay collect configs/demo.yaml

# Everything that CI runs.
test: check
	$(BIN)/python -m pytest

# The tests that take minutes each: half an hour.
test-long: install
	$(BIN)/python -m pytest --long -m long

# Format, lint, types, import contracts: seconds.
check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Rewrites the files in place.
format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Resolves requirements/cpu.lock anew from pyproject.toml and requirements/cpu.in.
lock:
	@$(PYTHON) requirements/lock.py

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
