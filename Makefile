# make demo       the pipeline on the miniature, from raw annotations to results/report.html
# make demo-full  the same, but the miniature's tokenizer and policy are trained from nothing too
# make test       the tests (CPU, no network)
# make lint       ruff and mypy
#
# Each sets up .venv first, once; a later call finds it ready. PYTHON=... names another Python (>= 3.11).

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/ready
BIN := $(abspath $(VENV))/bin
# Stages are `python -m ...`: the python of the venv must come first on the path.
RUN := PATH="$(BIN):$$PATH"

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-full test lint

help:
	@sed -n 's/^# make /make /p' Makefile

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is `$(PYTHON) --version 2>&1`; expected Python 3.11 or newer. Call make PYTHON=python3.11" >&2; exit 2; }
	@echo "Setting up $(VENV): some minutes, once"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

demo: $(READY)
	$(RUN) dvc repro
	@echo "Open results/report.html"

# The two parameters stay changed in params.yaml: `git diff` shows them, `git checkout params.yaml` goes back.
demo-full: $(READY)
	$(RUN) dvc exp run -S base.tokenizer=data/miniature/tokenizer -S base.policy=data/miniature/policy
	@echo "Open results/report.html"

test: $(READY)
	$(RUN) OMP_NUM_THREADS=1 python -m pytest -n auto

lint: $(READY)
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
