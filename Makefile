# Each target sets up what it needs: the virtual environment in .venv, and what tox makes in .tox.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# tox brings uv along, which links what the environments of tox have; where there is none, pip does the same in a minute.
INSTALL = $(if $(wildcard $(BIN)/uv),$(BIN)/uv pip install --python $(BIN)/python,$(BIN)/python -m pip install) --quiet
.DEFAULT_GOAL := help

.PHONY: help test test-ci test-long test-versions test-spark dist release demo demo-ha rehearse bench docs lint twins clean

help:  ## show this list
	@echo 'Try it: make demo. It installs what it needs into .venv, and takes some minutes.'
	@echo
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(BIN)/tox: | $(BIN)/python
	$(BIN)/python -m pip install --quiet 'tox>=4.11' 'tox-uv>=1.25'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Python 3.11 or newer is needed: make PYTHON=python3.12 …'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: setup.cfg pyproject.toml examples/flights/requirements.txt | $(BIN)/python
	$(INSTALL) --editable '.[spark,demo]' --requirement examples/flights/requirements.txt
	@touch $@

$(VENV)/.demo-ha: setup.cfg pyproject.toml | $(BIN)/python
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.rehearse: setup.cfg pyproject.toml | $(BIN)/python
	$(INSTALL) --editable '.[cluster]'
	@touch $@

test: $(BIN)/tox  ## run the quick tests on the built wheel, in some minutes; skip those whose programs are missing here
	STATESTORE_TEST_WORKERS=$${STATESTORE_TEST_WORKERS:-4} $(BIN)/tox run -e py

test-ci: $(BIN)/tox  ## run what the quick tests leave out: faults, Spark, other software, the code of the pages; what takes turns, as of today
	STATESTORE_TEST_SCALE=$${STATESTORE_TEST_SCALE:-1} $(BIN)/tox run -e py -- -m '(ci or scaled) and not long' --durations 40 --durations-min 5 $(CURDIR)/tests

test-long: $(BIN)/tox  ## run everything, for hours: up to 100,000 simulated schedules of each kind, 500 kills, 1,000 failovers
	STATESTORE_TEST_SCALE=10 $(BIN)/tox run -e py -- -m 'scaled or long' --timeout 7200 $(CURDIR)/tests

# tox does not look into pyenv by itself, whose commands python3.12 and so on are scripts. The Python of the quick tests is
# left out.
test-versions: $(BIN)/tox  ## test on each Python from 3.11 to 3.15 that is there or in Debian's sid, and on the oldest dependencies
	@newer=$$(tools/newer_pythons.sh) || [ -z "$$STATESTORE_REQUIRE_TOOLS" ] && \
	own=$$($(BIN)/python -c 'import sys; print("py%d%d" % sys.version_info[:2])') && \
	PATH=$$PATH:$$(echo $$(pyenv root 2>/dev/null)/versions/3.1[1-5].*/bin | tr ' ' ':'):$$newer \
	$(BIN)/tox run-parallel --parallel 2 --parallel-no-spinner -e $$(echo py315 py314 lowest py313 py312 py311 | sed "s/ $$own\\b//; s/ /,/g")

dist: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null)
dist: $(BIN)/tox  ## build wheel and source distribution into dist/, the same bytes from each build of a commit
	$(BIN)/tox run -e dist

# The second build must be the same as the first, byte for byte.
release:  ## build twice, compare, and say what is missing before the files can be published
	rm -rf dist && $(MAKE) dist
	(cd dist && sha256sum -- *) > .tox/first.sha256 && rm -rf dist && $(MAKE) dist
	cd dist && sha256sum --check --quiet ../.tox/first.sha256
	$(BIN)/python tools/release.py

test-spark: $(BIN)/tox  ## run the Spark tests on PySpark 4.1, 4.2 and 4.3, and once over Spark Connect
	$(BIN)/tox run -e spark41,spark42,spark43,connect

demo: $(VENV)/.demo  ## stream flights from a replicated log through Spark into the state store; kill and freeze drivers, and lose nothing
	cd examples && ../$(BIN)/python -m flights

demo-ha: $(VENV)/.demo-ha  ## run three servers with one log: kill the active one under load, hand over, cut a cable
	cd examples && ../$(BIN)/python -m failover

rehearse: $(VENV)/.rehearse  ## play ten incidents on three servers, and mend each with the runbook's commands; INCIDENTS='disk_full …' chooses some
	cd tests/docs && PYTHONPATH=../../examples ../../$(BIN)/python -m rehearsal $(INCIDENTS)

bench: $(BIN)/tox  ## run the benchmarks; print ratios to the peers that they name
	$(BIN)/tox run -e bench

docs: $(BIN)/tox  ## build the pages into docs/_build/html; DOCS_URL is their address, for previews of links
	$(BIN)/tox run -e docs

lint: $(BIN)/tox  ## run ruff, mypy, pyright and import-linter, and check that the generated modules are fresh
	$(BIN)/tox run -e lint

twins: $(BIN)/tox  ## generate the blocking modules anew from their asyncio sources
	$(BIN)/tox exec -e lint -- python tools/twins.py

clean:  ## remove everything that the other targets made
	rm -rf $(VENV) .tox build dist docs/_build *.egg-info .mypy_cache .ruff_cache .pytest_cache
