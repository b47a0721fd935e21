# Everything runs in .venv, which each target makes for itself: `make demo` and `make test` work in a fresh clone.
# With a release of torch, as in `make test TORCH=2.15.0`, it is an environment of that release: .venv-2.15.0.
PYTHON ?= python3
TORCH ?=
VENV := .venv$(if $(TORCH),-$(TORCH))
BIN = $(VENV)/bin# of the environment of the target that is made
CONFORMANCE := verification/test_conformance.py
SAMPLES ?= all
DEMO_PICTURE := build/diabetes.png
ASV := $(BIN)/asv
ASV_CONFIG := --config asv_benchmarks/asv.conf.json

.DEFAULT_GOAL := help
.PHONY: help demo test verify verify-nightly conformance zoo lint format bench bench-compare bench-site mutation thesis clean
.DELETE_ON_ERROR:

help: ## Say what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

demo: $(VENV)/demo.stamp ## Train a network on real data and print what drives it, to the third derivative
	$(BIN)/python docs/examples/diabetes.py --picture $(DEMO_PICTURE)

test: $(VENV)/test.stamp ## Run the tests and the examples in the docstrings
	$(BIN)/python -m pytest $(ARGS)

verify: $(VENV)/test.stamp ## Compare random programs with oracles, and try the properties of derivatives on them
	$(BIN)/python -m pytest verification $(ARGS)

verify-nightly: $(VENV)/test.stamp ## The same with 50 times as many programs, other ones every time
	HOFUNC_PROFILE=nightly $(BIN)/python -m pytest verification $(ARGS)

# Its own environment, since the libraries bring two hundred packages.
zoo: VENV := .venv-zoo
zoo: ## Judge and time functions of other libraries at orders 2 and 3, and write docs/zoo.md: ARGS="gpytorch"
	$(MAKE) VENV=$(VENV) $(VENV)/zoo.stamp
	status=0; OMP_NUM_THREADS=1 $(BIN)/python -m verification.zoo $(ARGS) || status=$$?; \
	$(BIN)/python -m verification.zoo.table && exit $$status

lint: $(VENV)/lint.stamp $(VENV)/test.stamp $(VENV)/demo.stamp ## Check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/lint.stamp ## Format the code, and mend what can be mended of its style
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

conformance: $(VENV)/test.stamp ## Judge all of torch's ops at orders 1 to 3, and write docs/conformance.md
	status=0; HOFUNC_SAMPLES=$(SAMPLES) $(BIN)/python -m pytest $(CONFORMANCE) $(ARGS) || status=$$?; \
	$(BIN)/python -m verification.conformance.table && exit $$status

bench: $(VENV)/bench.stamp ## Run the asv suite once on what is checked out, and keep the figures
	$(ASV) machine $(ASV_CONFIG) --yes
	$(ASV) run $(ASV_CONFIG) --quick --show-stderr --python=same --set-commit-hash=$$(git rev-parse HEAD) $(ARGS)

bench-compare: $(VENV)/peers.stamp ## Time hofunc beside all its peers, in one run: ARGS="--threads 2 --workload T"
	$(BIN)/python -m asv_benchmarks.compare $(ARGS)

bench-site: $(VENV)/bench.stamp ## Build the pages of the history of the figures, in build/asv/html
	$(ASV) publish $(ASV_CONFIG)

mutation: $(VENV)/mutation.stamp ## Put small faults into hofunc and count those that its tests notice: ARGS="--run 20"
	$(BIN)/python -m verification.mutation $(ARGS)

thesis: $(VENV)/demo.stamp ## Redraw the figures of the THOAD thesis, into docs/thesis
	$(BIN)/python -m docs.examples.thesis_figures

clean: ## Remove the environments and whatever was made
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .asv
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each set of extra packages of pyproject.toml, so that no target installs what it does not need.
$(VENV)/%.stamp: pyproject.toml $(VENV)/constraints.txt
	$(BIN)/python -m pip install --constraint $(VENV)/constraints.txt setuptools
	$(BIN)/python -m pip install --constraint $(VENV)/constraints.txt --no-build-isolation --editable '.[$*]'
	touch $@

# As pinned, but for the release of torch, where one is asked for.
$(VENV)/constraints.txt: constraints.txt | $(BIN)/python
	$(if $(TORCH),sed 's/^torch==.*/torch==$(TORCH)/',cat) constraints.txt > $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
