"""`chain --machine`, by its files, and what it says of what cannot be planned."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.stages.combine.engines import engines_asked
from tests.stages.combine.pipeline.pipelines import cases, chain_of_case
from tightfit.__main__ import main
from tightfit.schemas.block_options import BlockOption, write_block_options
from tightfit.schemas.chain import Chain, ChainPosition, write_chain
from tightfit.schemas.pipeline_pattern import NO_PATTERN, read_pipeline_pattern
from tightfit.schemas.pipeline_plan import PipelinePlan, read_pipeline_plan
from tightfit.schemas.sequence import read_sequence
from tightfit.stages.audit.audit import audit
from tightfit.util.solver_engines import ENGINE_TITLES, ENGINES, SolverEngine
from tightfit.util.strategies import ALLOCATORS

CASE = next(c for c in cases("pipeline_contiguous") if c["expected_period_memory"] == 42)
"""The case whose memory binds: 20 without it, 42 with it, at two devices."""


def machine(path: Path, count: int, memory: int = 10**6, **changes: Any) -> Path:
    names = [f"cuda:{number}" for number in range(count)]
    document = {
        "artifact": "tightfit.machine/1",
        "name": f"{count} devices",
        "devices": [{"name": name, "memory": memory} for name in names],
        "links": [
            {"between": [one, other], "bandwidth": 1.0, "shared": True}
            for one, other in combinations(names, 2)
        ],
    }
    path.write_text(json.dumps({**document, **changes}))
    return path


def plan_of(
    folder: Path, chain: Chain, strategy: str, count: int, memory: int, *given: str
) -> PipelinePlan:
    write_chain(folder / "chain.arrow", chain)
    machine(folder / "machine.json", count, memory)
    words = ["--chain", str(folder / "chain.arrow"), "--machine", str(folder / "machine.json")]
    out = folder / strategy
    assert main(["chain", *words, "--strategy", strategy, "--out", str(out), *given]) == 0
    return read_pipeline_plan(out / "plan.json")


def refusal(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    assert main(["chain", *words]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("tightfit chain: ")
    return said


@pytest.mark.parametrize("strategy", ALLOCATORS)
def test_every_allocator_plans_from_files(
    tmp_path: Path, strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(tmp_path, chain_of_case(CASE), strategy, 2, CASE["memory"])
    assert capsys.readouterr().out == f"{plan.status}: {plan.message}\n"
    expected = {"one_f_one_b": 42, "k_periodic": 42, "pipeline_ilp": 35, "madpipe": 35}
    assert plan.period == pytest.approx({**expected, "pipedream": None, "gpipe": None}[strategy])
    pattern = tmp_path / strategy / "pattern.arrow"
    if plan.period is None:
        assert plan.status == "infeasible" and plan.smallest_memory is not None
        return
    found = read_pipeline_pattern(pattern)
    assert found.period / found.batches == plan.period
    assert plan.lower_bound is not None and plan.lower_bound <= plan.period
    assert all(device.peak <= device.memory == CASE["memory"] for device in plan.devices)
    assert [plan.stages[0].first, plan.stages[-1].last] == [1, CASE["L"]]
    assert (plan.optimal_in != "") == (plan.status == "optimal")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("strategy", [name for name, about in ALLOCATORS.items() if about.solves])
def test_the_engine_that_is_asked_for_solves(
    tmp_path: Path, strategy: str, engine: SolverEngine
) -> None:
    with engines_asked() as asked:
        given = (chain_of_case(CASE), strategy, 2, CASE["memory"], "--solver", engine)
        plan = plan_of(tmp_path, *given)
    assert plan.period == pytest.approx(35)
    assert asked == {engine} and ENGINE_TITLES[engine] in plan.solver


def test_an_audit_reads_them(tmp_path: Path) -> None:
    plan_of(tmp_path, chain_of_case(CASE), "one_f_one_b", 2, CASE["memory"])
    found = audit(tmp_path / "one_f_one_b")
    assert found.complaints == []
    (tmp_path / "one_f_one_b" / "plan.json").write_text('{"weight_copies": 3}')
    assert "lacks or does not know the keys" in audit(tmp_path / "one_f_one_b").complaints[0]


@pytest.mark.parametrize("strategy", ALLOCATORS)
def test_a_period_is_an_upper_limit(tmp_path: Path, strategy: str) -> None:
    """A longer one changes no plan, and one below the fastest plan's lets none fit."""
    asked = (tmp_path, chain_of_case(CASE), strategy, 2, 1000)
    fastest = plan_of(*asked).period
    assert fastest is not None
    assert plan_of(*asked, "--period", str(2 * fastest)).period == fastest
    late = plan_of(*asked, "--period", str(0.9 * fastest))
    assert late.status == "infeasible" and late.smallest_period == fastest


