# One verb per thing one does here; CI uses the same ones.

VENV   := .venv
BIN    := $(VENV)/bin
SEEDS  ?= 300
# The torch of make test-torch. 2.14 and later come with CUDA, several GB.
TORCH  ?= 2.13.0
# An interpreter with torch for make bench; empty: .venv-torch's.
TORCH_PYTHON ?=
# More for pytest, as in: make test ARGS="-k wire"
ARGS   ?=
# The first Python of 3.11 or later that can make a virtual environment. Override: make PYTHON=/path/to/python test
FIND_PYTHON = for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$$p"; break; }; done
PYTHON ?= $(shell $(FIND_PYTHON))
APT_LINE := apt-get install git make python3-venv

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-torch test-frameworks test-compose check format sim bench faults soak training docs clean
.DELETE_ON_ERROR:

help:
	@echo "make demo            set up, then watch all-reduces survive the loss of a NIC"
	@echo "make test            set up, then run all tests (ARGS=... goes to pytest)"
	@echo "make test-torch      the tests that need torch, with TORCH=2.13.0 in an environment of its own"
	@echo "make test-frameworks trainings with accelerate, DeepSpeed, Lightning, Horovod's names (docs/frameworks.md)"
	@echo "make test-compose    all-reduces in 4 containers, NICs cut in five ways (root and Docker; docs/docker.md)"
	@echo "make check           lint, formatting, types, architecture"
	@echo "make sim SEEDS=300   that many simulated worlds with faults"
	@echo "make bench           beside gloo, Open MPI and MPTCP, half an hour: docs/performance-figures.md (ARGS=--quick: sooner)"
	@echo "make faults          every kind of fault on emulated hosts, about an hour: docs/faults.md (ARGS=\"--cuts 3\": sooner)"
	@echo "make soak            a fault every second for ten minutes, and an hour of virtual time: docs/soak.md"
	@echo "make training        a GPT through the loss of a NIC, beside gloo, half an hour: docs/training.md"
	@echo "make docs            write docs/settings.md anew, and build the documentation into site/"
	@echo "make setup | format | clean"

# Stamps: what is installed is installed again only when pyproject.toml changes.
RUNTIME := $(VENV)/.runtime-installed
DEV     := $(VENV)/.dev-installed
DOCS    := $(VENV)/.docs-installed

setup: $(DEV)

$(BIN)/pip:
	@if [ -z "$(PYTHON)" ] || ! "$(PYTHON)" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		echo "Python 3.11 or later with its venv module is missing. On Debian or Ubuntu:"; \
		echo "    $(APT_LINE)"; \
		echo "or name one: make PYTHON=/path/to/python3"; \
		exit 1; \
	fi
	"$(PYTHON)" -m venv $(VENV)

$(RUNTIME): pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(DEV): pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(RUNTIME) $@

$(DOCS): pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $(RUNTIME) $@

demo: $(RUNTIME)
	$(BIN)/r2ccl demo $(ARGS)

# Tests of pure code and of simulated worlds share the cores; those with processes and networks have the machine to
# themselves. 5: what ARGS asks for is not among these; that it is in neither is a failure.
test: $(DEV)
	@none=; \
	$(BIN)/python -m pytest -n 2 -m "not end_to_end" $(ARGS) || { [ $$? -eq 5 ] && none=yes; } || exit 1; \
	$(BIN)/python -m pytest -m end_to_end $(ARGS) || { [ $$? -eq 5 ] && [ -z "$$none" ]; }

test-torch: $(DEV)
	$(BIN)/python -m pytest -m torchrun --torchrun="$$(TORCH=torch==$(TORCH) scripts/ci/torch_venv.sh)" $(ARGS)

# -rs: one that cannot be had is skipped, and why is the point.
test-frameworks: $(DEV)
	$(BIN)/python -m pytest -rs -m frameworks --frameworks="$$(scripts/ci/frameworks_venv.sh)" $(ARGS)

test-compose: $(RUNTIME)
	$(BIN)/python -m tests.compose.run

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/python -m pytest -q tests/test_architecture.py

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sim: $(DEV)
	$(BIN)/python -m r2ccl.sim.swarm --seeds $(SEEDS)

# Open MPI is among the tools of .venv; torch, for gloo, is in .venv-torch, made here unless TORCH_PYTHON names another.
bench: $(DEV)
	@torch="$(TORCH_PYTHON)"; \
	if [ -z "$$torch" ]; then \
		torchrun=$$(TORCH=torch==$(TORCH) scripts/ci/torch_venv.sh) || exit 1; \
		torch=$${torchrun%/*}/python; \
	fi; \
	$(BIN)/r2ccl performance --write docs/performance-figures.md --plots docs/images --torch-python "$$torch" $(ARGS)

faults: $(RUNTIME)
	$(BIN)/r2ccl faults --write docs/faults.md --plot docs/images/faults.svg $(ARGS)

soak: $(RUNTIME)
	$(BIN)/r2ccl soak --write docs/soak.md --plot docs/images/soak.svg $(ARGS)

training: $(DEV)
	$(BIN)/python examples/train_gpt_through_a_cut.py --python "$$(dirname "$$(scripts/ci/torch_venv.sh)")/python" \
		--pairs 5 --write docs/training.md --plot docs/images/training.svg $(ARGS)

docs: $(DOCS)
	$(BIN)/python scripts/settings_reference.py >docs/settings.md.new
	mv docs/settings.md.new docs/settings.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) site .venv-torch .venv-frameworks .venv-second build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find r2ccl tests examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +
