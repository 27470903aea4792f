"""Searches are brief: how much a longer one gains is asked in `tests/stages/combine/local_search`.
Tests whose steps have the same activations share what was found for these."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from tightfit.stages.combine.optimizer_offload.activation_schedule import ActivationProblem
from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem
from tightfit.stages.combine.optimizer_offload.search_space import ActivationProblemKey


@pytest.fixture(autouse=True, scope="module")
def _brief_search(brief_search: None) -> None:
    """All modules of this folder."""


@pytest.fixture(scope="package")
def found_activations() -> dict[bytes, ActivationProblem]:
    """What was found for the activations of steps, by all that it depends on."""
    return {}


@pytest.fixture(autouse=True, scope="module")
def _shared_activations(found_activations: dict[bytes, ActivationProblem]) -> Iterator[None]:
    make = ActivationProblem.of

    def once(task: OffloadProblem, key: ActivationProblemKey) -> ActivationProblem:
        made = make(task, key)
        step = task.graph, task.costs, task.problem, task.remote, task.link
        known = pickle.dumps((*step, key, made.problem, made.always, made.engine))
        return found_activations.setdefault(known, made)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ActivationProblem, "of", once)
        yield
