# make serve     set up what serving needs (no torch) and serve every bundle in bundles/ on HOST:PORT
# make test      set up everything and run the tests but the slow ones: minutes
# make test-all  set up more and run all of them, or a part: make test-all SHARD=1/4; a file that passed is not run again
#                at the same commit. What was left out and reached is written to results/tests.json
# make check     set up everything and run the linter, the formatter and the type checker
# make results   write docs/RESULTS.md and the table of README.md from what is measured in results/
# make train-series  train the network of any series in RUN, from a copy of the code as it is now, at low priority
# make docs      set up everything and build the documentation in build/docs: a warning is an error
#
# Set-up goes to .venv, and is done again only when pyproject.toml or constraints.txt changed: stamps in .venv tell.

# The first interpreter that is new enough, so that an old python3 does not stand in the way of a newer one beside it.
SUITABLE := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c '$(SUITABLE)' >/dev/null 2>&1 && { echo $$p; exit; }; done; echo python3)
VENV ?= .venv
HOST ?= 127.0.0.1
PORT ?= 8000
# Options for every pip call, for example PIP_FLAGS="--quiet --no-index --find-links wheels".
PIP_FLAGS ?=
PYTEST_FLAGS ?=
SHARD ?= 1/1
# Processes that share the tests: one per core, and one more because a quarter of the time they wait for others. The numeric
# libraries run one thread in each. What these are told about threads, nproc takes for the number of cores.
CORES := $(shell env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2>/dev/null || echo 2)
TEST_WORKERS ?= $(shell expr $(CORES) + 1)
SERVE_FLAGS ?=

BIN := $(VENV)/bin
# Python compiles what it imports, once: pip would spend a minute on all that nobody imports.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile $(PIP_FLAGS) --constraint constraints.txt
TORCH := torch==2.13.0
OLDEST_TRITON := 3.6.0

SUPPLY := $(VENV)/supply/bin
# What the tests ask Debian for, each beside what asks: a browser, other people's signatures, the alerts' unit tests,
# and for IMAGE_BASE what makes a base image and builds on it.
SYSTEM_PACKAGES := chromium minisign prometheus buildah debootstrap openjdk-17-jre-headless
# Of train-series: its folder, a folder that gets each checkpoint as well, and other options of rfa train series.
RUN ?= runs/series
COPY_TO ?=
TRAIN_FLAGS ?=
COVERED := build/coverage/report.json

LOCK := docs/deploy/requirements.lock
IMAGE_EXTRAS := redis,tracing

export OMP_NUM_THREADS ?= 1
# The tests start hundreds of interpreters: one that keeps no compiled code compiles all of torch for itself.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help serve test test-all test-all-system check format train-series docs results dist image-test lock sbom audit clean
# Two goals of one call share one environment: they must not install into it at once.
.NOTPARALLEL:
# An interrupted set-up leaves no stamp behind.
.DELETE_ON_ERROR:

help:
	@sed -n '1,8s/^# //p' Makefile

serve: $(VENV)/.serve
	$(BIN)/rfa serve --host $(HOST) --port $(PORT) $(SERVE_FLAGS)

# A file stays in one process: what its tests share is made once, and compiled once.
test: $(VENV)/.develop
test: PYTEST_SELECTION := -m "not slow"
# IMAGE_BASE and NAB_DATA, where they are given, let those tests run that ask for them.
test-all: $(VENV)/.all
test-all: export IMAGE_TEST := $(IMAGE_BASE)
test-all: PYTEST_SELECTION := -p tests.whole --cov --cov-report=json:$(COVERED) --whole-coverage=$(COVERED) \
	--whole-result=results/tests.json -p tests.shards --unfinished --shard $(SHARD)
test test-all:
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_SELECTION) $(PYTEST_FLAGS)

# As root.
test-all-system:
	apt-get update
	apt-get install --yes --no-install-recommends $(SYSTEM_PACKAGES)

