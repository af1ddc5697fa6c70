# demo and test each work first and alone on a clean clone with python 3.11+, g++ and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TORCH  ?= torch==2.13.0
STAMP  := $(VENV)/.installed

.PHONY: demo release demo-fleet test test-all test-integration test-kernels search check bench chaos chaos-agents mutants live results install dev lint clean help axe bench-site compiler man tables docs

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r bootstrap.lock

# Locks hold hashes, no addresses. torch stands apart, by version and without hashes: its build differs from machine to
# machine and from index to index (docs/decisions/0005).
$(STAMP): $(BIN)/uv pyproject.toml requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/uv pip install --quiet --python $(BIN)/python $(TORCH) || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	@touch $@

compiler:
	@command -v "$${CXX:-g++}" >/dev/null || command -v c++ >/dev/null || \
	  { echo "the bundled kernel needs a C++ compiler: sudo apt-get install g++ (on macOS: xcode-select --install)" >&2; exit 1; }

## make demo    measure an example on this machine's CPU, in about a minute: bench demo
install: $(STAMP)
demo: $(STAMP)
	$(BIN)/bench demo

## make demo-fleet  three kinds of machine, two settings each, on the embedded cloud: one report
demo-fleet: compiler $(STAMP)
	$(BIN)/bench fleet launch configs/fleets/demo.yaml
	$(BIN)/bench fleet report last
	$(BIN)/bench cloud stop

WORKERS ?= auto
# Tests write, sync and delete many small files: in memory where there is room for them.
export TMPDIR ?= $(shell test -w /dev/shm && [ $$(df -Pm /dev/shm | awk 'END {print $$4}') -gt 6000 ] && echo /dev/shm || echo /tmp)
# Files in the order of their names: by default those with few tests, which may take long, would come last.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
## make test    the laws of the parts, and one run of everything on an embedded cloud: what to run before each commit
test: $(STAMP)
	$(PYTEST) -m "unit or smoke" tests/unit $$(grep -rl --include='*.py' mark.smoke tests/integration)
	@echo "more: make test-all (commands, machines, kernels: all but the search), make search (chaos and mutants)"

# Half of a test of real machines is waiting: more workers than cores share them, and kernels are computed beside them.
## make test-all  commands, machines and kernels; with COVERAGE=1 the coverage of these and of the parts is measured and judged
test-integration: WORKERS = 4
test-kernels: WORKERS = 3
test-all: $(STAMP)
	@echo "two halves side by side: each prints what it has to say when it has ended"
	@$(MAKE) --no-print-directory --keep-going --jobs=2 $(addprefix --output-sync=,$(if $(filter output-sync,$(.FEATURES)),target)) test-integration test-kernels
test-integration: $(STAMP)
	$(PYTEST) $(if $(COVERAGE),--cov --cov-report= tests/unit) tests/integration
	$(if $(COVERAGE),$(BIN)/python scripts/coverage_gate.py)
test-kernels: $(STAMP)
	$(PYTEST) tests/kernels

## make search  chaos scenarios and planted defects
search: $(STAMP)
	$(PYTEST) tests/search

## make release  build, check, install in an empty environment and run bench demo there; publishes nothing
release: $(STAMP)
	$(BIN)/python scripts/release.py $(TORCH)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/shellcheck startup/startup.sh startup/batch/*.sh .ci/run

## make check   lint, format, types, shell, and make test
check: lint test

## make chaos   search for a run that breaks a promise: N=500 scenarios from SEED=1 on, or one SCENARIO='{...}'
N    ?= 500
SEED ?= 1
chaos: $(STAMP)
	@$(BIN)/python scripts/chaos.py --runs $(N) --seed $(SEED) --scenario '$(SCENARIO)'

## make chaos-agents  the same promises, of the agent that ships on real processes: N=20 stories from SEED=1 on
chaos-agents: N = 20
chaos-agents: $(STAMP)
	@$(BIN)/python scripts/chaos.py --agents $(N) --seed $(SEED)

## make live    verify what we assume about Google in a project of yours, for cents: PROJECT=my-project CAP=0.50 [GPU=1]
ZONE ?= us-central1-a
live: $(STAMP)
	@test -n "$(PROJECT)" -a -n "$(CAP)" || { echo 'make live PROJECT=my-project CAP=0.50 [GPU=1] [BUCKET=…] [ZONE=…]' >&2; exit 2; }
	@$(BIN)/python -m tests.integration.live --project '$(PROJECT)' --bucket '$(BUCKET)' --cap '$(CAP)' --zone '$(ZONE)' $(if $(GPU),--gpu)

## make mutants  plant defects that would break a promise, one at a time: the tests must notice each
mutants: $(STAMP)
	@$(BIN)/python scripts/mutants.py

## make bench   time the tool itself: start-up, status on 1,000 runs, the demo
bench: $(STAMP)
	@$(BIN)/python scripts/bench.py

## make bench-site  time `bench site` on a bucket of 1,000 runs
bench-site: $(STAMP)
	@$(BIN)/python scripts/bench.py --site 1000

## make results  the tables of results/ from the measurements there
results: $(STAMP)
	@for run in results/*/measurements.csv.gz; do folder=$$(dirname $$run); \
	  $(BIN)/bench report $$folder --out build/$$folder --into results/README.md --mark $$(basename $$folder) --table baselines >/dev/null && \
	  cp build/$$folder/report.md build/$$folder/verdicts.csv build/$$folder/repeat.yaml $$folder/ || exit 1; done
	@$(BIN)/python scripts/picture.py results/h200-20261126-backward docs/pictures/answer.svg

## make axe     fetch what judges the pages for people who cannot see them, for the tests alone (needs npm)
AXE_HOME ?= $(HOME)/.cache/spotbench-tests
axe:
	npm install --prefix $(AXE_HOME) --no-save --ignore-scripts --no-audit --no-fund axe-core@4.14.1

## make man     the manual page bench(1), from the words of the help, in build/
man: $(STAMP)
	@mkdir -p build && $(BIN)/bench man >build/bench.1 && echo build/bench.1

## make tables  what docs/ lists of the code: permissions, parts, floors, commands, exit codes, and a JSON Schema of each output
tables: $(STAMP)
	@PYTHONPATH=. $(BIN)/python scripts/tables.py

## make docs    that, and docs/ as a site in build/docs, by mkdocs in an environment of its own
docs: tables
	@test -x build/mkdocs/bin/mkdocs || { $(BIN)/uv venv --quiet --python $(BIN)/python build/mkdocs && \
	  $(BIN)/uv pip install --quiet --python build/mkdocs/bin/python --require-hashes -r mkdocs.lock; }
	build/mkdocs/bin/mkdocs build --strict --quiet --site-dir build/docs

## make clean   remove what make made
clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .coverage*
