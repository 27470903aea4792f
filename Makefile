# make plan: plan the models of config.yaml.  make zoo: those of zoo.yaml.  make test: run the tests.
# make test-long: run those that take long.  make docs: build the documentation.  Each makes .venv
# first.  PROFILE=slurm sends the jobs of plan and zoo to a cluster, and REMEASURE=1 has them measure
# costs again.

VENV ?= .venv
CONFIG ?= config.yaml
PROFILE ?= default
CORES ?=
REMEASURE ?=
CASES ?= 1000
MUTANTS ?= 100
SEED ?= 0
SUITES ?=
SAMPLE ?=

BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest -n logical --dist loadscope --no-loadscope-reorder --max-worker-restart 0 \
	--durations 50
export PYTHON
export PYTHONPATH := $(CURDIR)/workflow/progress
# What is imported is compiled once, not at the start of each process.
unexport PYTHONDONTWRITEBYTECODE

# How plan and zoo run the workflow, but for the configuration.
RUN = exec $(BIN)/python -m tightfit run --profile "$(PROFILE)" $(addprefix --cores ,$(CORES)) \
	$(if $(filter-out 0,$(REMEASURE)),--remeasure)

CLUSTER := $(if $(filter-out default,$(PROFILE)),$(VENV)/cluster.done)

.PHONY: plan zoo prune test tests test-long check lint types battery fuzz conformance mutate bench crash pipelines slurm docs clean

plan: $(VENV)/plan.done $(CLUSTER)
	@$(RUN) "$(CONFIG)"

zoo: $(VENV)/zoo.done $(CLUSTER)
	@$(RUN) zoo.yaml

prune: $(VENV)/plan.done
	$(BIN)/python -m tightfit prune --configuration "$(CONFIG)"

# The types are checked beside the tests: they take a minute of one core.
test: lint
	@$(MAKE) --no-print-directory --jobs=2 types tests

check: lint types

tests: $(VENV)/test.done
	$(PYTEST) -m "not long" --hypothesis-profile short

# Property tests are in both: these draw all examples.
test-long: $(VENV)/test.done
	$(PYTEST) -m "long or hypothesis"

types: $(VENV)/test.done
	$(BIN)/mypy

lint: $(VENV)/test.done
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/snakefmt --check Snakefile workflow/rules

battery: $(VENV)/test.done
	$(BIN)/python -m tests.battery

fuzz: $(VENV)/test.done
	$(BIN)/python -m tests.fuzz --cases $(CASES) --seed $(SEED)

# PyTorch's and the field's own suites: hours for all cases, SAMPLE=1 takes one of each group.
conformance: $(VENV)/conformance.done
	$(BIN)/python -m tests.conformance $(SUITES) $(addprefix --sample ,$(SAMPLE)) --seed $(SEED)

mutate: $(VENV)/test.done
	$(BIN)/python -m tests.mutate --mutants $(MUTANTS) --seed $(SEED)

bench: $(VENV)/test.done
	$(BIN)/python -m tests.benchmarks

crash: $(VENV)/test.done
	$(BIN)/python -m tests.crash

pipelines: $(VENV)/test.done
	$(BIN)/python -m tests.pipelines

slurm: $(VENV)/test.done $(VENV)/cluster.done
	tests/slurm/install.sh
	$(BIN)/pytest -v tests/slurm/test_first_step.py tests/slurm/full_batches.py

docs: $(VENV)/docs.done
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The documentation is in build/docs/index.html"

$(VENV)/plan.done: pyproject.toml constraints.txt workflow/environment.sh
	workflow/environment.sh $(VENV) models
	@touch $@

$(VENV)/zoo.done: pyproject.toml constraints.txt workflow/environment.sh
	workflow/environment.sh $(VENV) models,zoo
	@touch $(VENV)/plan.done $@

$(VENV)/test.done: pyproject.toml constraints.txt workflow/environment.sh
	workflow/environment.sh $(VENV) models,zoo,test
	@touch $(VENV)/plan.done $(VENV)/zoo.done $@

$(VENV)/cluster.done: pyproject.toml constraints.txt workflow/environment.sh
	workflow/environment.sh $(VENV) models,zoo,cluster
	@touch $(VENV)/plan.done $(VENV)/zoo.done $@

$(VENV)/conformance.done: pyproject.toml constraints.txt workflow/environment.sh
	workflow/environment.sh $(VENV) models,zoo,test,conformance
	@touch $(VENV)/plan.done $(VENV)/zoo.done $(VENV)/test.done $@

$(VENV)/docs.done: pyproject.toml constraints.txt workflow/environment.sh
	workflow/environment.sh $(VENV) docs
	@touch $@

clean:
	rm -rf $(VENV) .snakemake .pytest_cache .mypy_cache .ruff_cache .hypothesis