def test_a_period_and_a_k_that_are_asked(tmp_path: Path) -> None:
    chain = chain_of_case(CASE)
    late = plan_of(tmp_path, chain, "one_f_one_b", 2, CASE["memory"], "--period", "41.5")
    assert late.status == "infeasible" and late.smallest_period == 42
    assert "least period known to work is 42 s" in late.message
    assert read_pipeline_pattern(tmp_path / "one_f_one_b" / "pattern.arrow") == NO_PATTERN
    turns = plan_of(tmp_path, chain, "k_periodic", 2, 1000, "--k", "2")
    assert turns.batches == 2 and turns.period == pytest.approx(20 * 3 / 2)


def test_copies_of_weights_and_buffers_count(tmp_path: Path) -> None:
    chain = chain_of_case(CASE)
    peaks = {}
    for given in ((), ("--weight-copies", "1"), ("--buffers",)):
        plan = plan_of(tmp_path, chain, "one_f_one_b", 1, 1000, *given)
        peaks[given] = plan.devices[0].peak
    weights = sum(CASE["w"])
    assert peaks[()] - peaks["--weight-copies", "1"] == 2 * weights
    assert peaks["--buffers",] == peaks[()]
    two = plan_of(tmp_path, chain, "one_f_one_b", 2, 1000, "--buffers")
    cut = two.stages[0].last
    bare = plan_of(tmp_path, chain, "one_f_one_b", 2, 1000)
    assert two.stages == bare.stages
    grown = [b.peak - a.peak for a, b in zip(bare.devices, two.devices, strict=True)]
    assert grown == [2 * CASE["a"][cut]] * 2


def test_what_does_not_fit_says_what_is_known_to_work(tmp_path: Path) -> None:
    for strategy in ALLOCATORS:
        plan = plan_of(tmp_path, chain_of_case(CASE), strategy, 2, 5)
        assert plan.status == "infeasible" and plan.period is None
        assert plan.smallest_memory is not None and plan.smallest_devices is None
        assert "no number of devices of 5 bytes is" in plan.message
        works = plan_of(tmp_path, chain_of_case(CASE), strategy, 2, plan.smallest_memory)
        others = ("pipedream", "gpipe")
        assert works.period is not None or strategy in others
        assert (" with one_f_one_b" in plan.message) == (strategy in others)
    plan = plan_of(tmp_path, chain_of_case(CASE), "one_f_one_b", 2, 13)
    assert plan.smallest_devices is not None
    works = plan_of(tmp_path, chain_of_case(CASE), "one_f_one_b", plan.smallest_devices, 13)
    assert works.period is not None
    fewer = plan_of(tmp_path, chain_of_case(CASE), "one_f_one_b", plan.smallest_devices - 1, 13)
    assert fewer.period is None


@pytest.mark.parametrize("strategy", ALLOCATORS)
def test_more_devices_than_layers(tmp_path: Path, strategy: str) -> None:
    plan = plan_of(tmp_path, chain_of_case(CASE), strategy, 9, 1000)
    assert len(plan.devices) == 9 and plan.period is not None
    slowest = plan.period if ALLOCATORS[strategy].flushes else 8
    assert plan.period == pytest.approx(slowest) and plan.period >= 8
    assert len({stage.device for stage in plan.stages}) <= CASE["L"]


@pytest.mark.parametrize("strategy", ALLOCATORS)
def test_a_single_device_does_one_batch_after_the_other(tmp_path: Path, strategy: str) -> None:
    plan = plan_of(tmp_path, chain_of_case(CASE), strategy, 1, 1000)
    assert plan.status == "optimal"
    assert plan.period == sum(CASE["u_f"]) + sum(CASE["u_b"])
    small = plan_of(tmp_path, chain_of_case(CASE), strategy, 1, 13)
    assert small.status == "infeasible" and small.smallest_devices is not None
    assert small.smallest_memory is not None
    most = plan.devices[0].peak
    assert small.smallest_memory == most or ALLOCATORS[strategy].flushes
    tiny = plan_of(tmp_path, chain_of_case(CASE), strategy, 1, 1)
    assert "a device can recompute what it lacks: plan with stage recompute rotor" in tiny.message


