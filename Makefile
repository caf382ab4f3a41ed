# Two commands do everything on a fresh machine with Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
TYPING := .cache/typing/stepwell

.PHONY: help venv test test-all check bench demo clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo      simulate the built-in workload under every policy, print the table, write a picture'
	@echo 'make test      the quick tests, in parallel;  make test-all: every test'
	@echo 'make check     lint, format, types, architecture'
	@echo 'make bench     speed of the scheduler and of the simulator'
	@echo 'make venv      only install into .venv (PYTHON=python3.12 chooses the interpreter)'
	@echo 'make clean     remove everything that was generated, .venv included'

venv: $(STAMP)

# Made once, and brought up to date whenever what it should hold changes.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit("Stepwell needs Python 3.11 or newer, this is %d.%d; try: make PYTHON=python3.12" % v)'
	@test -x $(BIN)/pip && $(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(TYPING):
	@mkdir -p $(@D)
	@ln -sfn ../.. $@

test: $(STAMP)
	$(BIN)/python -m pytest -q -m "not slow" -n auto

test-all: $(STAMP)
	$(BIN)/python -m pytest -q -n auto

check: $(STAMP) | $(TYPING)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=.cache/typing $(BIN)/mypy -p stepwell
	$(BIN)/python -m pytest -q tests/test_architecture.py

bench: $(STAMP)
	$(BIN)/stepwell bench scheduler
	$(BIN)/stepwell bench sim

demo: $(STAMP)
	$(BIN)/stepwell demo

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
