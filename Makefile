# Everything from nothing: `make test` and `make demo` need python3 (3.11 or newer), make and git, no more.

PYTHON ?= python3
# Each further interpreter has an environment of its own: make test PYTHON=python3.12 makes .venv-3.12.
VERSION := $(if $(filter-out python3,$(PYTHON)),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
VENV ?= .venv$(VERSION)
PINS ?= constraints.txt
WORKERS ?= 2
TORCH ?= $(shell grep '^torch==' $(PINS))
OUT ?= out/demo
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
NOTEBOOKS := $(wildcard notebooks/*.ipynb)
# Which tests: `make slow` and continuous integration take the slow ones in the same call.
TESTS ?= not slow
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# The files with tests that hang on rounding: those marked so, and those of frozen numbers.
ROUNDING := $(shell grep -rlE "mark\.processor|\bgolden\b" tests --include="test_*.py")

# The models are made of small matrices: two busy threads are often slower than one.
export OMP_NUM_THREADS ?= 1
export MPLBACKEND ?= Agg
# Compiled modules are kept where a machine says otherwise: compiling 500 files takes longer than collecting the tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv test test-lowest test-newest slow broad processors lint format types demo study docs release notebooks benchmarks ci clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## */\1|/' \
	  | while IFS='|' read -r name what; do printf '  make %-12s %s\n' "$$name" "$$what"; done

# Torch comes first and alone; pip's own settings choose between its CPU and CUDA builds. Another version of it:
# make test VENV=.venv-torch PYTHON=python3.12 TORCH=torch==2.11.0
$(STAMP): pyproject.toml $(PINS)
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, " \
	  + sys.executable + " is " + sys.version.split()[0] + "; choose another: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@{ grep -v '^torch==' $(PINS); echo '$(TORCH)'; } > $(VENV)/constraints.txt
	$(PIP) install --quiet '$(TORCH)'
	$(PIP) install --quiet --constraint $(VENV)/constraints.txt --editable '.[dev]'
	@touch $@

venv: $(STAMP)  ## Create .venv with the pinned versions (again when pyproject or pins change)

test: $(STAMP)  ## Run the tests and every docstring example
	$(PYTEST) -m "$(TESTS)"

test-lowest:  ## Run them with the lowest versions that pyproject admits, in .venv-lowest
	@$(MAKE) test VENV=$(VENV)-lowest PINS=constraints-lowest.txt

test-newest:  ## Run them with the newest versions of the day, in .venv-newest
	@$(MAKE) test VENV=$(VENV)-newest PINS=/dev/null TORCH=torch

slow:  ## Run the same with the slow tests, but the broad ones
	@$(MAKE) test TESTS="not broad"

broad: $(STAMP)  ## Run the broad ones, and every notebook; with BOTORCH_TESTS=FOLDER BoTorch's own on our model, too
	$(PYTEST) -m broad
	test -z "$(BOTORCH_TESTS)" || $(BIN)/python -m benchmarks.botorch_suite --tests "$(BOTORCH_TESTS)" --again

processors: $(STAMP)  ## Run the tests that hang on rounding again, as two other processors
	ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE $(PYTEST) -m "processor and not broad" $(ROUNDING)
	ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=AVX2 $(PYTEST) -m "processor and not broad" $(ROUNDING)

lint: $(STAMP)  ## Check style and layout
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## Lay the code out
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## Check types (strict)
	$(BIN)/mypy

demo: $(STAMP)  ## The main job on a messy table, under two minutes
	$(BIN)/gp-ensembles demo --out $(OUT)

study: $(STAMP)  ## Make a figure or table of a paper again: make study ARGS="doebe experiment-1"
	$(BIN)/python -m studies $(ARGS)

docs: $(STAMP)  ## Build the site into out/site (GALLERY=all runs every notebook); warnings are errors
	PYTHONPATH=. $(BIN)/python -m sphinx -W --keep-going -q -j 2 docs out/site

release: $(STAMP)  ## The check-list of a release; leaves dist for upload
	$(PIP) install --quiet --constraint $(VENV)/constraints.txt '.[release]'
	$(BIN)/python packaging/release.py

notebooks: $(STAMP)  ## Execute the notebooks (their files stay as they are)
ifeq ($(NOTEBOOKS),)
	@echo "no notebooks"
else
	$(BIN)/jupyter-execute --timeout=300 $(NOTEBOOKS)
endif

benchmarks: $(STAMP)  ## Measure what everything costs on this machine, one thread (minutes)
	$(BIN)/python -m benchmarks.prices

ci:  ## What continuous integration runs
	.ci/run

clean:  ## Remove what make has built, .venv included
	rm -rf $(VENV) .venv .venv-* build out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find gp_ensembles studies attacks tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
