# All set-up happens here: `make demo` and `make test` work in a fresh clone with Python 3.11+ and nothing else.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= $(shell scripts/pythons | head -n 1)
VENV := .venv
BIN := $(VENV)/bin
# A file, so that nothing is installed twice; it is older than pyproject.toml when dependencies changed.
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
PROTO_VENV := .venv-proto
PROTO_INSTALLED := $(PROTO_VENV)/.installed
PYTHON_CHECK = test -n "$(PYTHON)" && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "Python 3.11 or newer is needed; '$(PYTHON)' is not one. Say make PYTHON=/path/to/python3"; exit 1; }
SOURCES := gagent_grpc agent_scripts/python scripts tests

.PHONY: help demo test test-one field edges chaos chaos-short check format format-check lint types layers proto proto-lint proto-check bench clean

help:  ## This list
	@grep -hE '^[a-z][a-z-]*:.*  ## ' $(MAKEFILE_LIST) | sed -E 's/:.*  ## /\t/' | expand -t 16

demo: $(INSTALLED)  ## Script agents find each other on a bus and talk; ends by itself
	@$(BIN)/gagent demo

test: $(INSTALLED_DEV)  ## Unit and integration tests on every Python 3.11+ that is here and starts
	@scripts/test-all

test-one: $(INSTALLED_DEV)  ## The same tests on one Python; ARGS="-k name" chooses
	$(BIN)/python -m pytest $(ARGS)

field: $(INSTALLED_DEV)  ## Situations that people met elsewhere, and the mail's promises against a model, on one Python
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/integration/field tests/integration/storage/test_store_model.py $(ARGS)

edges: $(INSTALLED_DEV)  ## What stands around the bus: script agents, models, the gateway, on one Python
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/integration/bridge tests/integration/llm tests/integration/gateway $(ARGS)

chaos: $(INSTALLED_DEV)  ## Kills, power cuts, cut networks, full disks, floods: the long form, about an hour
	@scripts/chaos-tools
	$(BIN)/python -m tests.chaos --long $(ARGS)

chaos-short: $(INSTALLED_DEV)  ## The same faults in their short form, about ten minutes
	@scripts/chaos-tools
	$(BIN)/python -m tests.chaos $(ARGS)

check: format-check lint types layers proto-lint proto-check test edges field chaos-short  ## Everything that CI runs

format: $(INSTALLED_DEV)  ## Format the code and the protos
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/buf format -w protos

format-check: $(INSTALLED_DEV)  ## Fail when `make format` would change something
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/buf format --diff --exit-code protos

lint: $(INSTALLED_DEV)  ## Lint the code
	$(BIN)/ruff check $(SOURCES)

types: $(INSTALLED_DEV)  ## Check the types, strictly
	$(BIN)/mypy

layers: $(INSTALLED_DEV)  ## Check which room may import which
	$(BIN)/lint-imports

proto: $(PROTO_INSTALLED)  ## Generate gagent_grpc/pb from protos/
	$(PROTO_VENV)/bin/python scripts/generate_proto.py

proto-check: $(PROTO_INSTALLED)  ## Fail when the generated code is not what protos/ gives
	@scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	$(PROTO_VENV)/bin/python scripts/generate_proto.py "$$scratch/pb"; \
	diff -r -x __pycache__ gagent_grpc/pb "$$scratch/pb" && echo "generated code is up to date" \
	|| { echo "gagent_grpc/pb is not what protos/ gives: run make proto and commit"; exit 1; }

proto-lint: $(INSTALLED_DEV)  ## Lint the protos
	$(BIN)/buf lint protos

bench: $(INSTALLED_DEV)  ## Measure a pair of agents beside a one-message-per-frame relay, and searches of the directory
	$(BIN)/python tests/bench/pair.py
	$(BIN)/python tests/bench/df_search.py

clean:  ## Remove what the targets above made
	rm -rf .venv* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml
	@$(PYTHON_CHECK)
	@echo "Installing into $(VENV); the first time takes about a minute."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

# The generators live apart: their versions are the oldest that the package supports, and are pinned.
$(PROTO_INSTALLED): Makefile
	@$(PYTHON_CHECK)
	$(PYTHON) -m venv --clear $(PROTO_VENV)
	$(PROTO_VENV)/bin/python -m pip install --quiet grpcio-tools==1.80.0 mypy-protobuf==5.1.0
	@touch $@
