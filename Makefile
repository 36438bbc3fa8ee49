# make test   sets up a virtual environment and runs the tests
# make demo   shows the tool at work: records baselines, runs green, plants a regression, catches it
# make lint   ruff, mypy and import-linter
# make clean  removes the virtual environment and everything that was generated

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Bytecode of torch's thousands of modules takes pip half a minute; most of them are never imported. Python compiles
# those that are, once, unless the environment forbids it, and then every worker process would compile them again.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test demo lint clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[examples]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[examples,test]'
	@touch $@

$(VENV)/.lint: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[examples,lint]'
	@touch $@

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist loadfile

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) demo perf-report .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
