# Kant. `make help` lists what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Where to listen; Kant itself refuses demo accounts on anything but loopback.
PORT ?= 8000
FLEET ?= demo

.PHONY: help setup setup-dev run test check bench format

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/bin/python:
	@[ -n "$(PYTHON)" ] && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Kant needs Python 3.11 or newer; '$(PYTHON)' is not. Install it, or: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@[ -w . ] || { echo "This folder is read-only; clone Kant to a place you may write to."; exit 1; }
	@echo "Creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) || { echo "python3.11 -m venv failed; on Debian: apt-get install python3.11-venv"; rm -rf $(VENV); exit 1; }

$(VENV)/.runtime: requirements.txt | $(VENV)/bin/python
	@echo "Installing packages ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/.dev: requirements.txt requirements-dev.txt | $(VENV)/bin/python
	@echo "Installing packages ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $(VENV)/.runtime $@

setup: $(VENV)/.runtime ## Create the environment (a second when nothing changed)
	@$(BIN)/python -m scheduling.compile_core

setup-dev: $(VENV)/.dev
	@$(BIN)/python -m scheduling.compile_core

run: setup ## Run Kant with an embedded cluster at http://localhost:8000 (PORT=, FLEET=demo|paper|large)
	@MALLOC_ARENA_MAX=2 exec $(BIN)/python manage.py serve --port $(PORT) --fleet $(FLEET)

# The core is tested as Python interprets it, and as machine code with all the rest.
# Browser tests run by themselves: Playwright keeps an event loop in its process, which asyncio.run
# in other tests refuses.
test: setup-dev ## Run all tests (and again on PostgreSQL where KANT_TEST_POSTGRES names one)
	KANT_INTERPRETED=1 $(BIN)/pytest -n 2 tests/engine tests/simulator
	$(BIN)/pytest -n 2 -m "not browser"
	$(BIN)/pytest -n 2 -m browser
	@if [ -n "$$KANT_TEST_POSTGRES" ]; then set -x; \
	  DATABASE_URL="$$KANT_TEST_POSTGRES" $(BIN)/pytest -n 2 -m "not apiserver and not browser and not live" tests/tenants tests/scheduling tests/metrics; fi

check: setup-dev ## Format, lint, types, import contracts, migrations, vendored files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy .
	$(BIN)/lint-imports
	$(BIN)/python manage.py check
	$(BIN)/python manage.py makemigrations --check --dry-run

bench: setup-dev ## Run every benchmark; each prints one JSON document
	@for name in $$($(BIN)/python manage.py bench --list); do $(BIN)/python manage.py bench $$name --json || exit 1; done

format: setup-dev ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
