# make plan: plan the models of config.yaml.  make zoo: those of zoo.yaml.  make test: run the tests.
# Each makes .venv first.

VENV ?= .venv
CONFIG ?= config.yaml
CORES ?= all

BIN := $(VENV)/bin
export PYTHON
export PYTHONPATH := $(CURDIR)/workflow/progress

.PHONY: plan zoo test check bench crash clean

plan: $(VENV)/plan.done
	@workflow/plan.sh $(BIN) $(CONFIG) $(CORES)

zoo: $(VENV)/zoo.done
	@workflow/plan.sh $(BIN) zoo.yaml $(CORES)

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

$(VENV)/zoo.done: pyproject.toml constraints.txt workflow/environment.sh
	workflow/environment.sh $(VENV) models,zoo
	@touch $(VENV)/plan.done $@

$(VENV)/test.done: pyproject.toml constraints.txt workflow/environment.sh
	workflow/environment.sh $(VENV) models,zoo,test
	@touch $(VENV)/plan.done $(VENV)/zoo.done $@

clean:
	rm -rf $(VENV) .snakemake .pytest_cache .mypy_cache .ruff_cache .hypothesis
