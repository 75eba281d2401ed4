# Two commands do all the set-up: `make rloo` and `make test`, each from a bare clone with Python 3.11.

PYTHON ?= python3.11
VENV ?= .venv
BIN = $(VENV)/bin
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
INSTALLED = $(VENV)/.installed

.PHONY: rloo test lint check setup benchmarks clean help

help: ## what there is to make
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

rloo: $(INSTALLED) ## train the tiny model with RLOO and report whether it got better
	pyflyte run workflows/rloo.py rloo

test: $(INSTALLED) ## every test
	$(BIN)/pytest

lint: $(INSTALLED) ## formatting, style, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test ## everything that must hold before a commit

benchmarks: $(INSTALLED) ## speed and memory, as ratios in one run
	$(BIN)/python benchmarks/step.py

setup: $(INSTALLED) ## create .venv with the pinned dependencies

# constraints.txt holds every package, so nothing is left to resolve; `pip check` proves that the set is whole.
$(INSTALLED): constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --no-compile --requirement constraints.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
	@touch $(INSTALLED)

clean: ## remove the environment; artifacts/ stays
	rm -rf $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
