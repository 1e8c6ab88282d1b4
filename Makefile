# make run: set up and take the tour.  make test: set up and run every check.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NODE := $(shell command -v npm)

.PHONY: run test test-full lint types layers pytest browser-note page build-page format clean

run: $(READY)
	$(BIN)/qkv tour

test: lint types layers page pytest

test-full: lint types layers page browser-note $(READY)
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

# imports point down only
layers: $(READY)
	$(BIN)/lint-imports --no-cache

pytest: browser-note $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not long" -n 2

browser-note:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  echo "note: no chromium found, browser tests are skipped (Debian: apt-get install chromium)"

# The built page ships with the package, so that users need no Node. This checks and tests the source, builds it again
# and compares the result with what ships.
ifeq ($(NODE),)
page:
	@echo "note: no npm found, the checks of the page are skipped (install Node 20 to run them)"
else
page: web/node_modules/.ready
	cd web && npm run --silent check && npm run --silent test
	rm -rf web/.built && cd web && QKV_PAGE=.built/page QKV_VIEWER=.built/viewer npm run --silent build
	diff -r web/.built/page src/qkv/studio/page && diff -r web/.built/viewer src/qkv/interp/viewer/static || \
	  { echo "the page or the viewer that ships differs from what web/ builds: run make build-page"; exit 1; }
endif

# builds the studio's page (src/qkv/studio/page) and the viewer of exported pages (src/qkv/interp/viewer/static)
build-page: web/node_modules/.ready
	cd web && npm run --silent build

web/node_modules/.ready: web/package.json web/package-lock.json
	cd web && npm install --no-save --no-audit --no-fund --silent  # npm ci refuses a registry that lacks other platforms
	@touch web/node_modules/.ready

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
