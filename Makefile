# Every target sets itself up: the first one run on a fresh machine makes .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CHROMIUM := $(VENV)/.chromium
TORCH := torch==2.13.0

# Models are built from configs with random weights; nothing may be fetched while tests run.
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# This variable would put another tree's modules before ours.
unexport PYTHONPATH

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format types fast bench clean

help:  ## these lines
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## /make \1\t/'

setup: $(STAMP)  ## the virtual environment, made once and again when pyproject.toml changes

# torch stands first and alone: a bare "torch" among many requirements may pick another build.
$(STAMP): pyproject.toml Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing $(TORCH) and what the tests need into $(VENV); this takes minutes, most of it the download of torch"
	$(BIN)/python -m pip install -qq $(TORCH)
	$(BIN)/python -m pip install -qq -e ".[dev]"
	@touch $@

demo: $(STAMP)  ## trace a small GPT-2, check the capture, read it back, leave a page and a picture in demo/
	$(BIN)/python tools/demo.py

test: lint types $(CHROMIUM)  ## everything CI holds: lint, types, all tests
	$(BIN)/pytest

# For tests/browser; tried once, and where it cannot be had these tests are skipped by name.
$(CHROMIUM): | $(STAMP)
	@tools/chromium.sh || true
	@touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)
	$(BIN)/mypy
	$(BIN)/pyright

fast: $(STAMP)  ## the tests without those marked slow
	$(BIN)/pytest -m "not slow"

bench: $(STAMP)  ## cost per operation against the bare forward (several minutes, wants a quiet machine)
	$(BIN)/python tools/bench.py

clean:  ## remove what make and the tools made, the virtual environment too
	rm -rf $(VENV) demo build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
