# Every target installs what it needs. PYTHON picks the interpreter (3.11 or newer).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/.stamps
AT_ONCE := -n 2 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help demo test test-long check docs bench real clean

help:
	@echo "make demo       install, then play the three-turn story and the refund desk, offline"
	@echo "make test       install what tests need, run the default suite"
	@echo "make test-long  the crash sweeps, power-loss sweep and real repositories too"
	@echo "make check      linters, types, import layers, generated pages, then the default suite"
	@echo "make docs       write the reference pages anew, from the code"
	@echo "make bench      benchmarks against peers (installs them), writes docs/benchmarks.md"
	@echo "make real       three tasks on real published packages (needs the package index once)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Setpoint needs Python 3.11 or newer; run: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# One stamp an extra: what is installed is installed once, and again when pyproject.toml changes.
$(STAMPS)/%: pyproject.toml | $(BIN)/python
	@mkdir -p $(STAMPS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$*]'
	@touch $@

demo: $(STAMPS)/demo
	$(BIN)/setpoint demo parse-timeout
	$(BIN)/setpoint demo refund

# One process a core; a file of tests stays together, since its fixtures are dear.
test: $(STAMPS)/test
	$(BIN)/python -m pytest $(AT_ONCE)

test-long: $(STAMPS)/test
	$(BIN)/python -m pytest -m "slow or not slow" --timeout 1800

check: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m pytest $(AT_ONCE)

docs: $(STAMPS)/dev
	$(BIN)/python docs/generate.py

bench: $(STAMPS)/bench
	$(BIN)/python benchmarks/run.py

real: $(STAMPS)/pytest
	$(BIN)/python examples/real/setup.py
	$(BIN)/python examples/real/check.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
