# Everything runs in .venv, which each target makes for itself: `make demo` and `make test` work in a fresh clone.
# With a release of torch, as in `make test TORCH=2.15.0`, it is an environment of that release: .venv-2.15.0.
PYTHON ?= python3
TORCH ?=
VENV := .venv$(if $(TORCH),-$(TORCH))
BIN = $(VENV)/bin# of the environment of the target that is made
CONFORMANCE := verification/test_conformance.py
SAMPLES ?= all
GALLERY ?= 1
PORT ?= 8000
DEMO_PICTURE := build/diabetes.png
ASV := $(BIN)/asv
ASV_CONFIG := --config asv_benchmarks/asv.conf.json
NPM := build/npm
NPM_FILES := $(addprefix asv_benchmarks/site/,package.json package-lock.json)

.DEFAULT_GOAL := help
.PHONY: help demo test verify verify-nightly conformance zoo lint format docs docs-serve wheel bench bench-compare bench-site dashboard-test mutation thesis clean
.DELETE_ON_ERROR:

help: ## Say what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

demo: $(VENV)/demo.stamp ## Train a network on real data and print what drives it, to the third derivative
	$(BIN)/python docs/examples/diabetes.py --picture $(DEMO_PICTURE)

test: $(VENV)/test.stamp ## Run the tests and the examples in the docstrings
	$(BIN)/python -m pytest $(ARGS)

verify: $(VENV)/test.stamp $(VENV)/demo.stamp ## Compare random programs with oracles, and try the properties of derivatives on them
	$(BIN)/python -m pytest verification $(ARGS)

verify-nightly: $(VENV)/test.stamp $(VENV)/demo.stamp ## The same with 50 times as many programs, other ones every time
	HOFUNC_PROFILE=nightly $(BIN)/python -m pytest verification $(ARGS)

# Its own environment, since the libraries bring two hundred packages.
zoo: VENV := .venv-zoo
zoo: ## Judge and time functions of other libraries at orders 2 and 3, and write docs/reference/zoo.md: ARGS="gpytorch"
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

conformance: $(VENV)/test.stamp ## Judge all of torch's ops at orders 1 to 3, and write docs/reference/conformance.md
	status=0; HOFUNC_SAMPLES=$(SAMPLES) $(BIN)/python -m pytest $(CONFORMANCE) $(ARGS) || status=$$?; \
	$(BIN)/python -m verification.conformance.table && exit $$status

docs: $(VENV)/docs.stamp ## Build the site of the documentation, in build/docs; GALLERY=0 runs no programs of the gallery
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -D plot_gallery=$(GALLERY) -d build/doctrees docs build/docs
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md docs hofunc

docs-serve: docs ## Build it, and serve it at http://localhost:8000: PORT=8080
	$(BIN)/python -m http.server --bind localhost --directory build/docs $(PORT)

wheel: $(VENV)/release.stamp ## Build the wheel and the source distribution, and try the wheel in an environment of its own
	rm -rf dist build/lib build/wheel
	$(BIN)/python -m build --no-isolation
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --constraint $(VENV)/constraints.txt dist/*.whl
	cd build/wheel && bin/python -I -m hofunc

bench: $(VENV)/bench.stamp ## Run the asv suite once on what is checked out, and keep the figures
	$(ASV) machine $(ASV_CONFIG) --yes
	$(ASV) run $(ASV_CONFIG) --quick --show-stderr --python=same --set-commit-hash=$$(git rev-parse HEAD) $(ARGS)

bench-compare: $(VENV)/peers.stamp ## Time hofunc beside all its peers, in one run: ARGS="--threads 2 --workload T"
	$(BIN)/python -m asv_benchmarks.compare $(ARGS)

bench-site: $(VENV)/bench.stamp $(NPM)/pages.stamp ## Build the pages of all that is measured, in build/dashboards; needs Node 18
	$(BIN)/python -m asv_benchmarks.site.build

dashboard-test: $(VENV)/test.stamp $(VENV)/bench.stamp $(NPM)/browser.stamp ## Look at these pages in a browser that npm installs; needs Node 20
	HOFUNC_NPM=$(CURDIR)/$(NPM) $(BIN)/python -m pytest -n 0 verification/test_dashboards.py $(ARGS)

mutation: $(VENV)/mutation.stamp ## Put small faults into hofunc and count those that its tests notice: ARGS="--run 20"
	$(BIN)/python -m verification.mutation $(ARGS)

thesis: $(VENV)/demo.stamp ## Redraw the figures of the THOAD thesis, into docs/explanations/thesis
	$(BIN)/python -m docs.examples.thesis_figures

clean: ## Remove the environments and whatever was made
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .asv
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each set of extra packages of pyproject.toml, so that no target installs what it does not need.
$(VENV)/%.stamp: pyproject.toml $(VENV)/constraints.txt
	$(BIN)/python -m pip install --constraint $(VENV)/constraints.txt setuptools
	$(BIN)/python -m pip install --constraint $(VENV)/constraints.txt --no-build-isolation --editable '.[$*]'
	touch $@

# What the pages load, and with the browser that looks at them.
$(NPM)/pages.stamp: $(NPM_FILES)
	mkdir -p $(NPM) && cp $(NPM_FILES) $(NPM)
	npm ci --prefix $(NPM) --omit=dev --no-audit --no-fund
	touch $@

$(NPM)/browser.stamp: $(NPM_FILES)
	mkdir -p $(NPM) && cp $(NPM_FILES) $(NPM)
	npm ci --prefix $(NPM) --no-audit --no-fund
	touch $(NPM)/pages.stamp $@

# As pinned, but for the release of torch, where one is asked for.
$(VENV)/constraints.txt: constraints.txt | $(BIN)/python
	$(if $(TORCH),sed 's/^torch==.*/torch==$(TORCH)/',cat) constraints.txt > $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
