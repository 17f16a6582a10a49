# Kant. `make help` lists what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Where to listen; Kant itself refuses demo accounts on anything but loopback.
PORT ?= 8000
FLEET ?= demo
# As they were given: no shell reads them.
export PORT FLEET
# Each of the many processes of a run would compile all modules for itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help python environment-dev setup setup-dev wheel servers image run test pass-core pass-pages test-fast test-nightly check manifests screenshots bench format

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

python:
	@[ -n "$(PYTHON)" ] && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Kant needs Python 3.11 or newer; '$(PYTHON)' is not. Install it, or: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }

environment-dev: python
	@$(PYTHON) -I kant/environment.py --dev

setup: python ## Create the environment and compile the core (a second when nothing changed)
	@$(PYTHON) -I kant/environment.py
	@$(BIN)/python -m scheduling.compile_core

wheel: setup ## Make dist/kant-*.whl with the compiled core: pip installs it without a compiler
	@rm -rf dist
	@tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT \
	  && $(BIN)/python -m pip install --quiet --target "$$tools" -r requirements-build.txt \
	  && PYTHONPATH="$$tools" $(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
	@rm -rf build kant.egg-info
	@ls dist/*.whl

setup-dev: environment-dev
	@$(BIN)/python -m scheduling.compile_core

# kube-apiserver, etcd and the Job controller are built once, before any test that has a limit of time.
servers: environment-dev
	@$(BIN)/python -m tests.kube.apiserver build || [ -z "$$CI" ]

# So is what the image has, which the tests of it share.
image: setup-dev
	@$(BIN)/python -m tests.deploy.image

# It answers at once; the core is compiled beside it and used from the next start on.
run: python ## Run Kant with an embedded cluster at http://localhost:8000 (PORT=, FLEET=demo|paper|large)
	@$(PYTHON) -I kant/environment.py "--port=$$PORT" "--fleet=$$FLEET"
	@MALLOC_ARENA_MAX=2 exec $(BIN)/python manage.py serve "--port=$$PORT" "--fleet=$$FLEET"

# The core is tested as machine code with all the rest. As Python interprets it, by day those tests
# alone that machine code does not allow: `test_compiled` shows that both decide the same. At night
# all but these, which are long.
NATIVE := backfill_histories compiled cycle_machine fair_users forecast preempt_chains preempt_optimum \
  queue_machine rehearse without_gpus_histories
INTERPRETED = $(if $(filter all,$(KANT_TEST_CASES)),-n 2,-m interpreted)
# In folders whose other tests are run again on PostgreSQL, these have no database.
STUDIES := arrived charts definitions easy experiment foresight interrupts simulate simulation_files \
  studies undivided
# These read what is stored by statements that others try on PostgreSQL too, and compute long.
COMPUTED := metrics/test_eta metrics/test_replay_quotas metrics/test_replays scheduling/test_api_logs \
  scheduling/test_job_rules scheduling/test_rehearsal scheduling/test_startable tenants/test_sign_on tenants/test_texts
# By day these, too: each act is tried on PostgreSQL by its own tests, and to read all tables before and
# after each of thousands takes three times as long there.
COMPUTED += $(if $(filter all,$(KANT_TEST_CASES)),,scheduling/test_acts_and_dry_runs scheduling/test_acts_and_page_previews)
# Each process that collects this makes its thousands of cases, for eight seconds. It finds more where
# the database refuses more, so that it is among the tests on PostgreSQL where there is one.
FUZZED := tests/tenants/test_openapi.py
test: setup-dev servers image ## Run all tests (and again on PostgreSQL where KANT_TEST_POSTGRES names one)
	@$(MAKE) --no-print-directory --jobs 2 --keep-going --output-sync=line pass-core pass-pages

# Two passes go on beside each other: browser tests and live ones wait a third of their time.
# Browser tests run by themselves: Playwright keeps an event loop in its process, which asyncio.run
# in other tests refuses.
pass-core:
	KANT_INTERPRETED=1 $(BIN)/pytest $(INTERPRETED) $(NATIVE:%=--ignore tests/engine/test_%.py) tests/engine tests/simulator
	$(BIN)/pytest -n 3 --dist worksteal -m "not browser" --ignore $(FUZZED)

# PostgreSQL tells what is wrong with it also where a page fails.
pass-pages:
	@failed=; set -x; $(BIN)/pytest -n 2 --dist worksteal -m browser tests/e2e || failed=pages; \
	if [ -n "$$KANT_TEST_POSTGRES" ]; then \
	  DATABASE_URL="$$KANT_TEST_POSTGRES" $(BIN)/pytest -n 1 -m "stored and not apiserver and not browser and not live" \
	  $(STUDIES:%=--ignore tests/metrics/test_%.py) $(COMPUTED:%=--ignore tests/%.py) tests/tenants tests/scheduling tests/metrics tests/webhooks \
	  || failed="$$failed postgres"; \
	else $(BIN)/pytest $(FUZZED) || failed="$$failed fuzz"; fi; test -z "$$failed"

# Without random histories and the fuzz of REST, which take as long as all the rest.
test-fast: setup-dev ## Test the core and the services without servers, in a few minutes
	$(BIN)/pytest -n 2 --dist worksteal -m "not apiserver and not browser and not live" \
	  $(NATIVE:%=--ignore tests/engine/test_%.py) --ignore $(FUZZED) \
	  tests/engine tests/simulator tests/tenants tests/scheduling tests/webhooks

test-nightly: export KANT_TEST_CASES=all
test-nightly: test ## Run all tests with all random cases, and new ones in each run

check: setup-dev ## Format, lint, types, import contracts, migrations, names that tests import
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy .
	$(BIN)/lint-imports
	$(BIN)/python manage.py check
	$(BIN)/python manage.py makemigrations --check --dry-run
	@# mypy leaves tests out: that what they import is there shows in seconds, not after a pass.
	$(BIN)/pytest --collect-only -qq >$(VENV)/collected || { cat $(VENV)/collected; exit 1; }

manifests: servers ## Make the manifests of deploy/ of its chart, and what watches Kant of its definition
	$(BIN)/python -m tests.deploy.chart

screenshots: setup-dev ## Make the pictures of README and docs, and of the main pages (needs Chromium)
	$(BIN)/python -m tests.e2e.pictures

bench: setup-dev ## Run every benchmark; each prints one JSON document
	@for name in $$($(BIN)/python manage.py bench --list); do $(BIN)/python manage.py bench $$name --json || exit 1; done

format: setup-dev ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
