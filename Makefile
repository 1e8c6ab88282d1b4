# make run: set up and take the tour.  make test: set up and pass every gate.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test test-full lint types floors pytest browser format clean

run: $(READY)
	$(BIN)/qkv tour

test: lint types floors pytest

test-full: lint types floors $(READY) browser
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "" -n 2

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/pyright

floors: $(READY)
	$(BIN)/lint-imports --no-cache

pytest: $(READY) browser
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not long" -n 2

# the pages are tested in Debian's chromium where it is there or may be installed; elsewhere those tests are skipped
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || true

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
