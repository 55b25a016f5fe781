# Every target sets up what it needs: a bare clone and Python 3.11 to 3.13 are enough. `make help` lists them.
# Linux and macOS.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# The first Python that is new enough, and not too new for Box2D. Another one: make PYTHON=/path/to/python
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	"$$p" -c '$(FITS)' 2>/dev/null && command -v "$$p" && break; done)

# cpu: torch without CUDA where pip's index offers it, which saves gigabytes on Linux, else the index's default.
# default: the index's default. PIP_ARGS goes to pip: PIP_ARGS='--extra-index-url ...'
TORCH ?= cpu
PIP_ARGS ?=
ARGS ?=
# Three tests at a time, since many wait. Each process has a third of them in the order of the files, so that those of
# one file share what takes long to start; who is done first takes over what the others have left.
SIDE_BY_SIDE := -n 3 --dist worksteal

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt $(PIP_ARGS)
TORCH_CPU := $(shell sed -n 's/^\(torch==[0-9.]*\).*/\1+cpu/p' constraints.txt)

.PHONY: help setup train tb test test-slow lint format types check docs learn presets fuzz faults audit licenses soak bench wheel clean

help: ## this list
	@echo 'make <target> [ARGS="..."]'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo 'Variables: ARGS for the command, PYTHON to set up with, TORCH=cpu|default, PIP_ARGS for pip.'

train: $(VENV)/ready ## a training run: make train ARGS="env=lunar workers=16"; without ARGS, CartPole until it is solved
	$(BIN)/python -m a3c_exp $(ARGS)
	@echo 'To type commands without make: source $(VENV)/bin/activate'

tb: $(VENV)/ready ## TensorBoard on outputs/
	$(BIN)/tensorboard --logdir outputs $(ARGS)

test: $(VENV)/dev ## the test suite, minutes; make test ARGS=tests/test_returns.py for a part of it
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

test-slow: $(VENV)/dev ## the slower checks
	$(BIN)/python -m pytest -m slow -o faulthandler_timeout=3600 $(ARGS)

lint: $(VENV)/dev ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/dev ## let ruff put right what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/dev ## mypy, strict
	$(BIN)/mypy

check: lint types test ## all that a change has to pass

docs: $(VENV)/docs ## this manual as a site in build/site; fails at a warning
	$(BIN)/python -m sphinx -E -W --keep-going -q -c docs . build/site $(ARGS)
	@echo 'build/site/docs/index.html'

learn: $(VENV)/bench ## train every environment over its seeds; writes RESULTS.md. One: make learn ENV=lunar. Takes hours
	$(BIN)/python -m evidence.study $(if $(ENV),--env $(ENV)) $(ARGS)

presets: $(VENV)/bench ## train every preset to its own end; writes RESULTS.md. One: make presets ARGS="--only preset_ppo_pong_solved". Takes a day
	$(BIN)/python -m evidence.study --presets $(ARGS)

fuzz: $(VENV)/dev ## wrong and damaged input at random: make fuzz ARGS="--seed 1 --overrides 1000 --runs 20 --files 50". Takes half an hour
	$(BIN)/python -m evidence.bench.fuzz $(ARGS)

faults: $(VENV)/dev ## kills, full disks, damaged checkpoints and more in whole runs: make faults ARGS="--only kill --times 2". Linux, 40 minutes
	$(BIN)/python -m evidence.bench.faults $(ARGS)

audit: $(VENV)/ready ## known vulnerabilities of the versions in constraints.txt, by pip-audit. Needs the network
	@$(BIN)/python -c 'import pip_audit' 2>/dev/null || $(PIP) 'pip-audit>=2.7' || { \
		echo 'make audit: pip-audit is not installed, and pip cannot fetch it: pip install pip-audit'; exit 1; }
	@$(BIN)/python -m pip_audit --strict --no-deps --disable-pip --progress-spinner off -r constraints.txt $(ARGS) || { \
		echo 'make audit: a version above is vulnerable, or could not be looked up (is the network there?)'; exit 1; }

licenses: $(VENV)/dev ## the license of every package that is needed; exit code 1 if one is not in the lists of pyproject.toml
	$(BIN)/python -m evidence.bench.licenses

soak: $(VENV)/bench ## memory, descriptors, threads and speed of long runs: make soak ARGS="--only ray --minutes 10". Takes two hours
	$(BIN)/python -m evidence.bench.soak $(ARGS)

bench: $(VENV)/bench ## speed and memory beside what they are compared with; writes evidence/bench/RESULTS.md
	$(BIN)/python -m evidence.bench $(ARGS)

wheel: $(VENV)/dev ## a wheel in dist/
	$(BIN)/python -m pip --disable-pip-version-check wheel --no-deps --wheel-dir dist .

setup: $(VENV)/dev ## only set up .venv, for development

clean: ## remove the environment and the caches; outputs/ stays
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: made again when what is to be installed has changed.
$(VENV)/ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo 'Python 3.11, 3.12 or 3.13 is needed: make PYTHON=/path/to/python'; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if $(BIN)/python -c 'import torch' 2>/dev/null; then :; \
	elif [ "$(TORCH)" = cpu ] && echo 'Installing $(TORCH_CPU) and the rest: about 0.4 GB come in.' && \
		$(PIP) '$(TORCH_CPU)' 2>$(VENV)/torch.log; then :; \
	elif [ "$$(uname)" = Linux ]; then \
		echo 'Installing torch with CUDA: about 4.9 GB come in. Without it they are 0.4 GB: stop this with Ctrl-C, and'; \
		echo 'name an index that has torch for CPUs: make train TORCH=cpu PIP_ARGS="--extra-index-url <index>"'; fi
	@echo 'Installing the other packages. pip says nothing while it unpacks them: about two minutes with CUDA.'
	$(PIP) -e '.[atari,report]'
	@touch $@

$(VENV)/dev: $(VENV)/ready
	$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/docs: $(VENV)/ready
	$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/bench: $(VENV)/ready
	$(PIP) -e '.[bench]'
	@touch $@
