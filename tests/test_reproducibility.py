"""The same configuration, code and profile make the same bytes: in another folder, on another
number of cores, with other hashes, another clock and place, and on a processor that can do less."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__

from tightfit.__main__ import main
from tightfit.schemas.block_options import read_block_options, write_block_options
from tightfit.schemas.plan import read_plan
from tightfit.schemas.store import read_header
from tightfit.stages.combine.chain.dp_table_compiled import NO_NAN

ROOT = Path(__file__).parents[1]

DEVICE = {
    "artifact": "tightfit.machine/1",
    "name": "round numbers",
    "devices": [{"name": "cpu", "memory": 10**12, "flops": 1e11, "bandwidth": 1e10}],
}
"""Layers alike cost the same here, so that there are many plans that are equally good."""

SIZES = {"width": 64, "heads": 2, "vocabulary": 100, "batch": 4, "tokens": 64}

PLAN = """
import os, sys
from tightfit.__main__ import main
from tightfit.stages.combine.local_search import search

cores, given, levels = int(sys.argv[1]), sys.argv[2], sys.argv[3]
engines, budgets = (words.split() for words in sys.argv[4:])
if levels == "1":  # a brief search
    search.MIN_MOVES, search.START_MOVES, search.SLOW_MOVES = 400, 40, 60
    search.CONTINUATION_MOVES, search.SEEDS_PER_WARM_START, search.MAX_ROUNDS = 20, 1, 3
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
files = ["--graph", f"{given}/graph.arrow", "--costs", f"{given}/costs.arrow"]


def stage(*words):
    assert main([str(word) for word in words]) == 0, words


stage("partition", *files, "--out", "blocks.arrow")
blocks = ["--blocks", "blocks.arrow"]
for engine in engines:
    options, frontier = f"{engine}/options.arrow", f"{engine}/frontier.arrow"
    grid = ["--solver", engine, "--peaks", levels, "--saves", levels, "--jobs", cores]
    stage("solve", *blocks, "--store", "store", *grid, "--out", options)
    more = ["--options", options, "--strategy", "rockmate"]
    stage("combine", *files, *blocks, *more, "--out", frontier)
for point in budgets:
    stage("select", "--frontier", "highs/frontier.arrow", *files, "--budget", point, "--out", point)
    plan = ["--schedule", f"{point}/schedule.arrow", "--plan", f"{point}/plan.json"]
    stage("generate", *files[:2], *plan, "--out", f"{point}/module")
"""

HERE = {"PYTHONHASHSEED": "1"}
ELSEWHERE = {
    "PYTHONHASHSEED": "2",
    "NPY_DISABLE_CPU_FEATURES": " ".join(__cpu_dispatch__),
    "OPENBLAS_CORETYPE": "Prescott",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-AVX512F",
    "OMP_NUM_THREADS": "1",
    "TZ": "Pacific/Chatham",
    "LC_ALL": "tr_TR.UTF-8",
}
"""What is compiled for the processor that it runs on is left as it is: see the last test."""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The graph and the costs of a step, of a model of one layer unless a test asks for more."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "device.json").write_text(json.dumps(DEVICE))
    sizes = {"layers": getattr(request, "param", 1), **SIZES}
    source = ["--factory", "data.models:gpt2", "--arguments", json.dumps(sizes)]
    graph, costs = str(folder / "graph.arrow"), str(folder / "costs.arrow")
    assert main(["trace", *source, "--name", "gpt2", "--out", graph]) == 0
    device = ["--source", "roofline", "--machine", str(folder / "device.json")]
    assert main(["profile", "--graph", graph, *device, "--out", costs]) == 0
    return folder


def planned(
    folder: Path, given: Path, cores: int, environment: dict[str, str], words: tuple[str, ...]
) -> dict[str, bytes]:
    """Plans in a new folder, and gives all files made there but the records, by name."""
    folder.mkdir(parents=True)
    subprocess.run(
        [sys.executable, "-c", PLAN, str(cores), str(given), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=True,
    )
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent.name != "lineage"
    }


@pytest.mark.parametrize(
    ("given", "levels", "engines", "budgets"),
    [
        (1, "1", "highs", "70%"),
        pytest.param(2, "2", "highs cbc", "70% 40%", marks=pytest.mark.long),
    ],
    indirect=["given"],
)
def test_another_machine_makes_the_same_bytes(
    levels: str, engines: str, budgets: str, tmp_path: Path, given: Path
) -> None:
    words, points = (levels, engines, budgets), budgets.split()
    here = planned(tmp_path / "here", given, os.cpu_count() or 1, HERE, words)
    elsewhere = planned(tmp_path / "far" / "away from here", given, 1, ELSEWHERE, words)
    assert {f"{engine}/frontier.arrow" for engine in engines.split()} <= set(here)
    assert {f"{point}/module/step.py" for point in points} <= set(here)
    assert len({here[f"{point}/schedule.arrow"] for point in points}) == len(points)
    assert not any(b"the clock" in here[f"{point}/plan.json"] for point in points)
    names = sorted({*here, *elsewhere})
    assert [name for name in names if here.get(name) != elsewhere.get(name)] == []


@pytest.mark.parametrize("given", [1], indirect=True)
def test_a_message_says_where_the_clock_decided(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = ["--graph", f"{given}/graph.arrow", "--costs", f"{given}/costs.arrow"]
    solve = ["--store", "store", "--peaks", "1", "--saves", "1", "--out", "options.arrow"]
    more = ["--blocks", "blocks.arrow", "--options", "options.arrow", "--strategy", "rockmate"]
    assert main(["partition", *files, "--out", "blocks.arrow"]) == 0
    assert main(["solve", "--blocks", "blocks.arrow", *solve]) == 0
    assert read_header("options.arrow").metadata["clock"] == "0"
    solved = [
        option for options in read_block_options("options.arrow").values() for option in options
    ]
    write_block_options("options.arrow", solved, {"clock": "2"})
    assert main(["combine", *files, *more, "--out", "frontier.arrow"]) == 0
    statuses = {}
    for budget in ("100%", "50%", "1B"):
        chosen = ["--frontier", "frontier.arrow", "--budget", budget, "--out", budget]
        assert main(["select", *files, *chosen]) == 0
        plan = read_plan(f"{budget}/plan.json")
        said = plan.message.endswith("; the clock, not the work, ended 2 of the blocks' solves")
        statuses[plan.status] = said
    assert statuses == dict.fromkeys(("optimal", "feasible", "infeasible"), True)


def test_what_is_compiled_adds_in_the_order_that_is_written() -> None:
    """A processor with wider registers would otherwise add the same numbers in another order."""
    sources = [path.read_text() for path in sorted((ROOT / "stages").rglob("*.py"))]
    liberties = {found for text in sources for found in re.findall(r"fastmath[^,)]*", text)}
    assert liberties == {"fastmath=NO_NAN"}
    assert {"nnan", "nsz"} >= NO_NAN
