# make demo · make test · make check · make bench — each does its own set-up.
# A fresh machine needs Python 3.11 or newer with its venv module and headers, a C++20 compiler and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CMAKE  := $(firstword $(shell command -v cmake) $(BIN)/cmake)
# Sources that the compiled module is made of: when one changes, it is built again.
NATIVE := $(wildcard kernels/csrc/*.* kernels/csrc/*/*.*) CMakeLists.txt pyproject.toml ledger/_embed_code.py

.DEFAULT_GOAL := help
.PHONY: help install demo test check format docs bench referee fuzz clean

help:
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

install: $(VENV)/.built ## make .venv and install bitwitness into it, editable

$(VENV)/.deps: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "bitwitness needs Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' \
	  || { echo "Python's headers are missing: apt-get install python3-dev" >&2; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) \
	  || { echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  scikit-build-core nanobind cmake ninja
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  $$($(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	    print(*(d.replace(" ", "") for d in p["dependencies"] + p["optional-dependencies"]["dev"] \
	    + [d for name in ("tokenizers", "drand", "hf", "timestamps") for d in p["optional-dependencies"][name]] \
	    if not d.startswith("bitwitness")))')
	# Its metadata asks for pysha3, which no longer builds and which it does not need on Python 3.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps merkletools==1.0.3
	@touch $@

# The package is found by its own finder; the folders that the installer puts on the search path, too, hold the clone and
# what lies beside it, which is not ours to import.
$(VENV)/.built: $(VENV)/.deps $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@$(BIN)/python -c 'import pathlib, sysconfig; \
	  paths = pathlib.Path(sysconfig.get_path("purelib"), "_editable_skbc_bitwitness.pth"); \
	  lines = paths.read_text().splitlines(keepends=True); \
	  paths.write_text("".join(line for line in lines if line.startswith("import ")))'
	@touch $@

demo: install ## the whole loop on real text, in ./demo
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash docs/demo.sh

test: install ## all tests
	$(BIN)/python -m pytest -q

check: install types ## format, lint, types, import rules, stale docs
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	cd build/types && ../../$(BIN)/mypy --config-file ../../pyproject.toml -p bitwitness.kernels -p bitwitness.ledger \
	  -p bitwitness.trainer -p bitwitness.registry
	$(BIN)/lint-imports --config pyproject.toml
	$(BIN)/python -m bitwitness.ledger.cli.docs --check docs/cli.md
	$(BIN)/python -m bitwitness.trainer.config_docs --check docs/run-config.md

# mypy reads folders, not import hooks: show it the four packages under the name they are imported by.
.PHONY: types
types:
	@mkdir -p build/types/bitwitness
	@for p in kernels ledger trainer registry; do ln -sfn ../../../$$p build/types/bitwitness/$$p; done

format: install ## rewrite sources in the house format
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

docs: install ## write the generated pages again
	$(BIN)/python -m bitwitness.ledger.cli.docs docs/cli.md
	$(BIN)/python -m bitwitness.trainer.config_docs docs/run-config.md

bench: install ## measure against PyTorch, into bench/results.json
	$(BIN)/python -m tests.bench

referee: ## build the program that executes trace files, without Python: build/referee/referee
	$(CMAKE) -S kernels/referee -B build/referee
	$(CMAKE) --build build/referee --parallel $$(getconf _NPROCESSORS_ONLN)

SECONDS ?= 60
fuzz: install ## fuzz each parser for SECONDS (60); with RUNS=N, the same N inputs each time
	$(BIN)/python -m tests.fuzz all $(if $(RUNS),--runs $(RUNS),$(SECONDS))

clean: ## remove everything that was built
	rm -rf $(VENV) build
