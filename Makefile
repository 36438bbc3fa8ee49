# make test   sets up a virtual environment and runs the tests
# make demo   shows the tool at work: records baselines, runs green, plants a regression, catches it
# make lint   ruff, mypy and import-linter
# make clean  removes the virtual environment and everything that was generated

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: test demo lint clean

$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[examples]'
	@touch $@

$(VENV)/.test: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[examples,test]'
	@touch $@

$(VENV)/.lint: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[examples,lint]'
	@touch $@

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist loadfile

demo: $(VENV)/.base
	$(BIN)/python examples/demo.py

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) demo perf-report .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
