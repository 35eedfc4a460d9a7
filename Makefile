# Every target sets up what it needs; `make setup` is instant when there is nothing to do.
# PYTHON names the interpreters to try, the first that is 3.11 or later makes .venv: make PYTHON=/path/to/python
PYTHON ?= python3.11 python3.12 python3.13 python3 python
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

.DEFAULT_GOAL := help
.PHONY: help setup shell check docs browser services test test-all test-gpu bench soak demo format clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '%-10s %s\n' "$$name" "$$text"; done

setup: $(STAMP)  ## make .venv with the versions of requirements.txt, and Fledge in it

$(STAMP): requirements.txt pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $(STAMP)

$(BIN)/python:
	@for python in $(PYTHON); do \
		if "$$python" -c "import sys; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1; then \
			echo "$$python -m venv $(VENV)"; exec "$$python" -m venv $(VENV); \
		fi; \
	done; \
	echo "Fledge needs Python 3.11 or later, but there is none among: $(PYTHON). Install one, or name it: make PYTHON=/path/to/python." >&2; \
	exit 1

shell: setup  ## open a shell in which `fledge` and `python` are those of .venv
	@echo "exit leaves this shell; without it: . $(BIN)/activate"
	@. $(BIN)/activate && exec "$${SHELL:-/bin/sh}"

check: setup  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: setup  ## build the documentation, docs/_build/html/index.html; warnings, dead links and pages that are too wide are errors
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python docs/_ext/check_links.py docs/_build/html
	$(BIN)/python docs/_ext/check_widths.py docs/_build/html

browser:  ## Debian's chromium and its driver, for the tests of the browser app; without them these are skipped
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then \
		echo "chromium and its driver are there"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq; apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null \
		|| echo "chromium and chromium-driver cannot be installed: the tests of the browser app will be skipped"; \
	else \
		echo "chromium and chromium-driver are missing, and only root can apt-get them: the tests of the browser app will be skipped"; \
	fi

services:  ## Debian's PostgreSQL and iproute2, for the tests of sweeps and of several hosts; without them these are skipped
	@if ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && command -v ip >/dev/null && command -v tc >/dev/null; then \
		echo "PostgreSQL, ip and tc are there"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq; apt-get install -y -qq --no-install-recommends postgresql iproute2 >/dev/null \
		|| echo "postgresql and iproute2 cannot be installed: tests that need them will be skipped"; \
	else \
		echo "PostgreSQL or iproute2 is missing, and only root can apt-get them: tests that need them will be skipped"; \
	fi

test: setup  ## the tests, without the slow ones
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: setup  ## all tests that need no GPU
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu"

test-gpu: setup  ## the tests that need an NVIDIA GPU, and its speed: gpu.json, which you can send us
	CUBLAS_WORKSPACE_CONFIG=:4096:8 $(BIN)/python -m pytest -m gpu tests/gpu
	$(BIN)/python -m tests.gpu.speed > gpu.json
	@echo "gpu.json has the speed of this GPU"

bench: setup  ## simulation speed beside its baselines; more with `python -m benchmarks`
	$(BIN)/python -m benchmarks sim

soak: setup  ## run everything for MINUTES (30) and see that nothing grows: soak/soak.png
	$(BIN)/python -m benchmarks soak --minutes $(or $(MINUTES),30)

demo: setup  ## learn to fly from nothing and show it: demo/report.html
	$(BIN)/python examples/demo.py

format: setup  ## format the code, and mend what lint can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove .venv, caches, builds and runs
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist docs/_build runs soak
