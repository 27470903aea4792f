"""Every case with a known optimum that a configuration can declare, planned by the Snakefile from
one configuration alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.stages.combine.chain_offload.exhaustive_search import offload_cases
from tests.stages.combine.persistent import cases as remat_cases
from tests.stages.combine.persistent import chain_of_case
from tests.stages.combine.pipeline.pipelines import ENOUGH, cases
from tests.stages.combine.pipeline.pipelines import chain_of_case as pipeline_of_case
from tests.workflow.conftest import Workplace
from tests.workflow.test_chains import write_machine
from tightfit.schemas.chain import write_chain
from tightfit.schemas.pipeline_plan import read_pipeline_plan
from tightfit.schemas.plan import read_plan

UNLIMITED = 1e18
"""Bytes per second of a link that takes no time."""

Expected = dict[tuple[str, str, str], float | None]
"""The seconds of a plan, by chain, strategy and folder of the budget; None where nothing fits."""


class KnownCases:
    """A configuration whose chains are cases, and what their plans are known to take."""

    def __init__(self, place: Workplace) -> None:
        self.place = place
        self.chains: dict[str, Any] = {}
        self.expected: Expected = {}

    def add(self, case: dict[str, Any], known: dict[str, float | None], **keys: Any) -> None:
        """A case with its memory as budget, and the time that each strategy is known to take."""
        name, budget = case["id"], f"{case['memory']}B"
        write_chain(self.place.folder / f"{name}.arrow", chain_of_case(case))
        self.chains[name] = {"files": [f"{name}.arrow"], "budgets": [budget], **keys}
        self.chains[name]["strategies"] = list(known)
        self.expected |= {(name, strategy, budget): known[strategy] for strategy in known}

    def add_pipeline(
        self, case: dict[str, Any], name: str, known: dict[str, float | None], **machine: Any
    ) -> None:
        """A case over its devices, and the period that each strategy is known for."""
        write_chain(self.place.folder / f"{name}.arrow", pipeline_of_case(case))
        memory = machine.get("memory") or ENOUGH
        bandwidth = machine.get("bandwidth") or UNLIMITED
        write_machine(self.place.folder / f"{name}.json", memory, bandwidth, case["P"])
        self.chains[name] = {
            "files": [f"{name}.arrow"],
            "machine": f"{name}.json",
            "strategies": list(known),
            "weight_copies": case.get("weight_copies", 1),
            "buffers": case.get("buffers", False),
        }
        self.expected |= {(name, strategy, "none"): known[strategy] for strategy in known}


def add_rematerialization(found: KnownCases) -> None:
    for case in remat_cases():
        found.add(
            case,
            {
                "rotor": case["expected_persistent_opt"],
                "early_free": case["expected_opt_free_discard"],
                "floating_persistence": case["expected_c_fl_repaired"],
            },
        )


def add_offload(found: KnownCases) -> None:
    for case in offload_cases():
        machine = f"{case['id']}.json"
        write_machine(found.place.folder / machine, 10**6, case["bandwidth"])
        exact = case.get("expected_exact_int", case["expected_best_int_ordered"])
        known = {"offload_greedy": case["expected_greedy_int"], "offload_dynprog": exact}
        found.add(case, known, machine=machine)


def add_contiguous(found: KnownCases) -> None:
    for case in cases("pipeline_contiguous"):
        machine = {"memory": case["memory"], "bandwidth": case["bandwidth"]}
        free = case["expected_period_no_memory"]
        known = {"one_f_one_b": free if case["memory"] is None else case["expected_period_memory"]}
        found.add_pipeline(case, case["id"], known, **machine)


def add_noncontiguous(found: KnownCases) -> None:
    for case in cases("pipeline_noncontiguous"):
        memory, name = case.get("memory"), case["id"]
        freely = case.get("expected_period_no_links", case.get("expected_period_noncontiguous"))
        known = {"pipeline_ilp": freely}
        if "expected_period_contiguous" in case:
            known["one_f_one_b"] = case["expected_period_contiguous"]
        found.add_pipeline(case, f"{name}-free", known, memory=memory)
        if linked := case.get("expected_period_links"):
            machine = {"memory": memory, "bandwidth": case["bandwidth"]}
            found.add_pipeline(case, f"{name}-linked", {"pipeline_ilp": linked}, **machine)


@pytest.mark.long
@pytest.mark.parametrize(
    "add", [add_rematerialization, add_offload, add_contiguous, add_noncontiguous]
)
def test_plans_of_one_configuration_are_the_known_optima(
    quick: Workplace, add: Callable[[KnownCases], None]
) -> None:
    known = KnownCases(quick)
    add(known)
    results = f"results-{add.__name__}"
    quick.configure({"chains": known.chains, "results": results})
    run = quick.snakemake()
    assert run.returncode == 0, run.stderr
    folder = quick.folder / results / "chains"
    found: Expected = {}
    for name, strategy, budget in known.expected:
        path = folder / name / strategy / budget / "plan.json"
        pipeline = budget == "none"
        found[name, strategy, budget] = (
            read_pipeline_plan(path).period if pipeline else read_plan(path).time
        )
    wrong = {
        key: (seconds, known.expected[key])
        for key, seconds in found.items()
        if not _same_time(seconds, known.expected[key])
    }
    assert not wrong and len(found) == len(known.expected) > 0


def _same_time(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-9)
