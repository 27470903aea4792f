"""Chains and joins that a configuration declares, planned by the Snakefile: figures that are known,
what is told of them, and what is done again after which edit."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.stages.combine.chain.test_command import layers
from tests.stages.combine.chain_offload.exhaustive_search import offload_cases
from tests.stages.combine.persistent import cases as remat_cases
from tests.stages.combine.persistent import chain_of_case
from tests.stages.combine.pipeline.pipelines import cases as pipeline_cases
from tests.stages.combine.pipeline.pipelines import chain_of_case as pipeline_of_case
from tests.workflow.conftest import Workplace
from tightfit.schemas.block_options import write_block_options
from tightfit.schemas.chain import write_chain
from tightfit.schemas.pipeline_plan import read_pipeline_plan
from tightfit.schemas.plan import Plan, read_plan
from tightfit.schemas.sequence import read_sequence

REMAT = remat_cases()[0]
OFFLOAD = offload_cases()[0]
PIPELINE = next(
    case for case in pipeline_cases("pipeline_contiguous") if case["expected_period_memory"] == 42
)

Finished = tuple[Workplace, subprocess.CompletedProcess[str]]


def write_machine(path: Path, memory: int, bandwidth: float, devices: int = 1) -> None:
    """A device with a host, or several with links between any two."""
    names = [f"cuda:{number}" for number in range(devices)]
    ends = [(one, other) for one in names for other in names if one < other]
    document: dict[str, Any] = {
        "artifact": "tightfit.machine/1",
        "name": path.stem,
        "devices": [{"name": name, "memory": memory} for name in names],
    }
    if devices == 1:
        document["memories"] = [{"name": "host", "memory": 10**12}]
        ends = [("cuda:0", "host")]
    document["links"] = [{"between": list(pair), "bandwidth": bandwidth} for pair in ends]
    path.write_text(json.dumps(document))


def configuration() -> dict[str, Any]:
    """Cases with known optima, a join, and a budget that nothing fits."""
    weights = {key: PIPELINE[key] for key in ("weight_copies", "buffers")}
    return {
        "chains": {
            "remat": {
                "files": ["of cases/remat.arrow"],
                "strategies": ["rotor", "early_free", "floating_persistence"],
                "budgets": [f"{REMAT['memory']}B"],
            },
            "offload": {
                "files": ["offload.arrow"],
                "machine": "host.json",
                "strategies": ["offload_greedy", "offload_dynprog", "pofo"],
                "budgets": [f"{OFFLOAD['memory']}B"],
            },
            "pipeline": {
                "files": ["pipeline.arrow"],
                "machine": "devices.json",
                "strategies": ["pipedream", "one_f_one_b"],
                **weights,
            },
            "towers": {
                "files": ["left.arrow", "right.arrow"],
                "strategies": ["join"],
                "budgets": ["60%", "1%"],
                "slots": 100,
            },
        }
    }


@pytest.fixture(scope="module")
def finished(quick: Workplace) -> Finished:
    folder = quick.folder
    (folder / "of cases").mkdir()
    write_chain(folder / "of cases/remat.arrow", chain_of_case(REMAT))
    write_chain(folder / "offload.arrow", chain_of_case(OFFLOAD))
    write_chain(folder / "pipeline.arrow", pipeline_of_case(PIPELINE))
    for name, count in (("left", 6), ("right", 4)):
        write_chain(folder / f"{name}.arrow", layers(count))
    write_machine(folder / "host.json", 10**6, OFFLOAD["bandwidth"])
    devices = (PIPELINE["memory"], PIPELINE["bandwidth"] or 1e18, PIPELINE["P"])
    write_machine(folder / "devices.json", *devices)
    quick.configure(configuration())
    return quick, quick.snakemake()


def plan_of(place: Workplace, *names: str) -> Plan:
    return read_plan(place.folder.joinpath("results/chains", *names, "plan.json"))


def todo(place: Workplace) -> set[str]:
    """What a dry run says that it would do."""
    result = place.snakemake("--dry-run")
    assert result.returncode == 0, result.stderr
    return set(re.findall(r"^\[ *\d+/\d+\] (.*)$", result.stderr, re.M))


def why(place: Workplace) -> list[str]:
    result = place.snakemake("--dry-run", "--logger-tightfit-why")
    assert result.returncode == 0, result.stderr
    return [line.strip() for line in result.stderr.splitlines() if line.startswith("  ")]


def test_plans_are_the_known_optima(finished: Finished) -> None:
    place, run = finished
    assert run.returncode == 0, run.stderr
    budget = f"{REMAT['memory']}B"
    for strategy, key in (
        ("rotor", "expected_persistent_opt"),
        ("early_free", "expected_opt_free_discard"),
        ("floating_persistence", "expected_c_fl_repaired"),
    ):
        plan = plan_of(place, "remat", strategy, budget)
        assert plan.time == REMAT[key] and plan.status == "optimal", strategy
        assert plan.peak is not None and plan.peak <= REMAT["memory"]
    budget = f"{OFFLOAD['memory']}B"
    greedy, dynprog, pofo = (
        plan_of(place, "offload", name, budget).time
        for name in ("offload_greedy", "offload_dynprog", "pofo")
    )
    assert greedy == OFFLOAD["expected_greedy_int"] and dynprog == OFFLOAD["expected_exact_int"]
    assert pofo is not None and dynprog is not None and pofo <= dynprog
    pipeline = place.folder / "results/chains/pipeline"
    assert read_pipeline_plan(pipeline / "one_f_one_b/none/plan.json").period == 42
    assert (pipeline / "one_f_one_b/none/pattern.arrow").exists()


def test_a_join_is_planned_and_a_budget_too_small_is_infeasible(finished: Finished) -> None:
    place, _ = finished
    plan = plan_of(place, "towers", "join", "60pct")
    assert plan.feasible and plan.solver == "dynamic program, 100 slots"
    sequence = place.folder / "results/chains/towers/join/60pct/sequence.arrow"
    assert {operation.branch for operation in read_sequence(sequence)} == {0, 1, 2}
    assert plan_of(place, "towers", "join", "1pct").status == "infeasible"


def test_a_strategy_is_told_once_a_line_and_only_infeasible_plans_ahead_of_the_table(
    finished: Finished,
) -> None:
    _, run = finished
    steps = [line.partition("] ")[2] for line in run.stderr.splitlines() if "] " in line]
    assert "chains/towers: planning with join for 60%" in steps
    assert "chains/pipeline: planning with one_f_one_b" in steps
    assert "optimal" not in run.stdout
    told = [line.partition(": infeasible: ")[0] for line in run.stdout.splitlines()]
    assert sorted(told) == [
        "results/chains/pipeline/pipedream/none",
        "results/chains/towers/join/1pct",
    ]


def test_table_pages_and_index_have_every_plan(finished: Finished) -> None:
    place, _ = finished
    table = place.stage("summary", "--configuration", "config.yaml")
    assert table.returncode == 0, table.stderr
    assert re.search(r"chains/remat +│ rotor +│ +15B │ should fit", table.stdout), table.stdout
    assert re.search(r"one_f_one_b +│ +- │ should fit .* 42.00 s ", table.stdout)
    assert "No nested sequence fits" in table.stdout
    results = place.folder / "results"
    index = (results / "index.html").read_text()
    rows = re.findall(
        r'<tr data-model="(chains/\w+)" data-strategy="(\w+)" data-status="(.*?)"', index
    )
    assert len(rows) == 10 and ("chains/towers", "join", "infeasible") in rows
    links = set(re.findall(r'href="(chains/[^"#]+)#([^"]+)"', index))
    assert len(links) == 10
    for page, anchor in links:
        assert f'id="{anchor}"' in (results / page).read_text()
    pages = {path.parent.name: path.read_text() for path in results.glob("chains/*/report.html")}
    assert "The pipeline, as planned" in pages["pipeline"] and ">to-host<" in pages["offload"]
    assert "F_ck 1, F_ck 2" in pages["remat"] and "simulated, not run" in pages["remat"]


def test_files_are_audited_and_their_making_is_recorded(finished: Finished) -> None:
    place, _ = finished
    told = place.stage("audit", "results", "--configuration", "config.yaml")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "10 plans" in told.stdout
    tree = place.stage("lineage", "results/chains/offload/pofo/16B/streams.arrow").stdout
    assert "offload.arrow" in tree and "host.json" in tree and "strategy=pofo" in tree
    page = place.stage("lineage", "results/chains/pipeline/report.html").stdout
    assert "pattern.arrow" in page and "devices.json" in page


def test_nothing_is_done_twice_and_a_budget_costs_its_own_plan(finished: Finished) -> None:
    place, _ = finished
    assert todo(place) == set()
    document = configuration()
    document["chains"]["towers"]["budgets"] = ["60%", "70%"]
    place.configure(document)
    assert todo(place) == {
        "chains/towers: planning with join for 70%",
        "chains/towers: writing the report",
        "writing the index",
    }
    [line] = [line for line in why(place) if line.startswith("chains/")]
    assert line == "chains/towers, 2 steps: the budget 70% is new for join"
    left = place.stage("prune", "--configuration", "config.yaml", "--dry-run").stdout
    assert left == "results/chains/towers/join/1pct: is left over\n"
    place.configure(configuration())


def test_a_changed_machine_redoes_the_plans_that_use_it(finished: Finished) -> None:
    place, _ = finished
    path = place.folder / "host.json"
    before = path.read_text()
    write_machine(path, 2 * 10**6, OFFLOAD["bandwidth"])
    names = ("offload_greedy", "offload_dynprog", "pofo")
    assert todo(place) == {
        *(f"chains/offload: planning with {name} for 16B" for name in names),
        "chains/offload: writing the report",
        "writing the index",
    }
    assert "the description of its machine was edited" in why(place)[0]
    path.write_text(before)
    assert todo(place) == set()


def test_a_lost_file_is_made_again(finished: Finished) -> None:
    place, _ = finished
    results = place.folder / "results/chains"
    lost = {
        "offload/pofo/16B/streams.arrow": "chains/offload: planning with pofo for 16B",
        "pipeline/one_f_one_b/none/pattern.arrow": "chains/pipeline: planning with one_f_one_b",
        "remat/rotor/15B/sequence.arrow": "chains/remat: planning with rotor for 15B",
    }
    for name in lost:
        (results / name).rename(results / f"{name}.kept")
    assert {step for step in todo(place) if "planning" in step} == set(lost.values())
    for name in lost:
        (results / f"{name}.kept").rename(results / name)
    assert todo(place) == set()


def test_options_of_files_are_given_to_what_takes_them(finished: Finished) -> None:
    place, _ = finished
    write_block_options(place.folder / "options.arrow", [])
    own = {"files": ["left.arrow"], "strategies": ["rockmate"], "options": "options.arrow"}
    place.configure({"chains": {"own": own}})
    result = place.snakemake("--dry-run", "--printshellcmds", logger="")
    assert "--chain left.arrow --options options.arrow --strategy rockmate" in result.stdout
    place.configure(configuration())


def test_a_changed_file_redoes_its_chain(finished: Finished) -> None:
    place, _ = finished
    path, kept = place.folder / "right.arrow", place.folder / "kept.arrow"
    shutil.copy2(path, kept)
    write_chain(path, layers(5))
    assert {step for step in todo(place) if "planning" in step} == {
        f"chains/towers: planning with join for {budget}" for budget in ("60%", "1%")
    }
    assert "chains/towers, 3 steps: newer than what was made of it: right.arrow" in why(place)
    shutil.copy2(kept, path)


def test_settings_of_a_chain_redo_what_takes_them(finished: Finished) -> None:
    place, _ = finished
    document = configuration()
    document["chains"]["remat"]["slots"] = 7
    place.configure(document)
    assert {step for step in todo(place) if "planning" in step} == {
        "chains/remat: planning with rotor for 15B",
        "chains/remat: planning with floating_persistence for 15B",
    }
    place.configure(configuration())


def test_what_is_not_asked_for_any_more_is_left_over(finished: Finished) -> None:
    place, _ = finished
    document = configuration()
    del document["chains"]["remat"]
    document["chains"]["offload"]["strategies"] = ["pofo"]
    place.configure(document)
    left = place.stage("prune", "--configuration", "config.yaml", "--dry-run").stdout
    assert set(left.splitlines()) == {
        "results/chains/offload/offload_dynprog: is left over",
        "results/chains/offload/offload_greedy: is left over",
        "results/chains/remat: is left over",
    }
    assert place.snakemake().returncode == 0
    index = (place.folder / "results/index.html").read_text()
    assert "chains/towers" in index and "chains/remat" not in index
    assert index.count('data-model="chains/offload"') == 1
    place.configure(configuration())
    assert place.snakemake().returncode == 0


def test_a_plan_that_failed_is_a_row_and_stops_no_other(finished: Finished) -> None:
    place, _ = finished
    document = configuration()
    document["chains"]["offload"] |= {"strategies": ["pofo"], "budgets": ["16B", "1GB"]}
    place.configure(document)
    run = place.snakemake()
    said = "chain: --budget 1GB: that is 1,000,000,000 bytes, and cuda:0 has 1,000,000"
    assert run.returncode == 1 and said.removeprefix("chain: ") in run.stderr
    assert "Traceback" not in run.stderr
    log = "results/chains/offload/pofo/1GB/logs/chain.txt"
    assert (place.folder / log).read_text() == f"{said}\n"
    index = (place.folder / "results/index.html").read_text()
    row = r'<tr data-model="chains/offload" data-strategy="pofo" data-status="(.*?)"'
    assert sorted(re.findall(row, index)) == ["failed", "should fit"] and said in index
    table = place.stage("summary", "--configuration", "config.yaml").stdout
    assert f"chains/offload pofo 1GB: {said} (see {log})" in table
    assert todo(place) == {
        "chains/offload: planning with pofo for 1GB",
        "chains/offload: writing the report",
        "writing the index",
    }
    [line] = [line for line in why(place) if line.startswith("chains/")]
    assert line == "chains/offload, 2 steps: it failed before and is tried again"
    place.configure(configuration())


def test_the_chain_of_a_model_is_made_of_its_blocks(quick: Workplace, tiny: dict[str, Any]) -> None:
    write_machine(quick.folder / "two.json", 10**9, 1e9, 2)
    own = {"model": "tiny", "strategies": ["rockmate", "madpipe"], "machine": "two.json"}
    quick.configure({"models": {"tiny": tiny}, "chains": {"own": own}})
    steps = todo(quick)
    assert "tiny: writing the chain of its blocks" in steps
    assert {
        "chains/own: planning with rockmate for 50%",
        "chains/own: planning with madpipe",
    } <= steps
    assert "tiny: planning with auto" in steps
    result = quick.snakemake("--dry-run", "--printshellcmds", logger="")
    said = (result.stdout + result.stderr).splitlines()
    [command] = [line for line in said if "-m tightfit chain" in line and "rockmate" in line]
    assert "--chain results/tiny/chain.arrow --options results/tiny/options.arrow" in command


@pytest.mark.long
def test_the_blocks_of_a_model_are_planned_as_a_chain(
    quick: Workplace, tiny: dict[str, Any]
) -> None:
    write_machine(quick.folder / "two.json", 10**9, 1e9, 2)
    own: dict[str, Any] = {"model": "tiny", "machine": "two.json", "weight_copies": 1}
    own |= {"strategies": ["rockmate", "madpipe", "gpipe"], "stage_recompute": "rockmate"}
    models = {"tiny": {**tiny, "strategies": ["keep_all"]}}
    quick.configure({"models": models, "chains": {"own": own}, "solver": {"engine": "none"}})
    page = "results/chains/own/report.html"
    run = quick.snakemake(page)
    assert run.returncode == 0, run.stderr
    plan = plan_of(quick, "own", "rockmate", "50pct")
    assert plan.feasible and plan.peak is not None and plan.peak <= (plan.budget_total or 0)
    folder = quick.folder / "results/chains/own"
    for name in ("madpipe", "gpipe"):
        assert read_pipeline_plan(folder / name / "none/plan.json").period is not None
    assert quick.stage("audit", "results").returncode == 0
    assert "results/tiny/graph.arrow" in quick.stage("lineage", page).stdout