check: $(VENV)/.develop
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The copy stays what it is while the repository goes on: the same call resumes the run with the code that began it.
train-series: $(VENV)/.develop
	@test -d $(RUN)/code || { mkdir -p $(RUN)/code && git archive HEAD | tar -x -C $(RUN)/code; }
	cd $(RUN)/code && PYTHONPATH=. NUMBA_NUM_THREADS=1 nice -n 19 $(abspath $(BIN))/python -m rfa train series \
		--config series --out $(abspath $(RUN)) $(if $(COPY_TO),--copy-to $(abspath $(COPY_TO))) $(TRAIN_FLAGS)

format: $(VENV)/.develop
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

results: $(VENV)/.develop
	$(BIN)/python -m rfa.benchmarks.results_page

# Source distribution and wheel in dist/, as an index takes them. The wheel is built from this folder and not from the
# source distribution: it has the compiled kernels, so the first answer after `pip install` compiles nothing.
dist: $(VENV)/.supply $(VENV)/.serve
	rm -rf dist build/lib
	find runtime -name '*.nb[ci]' -delete
	$(BIN)/rfa compile
	$(SUPPLY)/python -m build --sdist --outdir dist .
	$(SUPPLY)/python -m build --wheel --outdir dist .
	$(SUPPLY)/twine check --strict dist/*

# Nothing is fetched: every page, style and script of the site is made here.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet docs build/docs

# The images, really built and run: needs root and buildah; IMAGE_BASE names a base image that exists here.
image-test: $(VENV)/.develop
	IMAGE_TEST=$(or $(IMAGE_BASE),1) $(BIN)/python -m pytest tests/deploy/test_image.py tests/deploy/test_cuda_image.py

# Of what the CPU image installs: its lock with hashes, its bill of materials, known weaknesses. These ask the package index.
lock: $(VENV)/.supply
	$(BIN)/python docs/deploy/requirements.py $(IMAGE_EXTRAS) | $(SUPPLY)/pip-compile --quiet --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --strip-extras --no-annotate --no-header \
		--constraint constraints.txt --output-file $(LOCK) -
	@sed -i '1i # What the CPU image installs: every package by version and by the digests of its files. Made by `make lock`.' $(LOCK)

sbom: $(VENV)/.supply
	$(SUPPLY)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --output-file sbom.json $(LOCK)

audit: $(VENV)/.supply
	$(SUPPLY)/pip-audit --require-hashes --disable-pip --strict --requirement $(LOCK)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.python:
	@$(PYTHON) -c '$(SUITABLE)' || { \
		echo "rfa-server needs Python 3.11 or newer, '$(PYTHON)' is not: call make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "could not create $(VENV): on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.serve: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) --editable '.[plot,redis,tracing]'
	@touch $@

# Tools that look at the environment stay out of it.
$(VENV)/.supply: $(VENV)/.python
	$(PYTHON) -m venv $(VENV)/supply
	$(SUPPLY)/python -m pip install --disable-pip-version-check $(PIP_FLAGS) pip-tools==7.6.2 pip-audit==2.10.1 cyclonedx-bom==7.5.0 \
		build==1.6.1 twine==7.0.0
	@touch $@

# torch comes before everything that asks for it, so that nothing else picks its version or build.
$(VENV)/.develop: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) $(TORCH)
	$(PIP) --editable '.[train,dev,gpu,redis,tracing,bench]'
	@touch $@

# What only some tests need, beside what they all do. The oldest Triton has a folder of its own beside the newest.
$(VENV)/.all: $(VENV)/.develop
	$(PIP) --editable '.[ray,spark,whole]'
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile $(PIP_FLAGS) --no-deps --upgrade \
		--target $(VENV)/triton-$(OLDEST_TRITON) triton==$(OLDEST_TRITON)
	@touch $@

# References are made from the code, which is installed by now: to build it once more would take as long as the rest.
$(VENV)/.docs: $(VENV)/.develop
	$(BIN)/python docs/deploy/requirements.py docs > $(VENV)/docs.txt
	$(PIP) --requirement $(VENV)/docs.txt
	@touch $@
