# make plan: plan the models of config.yaml.  make test: run the tests.  Both make .venv first.

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3,$(shell command -v $(name))))
VENV ?= .venv
CONFIG ?= config.yaml
CORES ?= all

BIN := $(VENV)/bin
export PATH := $(abspath $(BIN)):$(PATH)
export PYTHONPATH := $(CURDIR)/workflow/progress

.PHONY: plan test check bench clean

plan: $(VENV)/plan.done
	@workflow/plan.sh $(CONFIG) $(CORES)

test: check
	pytest -n 2

check: $(VENV)/test.done
	ruff check
	ruff format --check
	mypy

bench: $(VENV)/test.done
	python -m tests.bench

$(VENV)/plan.done: pyproject.toml constraints.txt workflow/environment.sh
	workflow/environment.sh "$(PYTHON)" $(VENV) models
	@touch $@

$(VENV)/test.done: pyproject.toml constraints.txt workflow/environment.sh
	workflow/environment.sh "$(PYTHON)" $(VENV) models,test
	@touch $(VENV)/plan.done $@

clean:
	rm -rf $(VENV) .snakemake .pytest_cache .mypy_cache .ruff_cache .hypothesis
