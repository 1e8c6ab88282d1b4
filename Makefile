# make run: set up and take the tour.  make test: set up and pass every gate.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test test-full lint types floors pytest browser page build-page format clean

run: $(READY)
	$(BIN)/qkv tour

test: lint types floors page pytest

test-full: lint types floors page $(READY) browser
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

# the page ships built, so that a user needs no node: here it is checked, tested, built anew and compared with what ships
page: web/node_modules/.ready
	cd web && npm run --silent check && npm run --silent test
	rm -rf web/.built && cd web && QKV_PAGE=.built npm run --silent build -- --logLevel warn
	diff -r web/.built src/qkv/studio/page || { echo "the page that ships is not what web/ builds: make build-page"; exit 1; }

build-page: web/node_modules/.ready
	cd web && npm run --silent build -- --logLevel warn

web/node_modules/.ready: web/package.json web/package-lock.json
	cd web && npm install --no-save --no-audit --no-fund --silent  # npm ci refuses a registry that lacks other platforms
	@touch web/node_modules/.ready

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