@pytest.mark.parametrize("strategy", ALLOCATORS)
@pytest.mark.parametrize("times", [(0, 0, 0), (0, 2, 0), (1, 0, 0)])
def test_layers_that_take_no_time(tmp_path: Path, strategy: str, times: tuple[int, ...]) -> None:
    rows = [ChainPosition(n, u, u, 1, 1, 1, 0, 0, 1, 0, "") for n, u in enumerate(times, start=1)]
    plan = plan_of(tmp_path, Chain(rows, 1, 1), strategy, 2, 1000)
    assert plan.status != "infeasible" and plan.period is not None
    assert plan.period == pytest.approx(2 * sum(times), abs=1e-9)


def test_wrong_options_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain, path = tmp_path / "chain.arrow", machine(tmp_path / "machine.json", 2)
    write_chain(chain, chain_of_case(CASE))
    files = ["--chain", str(chain), "--out", str(tmp_path / "out")]
    known = [*files, "--machine", str(path), "--strategy", "madpipe"]
    for given, words in (
        (["--budget", "1GB"], "--budget is not for pipelines: the memory is that of the machine"),
        (["--options", "o.arrow"], "--options and --stage-recompute rockmate are given together"),
        (
            ["--stage-recompute", "rockmate"],
            "--options and --stage-recompute rockmate are given together",
        ),
        (["--stage-recompute", "rockmate", "--options", "o.arrow"], "o.arrow"),
        (
            ["--stage-recompute", "rotor", "--strategy", "pipedream"],
            "--strategy pipedream takes no --stage-recompute",
        ),
        (["--k", "2"], "--strategy madpipe takes no --k"),
        (["--k", "0"], "--k 0: expected 1 to 1000"),
        (
            ["--solver", "cbc", "--strategy", "k_periodic"],
            "--strategy k_periodic takes no --solver: it solves no integer program",
        ),
        (["--period", "0"], "--period 0.0: expected a number of seconds above 0"),
        (["--period", "nan"], "--period nan: expected a number of seconds above 0"),
        (["--weight-copies", "-1"], "--weight-copies -1: expected 0 to 1000"),
        (["--strategy", "rotor"], "--strategy rotor: a pipeline is planned by pipedream or"),
        (["--chain", str(chain)], "a pipeline is planned for one chain, and no join"),
        (["--machine", str(chain)], "chain.arrow: is not JSON"),
    ):
        assert words in refusal(capsys, [*known, *given])
    assert not (tmp_path / "out").exists()
    rotor = [*files, "--strategy", "rotor"]
    assert "chain needs --budget, or --machine for a pipeline" in refusal(capsys, rotor)
    for given in (
        ["--k", "1"],
        ["--buffers"],
        ["--stage-recompute", "rotor"],
        ["--period", "1"],
        ["--weight-copies", "1"],
        ["--solver", "highs"],
    ):
        said = refusal(capsys, [*rotor, "--budget", "1GB", *given])
        assert f"{given[0]} is for pipelines, and needs --machine" in said


LINK = {"between": ["cuda:0", "cuda:1"], "bandwidth": 1.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"links": []}, "has no link between cuda:0 and cuda:1"),
        (
            {"links": [{**LINK, "bandwidth": 0}]},
            r"the link between cuda:0 and cuda:1 has no bandwidth",
        ),
        ({"links": [LINK, LINK]}, "has two links between cuda:0 and cuda:1"),
        (
            {"links": [{**LINK, "overhead": 1e-5}]},
            r"the link between cuda:0 and cuda:1 has an overhead, and pipelines are planned",
        ),
        (
            {"links": [LINK, {"between": ["cuda:2", "cuda:1"], "bandwidth": 2.0}]},
            "its links differ (from 1 to 2 bytes a second), and pipelines are planned for equal",
        ),
        (
            {"devices": [{"name": f"cuda:{n}", "memory": 5 + n} for n in range(3)]},
            "its devices have from 5 to 7 bytes of memory, and pipelines are planned for equal",
        ),
        (
            {"devices": [{"name": "cuda:0", "memory": 10**18}], "links": []},
            "1000000000000000000 bytes of memory are more than any device has",
        ),
    ],
)
def test_machines_that_pipelines_are_not_planned_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], words: str
) -> None:
    write_chain(tmp_path / "chain.arrow", chain_of_case(CASE))
    path = machine(tmp_path / "machine.json", 3, **changes)
    files = ["--chain", str(tmp_path / "chain.arrow"), "--machine", str(path)]
    given = [*files, "--strategy", "one_f_one_b", "--out", str(tmp_path / "out")]
    assert words in refusal(capsys, given)


