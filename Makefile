# make serve     set up everything for serving (without torch), and serve every bundle in bundles/ on HOST:PORT
# make test      set up everything, and run all tests that are not slow (minutes)
# make test-all  set up all packages, and run all tests or a part (SHARD=1/4). Files that passed at the same commit are not
#                run again. Reasons of skipped tests and the coverage are written to results/tests.json
# make check     set up everything, and run the linter, the formatter and the type checker
# make results   write docs/RESULTS.md and the table of README.md from the files in results/
# make train-series  train the series network in RUN, from a copy of the committed code, at low priority
# make docs      set up everything, and build the documentation in build/docs; a warning is an error
#
# Packages are installed in .venv. This is repeated only if pyproject.toml or constraints.txt changes (see the stamps in .venv).

# The first Python that is new enough. An older python3 must not hide a newer one that is also installed.
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
# Number of test processes: one per core, and one more because tests wait for a quarter of the time. The numeric libraries
# run one thread in each process. nproc would report the value of OMP_NUM_THREADS, so it is unset.
CORES := $(shell env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2>/dev/null || echo 2)
TEST_WORKERS ?= $(shell expr $(CORES) + 1)
SERVE_FLAGS ?=

BIN := $(VENV)/bin
# Python compiles modules when they are first imported. pip would spend a minute on modules that are never imported.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile $(PIP_FLAGS) --constraint constraints.txt
TORCH := torch==2.13.0
OLDEST_TRITON := 3.6.0

SUPPLY := $(VENV)/supply/bin
# Debian packages that tests need: a browser, minisign, promtool for the unit tests of the alerts, and, for IMAGE_BASE,
# the tools that create a base image and build on it.
SYSTEM_PACKAGES := chromium minisign prometheus buildah debootstrap openjdk-17-jre-headless
# Options of train-series: the directory of the run, a second directory for checkpoints, and options of rfa train series.
RUN ?= runs/series
COPY_TO ?=
TRAIN_FLAGS ?=
COVERED := build/coverage/report.json

LOCK := docs/deploy/requirements.lock
IMAGE_EXTRAS := redis,tracing

export OMP_NUM_THREADS ?= 1
# The tests start hundreds of interpreters. Without stored bytecode, each of them would compile all of torch.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help serve test test-all test-all-system check format train-series docs results dist image-test lock sbom audit clean
# Two goals of one call share an environment, so they must not install packages at the same time.
.NOTPARALLEL:
# An interrupted installation must not leave a stamp.
.DELETE_ON_ERROR:

help:
	@sed -n '1,8s/^# //p' Makefile

serve: $(VENV)/.serve
	$(BIN)/rfa serve --host $(HOST) --port $(PORT) $(SERVE_FLAGS)

# All tests of a file run in one process, so that fixtures and kernels of a file are created once.
test: $(VENV)/.develop
test: PYTEST_SELECTION := -m "not slow"
# IMAGE_BASE and NAB_DATA, if set, enable the tests that need them.
test-all: $(VENV)/.all
test-all: export IMAGE_TEST := $(IMAGE_BASE)
test-all: PYTEST_SELECTION := -p tests.whole --cov --cov-report=json:$(COVERED) --whole-coverage=$(COVERED) \
	--whole-result=results/tests.json -p tests.shards --unfinished --shard $(SHARD)
test test-all:
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_SELECTION) $(PYTEST_FLAGS)

# Must be run as root.
test-all-system:
	apt-get update
	apt-get install --yes --no-install-recommends $(SYSTEM_PACKAGES)

check: $(VENV)/.develop
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The copy does not change when the repository does, so the same command resumes the run with the code that started it.
train-series: $(VENV)/.develop
	@test -d $(RUN)/code || { mkdir -p $(RUN)/code && git archive HEAD | tar -x -C $(RUN)/code; }
	cd $(RUN)/code && PYTHONPATH=. NUMBA_NUM_THREADS=1 nice -n 19 $(abspath $(BIN))/python -m rfa train series \
		--config series --out $(abspath $(RUN)) $(if $(COPY_TO),--copy-to $(abspath $(COPY_TO))) $(TRAIN_FLAGS)

format: $(VENV)/.develop
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

results: $(VENV)/.develop
	$(BIN)/python -m rfa.benchmarks.results_page

# Source distribution and wheel in dist/, in the form for a package index. The wheel is built from this directory and not
# from the source distribution, so that it contains compiled kernels and nothing is compiled after `pip install`.
dist: $(VENV)/.supply $(VENV)/.serve
	rm -rf dist build/lib
	find runtime -name '*.nb[ci]' -delete
	$(BIN)/rfa compile
	$(SUPPLY)/python -m build --sdist --outdir dist .
	$(SUPPLY)/python -m build --wheel --outdir dist .
	$(SUPPLY)/twine check --strict dist/*

# Builds the site without network access.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet docs build/docs

# Build and run the images. Needs root and buildah. IMAGE_BASE names an existing base image.
image-test: $(VENV)/.develop
	IMAGE_TEST=$(or $(IMAGE_BASE),1) $(BIN)/python -m pytest tests/deploy/test_image.py tests/deploy/test_cuda_image.py

# Supply chain of the CPU image: lock file with hashes, bill of materials, known vulnerabilities. These query the package index.
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

# Tools that inspect the environment are installed in a separate one.
$(VENV)/.supply: $(VENV)/.python
	$(PYTHON) -m venv $(VENV)/supply
	$(SUPPLY)/python -m pip install --disable-pip-version-check $(PIP_FLAGS) pip-tools==7.6.2 pip-audit==2.10.1 cyclonedx-bom==7.5.0 \
		build==1.6.1 twine==7.0.0
	@touch $@

# torch is installed before packages that depend on it, so that they do not select another version or build of it.
$(VENV)/.develop: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) $(TORCH)
	$(PIP) --editable '.[train,dev,gpu,redis,tracing,bench]'
	@touch $@

# Packages that only some tests need. The oldest supported Triton is installed in a separate directory.
$(VENV)/.all: $(VENV)/.develop
	$(PIP) --editable '.[ray,spark,whole]'
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile $(PIP_FLAGS) --no-deps --upgrade \
		--target $(VENV)/triton-$(OLDEST_TRITON) triton==$(OLDEST_TRITON)
	@touch $@

# References are generated from the installed code. A separate build environment would take as long as the rest.
$(VENV)/.docs: $(VENV)/.develop
	$(BIN)/python docs/deploy/requirements.py docs > $(VENV)/docs.txt
	$(PIP) --requirement $(VENV)/docs.txt
	@touch $@
