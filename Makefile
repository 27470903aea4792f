# make plan: plan the models of config.yaml.  make test: run the tests.  Both make .venv first.

VENV ?= .venv
CONFIG ?= config.yaml
CORES ?= all

BIN := $(VENV)/bin
export PYTHON
export PYTHONPATH := $(CURDIR)/workflow/progress

.PHONY: plan test check bench crash clean

plan: $(VENV)/plan.done
	@workflow/plan.sh $(BIN) $(CONFIG) $(CORES)

test: check
	$(BIN)/pytest -n 2 --dist loadscope

check: $(VENV)/test.done
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/test.done
	$(BIN)/python -m tests.bench

crash: $(VENV)/test.done
	$(BIN)/python -m tests.crash

$(VENV)/plan.done: pyproject.toml constraints.txt workflow/environment.sh
	workflow/environment.sh $(VENV) models
	@touch $@

$(VENV)/test.done: pyproject.toml constraints.txt workflow/environment.sh
	workflow/environment.sh $(VENV) models,test
	@touch $(VENV)/plan.done $@

clean:
	rm -rf $(VENV) .snakemake .pytest_cache .mypy_cache .ruff_cache .hypothesis
