# Each target sets up what it needs: the virtual environment in .venv, and what tox makes in .tox.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
.DEFAULT_GOAL := help

.PHONY: help test test-versions dist test-spark test-long fuzz demo demo-ha bench docs lint twins clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(BIN)/tox: | $(BIN)/python
	$(BIN)/python -m pip install --quiet 'tox>=4.11'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Python 3.11 or newer is needed: make PYTHON=python3.12 …'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: setup.cfg pyproject.toml examples/flights/requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[spark,demo]' --requirement examples/flights/requirements.txt
	@touch $@

$(VENV)/.demo-ha: setup.cfg pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

test: $(BIN)/tox  ## lint, type check, documentation, tests on the built wheel
	$(BIN)/tox run -e lint,docs,py

# tox does not look into pyenv by itself, whose commands python3.12 and so on are scripts.
test-versions: export PATH := $(PATH):$(shell echo $$(pyenv root 2>/dev/null)/versions/3.1[1-4].*/bin | tr ' ' ':')
test-versions: $(BIN)/tox  ## the quick tests on each Python from 3.11 to 3.14 that is there, and on the oldest versions of all dependencies
	$(BIN)/tox run-parallel --parallel 2 --parallel-no-spinner -e py311,py312,py313,py314,lowest

dist: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null)
dist: $(BIN)/tox  ## wheel and source distribution into dist/, the same from each build of a commit
	$(BIN)/tox run -e dist

test-spark: $(BIN)/tox  ## the Spark tests on PySpark 4.1, 4.2 and 4.3, and once over Spark Connect
	$(BIN)/tox run -e spark41,spark42,spark43,connect

test-long: $(BIN)/tox test-spark  ## also 100,000 simulated schedules of each kind, five contenders on one lock for a minute, 500 kills of a durable server, and of log peers, 500 faults and 1,000 histories of failovers under a check for linearizability, 200 schedules of lost Spark tasks and 60 kills of Spark drivers and executors, 200 orders of faults around two of Spark's drivers, and around a stream of each kind in one session, ten minutes of writes to a cluster
	STATESTORE_SCHEDULES=100000 KVSTORE_SCHEDULES=100000 CLUSTER_SCHEDULES=100000 CLUSTER_MACHINE_SCHEDULES=20000 CLUSTER_MUTANT_LIMIT=2000 RAFT_SCHEDULES=100000 RAFT_DISK_SCHEDULES=5000 RAFT_FLIP_SCHEDULES=5000 RAFT_TRACES=10000 STATESTORE_CONTENDERS_S=60 STATESTORE_KILLS=500 STATESTORE_FAILOVERS=300 STATESTORE_FAILOVER_HISTORIES=1000 STATESTORE_CLUSTER_ROUNDS=20 STATESTORE_SOAK_S=600 STATESTORE_PIPELINES=20000 STATESTORE_PIPELINE_SEEDS=200 STATESTORE_SPARK_SEEDS=200 RAFT_KILLS=500 RAFT_FAULTS=500 RAFT_SPARK_SEEDS=200 RAFT_SPARK_KILLS=20 $(BIN)/tox run -e py -- $(CURDIR)/tests/simulation $(CURDIR)/tests/server/kvstore/simulation $(CURDIR)/tests/server/cluster/simulation $(CURDIR)/tests/raft_server/simulation $(CURDIR)/tests/faults/test_faults_contenders.py $(CURDIR)/tests/faults/test_faults_kill.py $(CURDIR)/tests/faults/test_faults_failover.py $(CURDIR)/tests/faults/test_faults_failover_linearizability.py $(CURDIR)/tests/faults/test_faults_cluster.py $(CURDIR)/tests/faults/test_faults_soak.py $(CURDIR)/tests/faults/test_faults_raft_kill.py $(CURDIR)/tests/faults/test_faults_raft_linearizability.py $(CURDIR)/tests/raft_spark/test_raft_spark_attempts.py $(CURDIR)/tests/raft_spark/test_raft_spark_kills.py $(CURDIR)/tests/raft_spark/test_raft_spark_seeds.py $(CURDIR)/tests/spark/test_spark_marker.py $(CURDIR)/tests/spark/test_spark_pipeline_faults.py $(CURDIR)/tests/spark/test_spark_pipeline_seeds.py

fuzz: $(BIN)/tox  ## ten million spoiled packets to the codec, a million to the broker; crowds of ten thousand
	STATESTORE_FUZZ=10000000 STATESTORE_CROWDS=full $(BIN)/tox run -e py -- $(CURDIR)/tests/conformance/test_mqtt_fuzz.py $(CURDIR)/tests/faults/test_faults_crowds.py

demo: $(VENV)/.demo  ## flights from a replicated log through Spark into the state store; drivers are killed and frozen, and nothing is lost
	cd examples && ../$(BIN)/python -m flights

demo-ha: $(VENV)/.demo-ha  ## three servers with one log: the active one is killed under load, and the next one hands over
	cd examples && ../$(BIN)/python -m failover

bench: $(BIN)/tox  ## benchmarks, as ratios to the peers they name
	$(BIN)/tox run -e bench

docs: $(BIN)/tox  ## documentation into docs/_build/html; DOCS_URL says where it will be, for previews of links to it
	$(BIN)/tox run -e docs

lint: $(BIN)/tox  ## ruff, mypy, pyright, import-linter, and whether the generated modules are fresh
	$(BIN)/tox run -e lint

twins: $(BIN)/tox  ## generate the blocking modules anew from their asyncio sources
	$(BIN)/tox exec -e lint -- python tools/twins.py

clean:  ## remove everything that the other targets made
	rm -rf $(VENV) .tox build dist docs/_build *.egg-info .mypy_cache .ruff_cache .pytest_cache
