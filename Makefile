# Each target creates .venv and installs aurank into it when pyproject.toml is newer than the last installation.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.aurank-installed

.PHONY: demo check test lint format docs names dist bench clean

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/aurank demo --out runs/demo

check: lint
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow"

test: $(INSTALLED)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

names: $(INSTALLED)
	$(BIN)/python -P tests/testing/public.py

dist: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m hatchling build

bench: $(INSTALLED)
	$(BIN)/python tools/bench_losses.py
	$(BIN)/python tools/bench_evaluation.py --gallery --argsort --peers --scale 15000 30000 60502

clean:
	rm -rf runs build dist site .mypy_cache .pytest_cache .ruff_cache
