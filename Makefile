# Every target sets up what it needs; `make setup` is instant when there is nothing to do.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

.PHONY: setup check test test-all bench demo format clean

setup: $(STAMP)

$(STAMP): requirements.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $(STAMP)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu"

bench: setup
	$(BIN)/fledge bench sim

demo: setup
	$(BIN)/python -m fledge.demo

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache runs