def test_links_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A contiguous allocation needs those between neighbors alone."""
    write_chain(tmp_path / "chain.arrow", chain_of_case(CASE))
    row = [LINK, {"between": ["cuda:1", "cuda:2"], "bandwidth": 1.0}]
    path = machine(tmp_path / "machine.json", 3, links=row)
    files = ["--chain", str(tmp_path / "chain.arrow"), "--machine", str(path)]
    out = ["--out", str(tmp_path / "out")]
    assert main(["chain", *files, *out, "--strategy", "one_f_one_b"]) == 0
    said = refusal(capsys, [*files, *out, "--strategy", "madpipe"])
    assert "has no link between cuda:0 and cuda:2" in said


@pytest.mark.parametrize("strategy", [name for name, about in ALLOCATORS.items() if about.inside])
def test_stages_that_compute_again_fit_where_others_do_not(tmp_path: Path, strategy: str) -> None:
    rows = [ChainPosition(n, 1, 2, 1, 10, 1, 0, 0, 0, 0, "") for n in range(1, 9)]
    chain, bare = Chain(rows, 1, 1), plan_of(tmp_path, Chain(rows, 1, 1), strategy, 2, 30)
    assert bare.status == "infeasible"
    assert read_sequence(tmp_path / strategy / "sequence.arrow") == []
    plan = plan_of(tmp_path, chain, strategy, 2, 30, "--stage-recompute", "rotor")
    assert plan.period is not None and plan.stage_recompute == "rotor"
    assert all(device.peak <= 30 for device in plan.devices)
    assert sum(stage.recompute_seconds for stage in plan.stages) > 0
    sequence = read_sequence(tmp_path / strategy / "sequence.arrow")
    assert {operation.branch for operation in sequence} == {stage.stage for stage in plan.stages}
    for stage in plan.stages:
        own = [operation for operation in sequence if operation.branch == stage.stage]
        backward = [operation.block for operation in own if operation.action == "B"]
        assert backward == list(range(stage.last, stage.first - 1, -1))
        forwards = sum(operation.action != "B" for operation in own)
        assert forwards - len(backward) == pytest.approx(stage.recompute_seconds)
    assert audit(tmp_path / strategy).complaints == []
    assert plan_of(tmp_path, chain, strategy, 2, 30).stage_recompute == ""
    assert read_sequence(tmp_path / strategy / "sequence.arrow") == []
    tiny = plan_of(tmp_path, chain, strategy, 2, 5, "--stage-recompute", "rotor")
    assert tiny.smallest_memory is not None
    works = plan_of(
        tmp_path, chain, strategy, 2, tiny.smallest_memory, "--stage-recompute", "rotor"
    )
    assert works.period is not None


def test_options_of_blocks_from_a_file(tmp_path: Path) -> None:
    rows = [ChainPosition(n, 1, 2, 1, 10, 1, 0, 0, 0, 0, "block") for n in range(1, 6)]
    chain = Chain([*rows, ChainPosition(6, 1, 2, 1, 10, 1, 0, 0, 0, 0, "")], 1, 1)
    ways = [
        BlockOption("block", 0, "", 1, 6, 0, 1.0, 0.0, 0.0, [], []),
        BlockOption("block", 1, "", 10, 10, 10, 1.0, 2.0, 0.0, [], []),
        BlockOption("block", 2, "", 4, 10, 10, 1.0, 2.5, 0.0, [], []),
    ]
    write_block_options(tmp_path / "options.arrow", ways)
    rotor = plan_of(tmp_path, chain, "one_f_one_b", 2, 27, "--stage-recompute", "rotor")
    given = ["--stage-recompute", "rockmate", "--options", str(tmp_path / "options.arrow")]
    plan = plan_of(tmp_path, chain, "one_f_one_b", 2, 27, *given)
    assert (
        plan.period is not None and rotor.period is not None and plan.stage_recompute == "rockmate"
    )
    assert plan.period < rotor.period
    sequence = read_sequence(tmp_path / "one_f_one_b" / "sequence.arrow")
    assert {operation.option for operation in sequence if operation.action == "F"} >= {2}
