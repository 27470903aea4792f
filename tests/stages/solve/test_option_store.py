from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from tests.stages.solve.blocks import perceptron
from tightfit.schemas.block_options import BlockOption, options_link_speed, read_block_options
from tightfit.schemas.blocks import Block, Blocks, planning_graph_digest, write_blocks
from tightfit.schemas.link import HostLink
from tightfit.stages.solve import option_store, search
from tightfit.stages.solve.command import add_arguments, run
from tightfit.stages.solve.pulp_solver import PulpSolveResult, solve
from tightfit.stages.solve.search import OptionGrid
from tightfit.util.errors import ArtifactError, TightfitError

GRID = OptionGrid(peaks=2, saves=2)


def test_a_block_is_solved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = perceptron()
    digest = planning_graph_digest(problem)
    told: list[tuple[str, int, bool]] = []

    def done(block: str, options: list[BlockOption], solved: bool) -> None:
        told.append((block, len(options), solved))

    first = option_store.solve_blocks({digest: problem}, tmp_path, "highs", GRID, 2, done)

    def refuse(*arguments: object) -> list[BlockOption]:
        raise AssertionError("solved again")

    monkeypatch.setattr(option_store._Workers, "solve", refuse)
    second = option_store.solve_blocks({digest: problem}, tmp_path, "highs", GRID, 2, done)
    assert first == second
    assert told == [(digest, len(first), True), (digest, len(first), False)]
    with pytest.raises(AssertionError, match="solved again"):
        option_store.solve_blocks({digest: problem}, tmp_path, "cbc", GRID, 2)
    with pytest.raises(AssertionError, match="solved again"):
        option_store.solve_blocks(
            {digest: problem}, tmp_path, "highs", OptionGrid(peaks=3, saves=2), 2
        )


def test_as_many_blocks_are_solved_at_a_time_as_there_are_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[str] = []
    most = []
    together = Barrier(3)

    def solve_apart(workers: object, digest: str, *arguments: object) -> list[BlockOption]:
        running.append(digest)
        together.wait(60)
        most.append(len(running))
        together.wait(60)
        running.remove(digest)
        return []

    monkeypatch.setattr(option_store._Workers, "solve", solve_apart)
    blocks = {f"{place:064}": perceptron() for place in range(6)}
    option_store.solve_blocks(blocks, tmp_path, "highs", GRID, 3)
    assert most == [3] * 6


def test_an_interruption_ends_what_is_solved_and_begins_nothing(tmp_path: Path) -> None:
    blocks = {f"{place:064}": perceptron() for place in range(8)}
    known: list[str] = []

    def interrupt(digest: str, options: list[BlockOption], solved: bool) -> None:
        known.append(digest)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        option_store.solve_blocks(blocks, tmp_path, "highs", GRID, 2, interrupt)
    paths = [option_store.option_store_path(tmp_path, digest, "highs", GRID) for digest in blocks]
    assert len(known) == 1 and sum(path.exists() for path in paths) < len(blocks)


def test_a_worker_that_begins_after_the_end_is_ended(tmp_path: Path) -> None:
    workers = option_store._Workers(tmp_path, "highs", GRID, {})
    workers.stop()
    code, _ = workers.run("", {**os.environ})
    assert code != 0 and not workers.running


def test_a_worker_ends_with_the_process_that_began_it() -> None:
    """Also where that was killed, and could end none."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    code = f"import tightfit.stages.solve.worker as worker; worker._end_with({ended.pid})"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 1


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    problem = perceptron()
    paths = []
    for folder in ("one", "two"):
        option_store.solve_into_store("d" * 64, problem, tmp_path / folder, "highs", GRID)
        paths.append(option_store.option_store_path(tmp_path / folder, "d" * 64, "highs", GRID))
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_solves_that_the_clock_ended_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    option_store.solve_into_store("a" * 64, perceptron(), tmp_path, "highs", GRID)
    ended = []

    def by_the_clock(*arguments: Any, **words: Any) -> PulpSolveResult:
        ended.append(replace(solve(*arguments, **words), limit="clock"))
        return ended[-1]

    monkeypatch.setattr(search, "solve", by_the_clock)
    option_store.solve_into_store("b" * 64, perceptron(), tmp_path, "highs", GRID)
    paths = [
        option_store.option_store_path(tmp_path, digest * 64, "highs", GRID) for digest in "ab"
    ]
    assert ended
    assert [option_store.count_clock_limited([path]) for path in paths] == [0, len(ended)]
    assert option_store.count_clock_limited(paths * 2) == 2 * len(ended)


def test_a_damaged_shelf_is_refused(tmp_path: Path) -> None:
    problem = perceptron()
    digest = planning_graph_digest(problem)
    option_store.solve_into_store(digest, problem, tmp_path, "highs", GRID)
    path = option_store.option_store_path(tmp_path, digest, "highs", GRID)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=str(path)):
        option_store.solve_blocks({digest: problem}, tmp_path, "highs", GRID, 1)


def test_another_blocks_options_are_refused(tmp_path: Path) -> None:
    problem = perceptron()
    digest = planning_graph_digest(problem)
    option_store.solve_into_store("d" * 64, problem, tmp_path, "highs", GRID)
    option_store.option_store_path(tmp_path, "d" * 64, "highs", GRID).rename(
        option_store.option_store_path(tmp_path, digest, "highs", GRID)
    )
    with pytest.raises(ArtifactError, match="another block"):
        option_store.solve_blocks({digest: problem}, tmp_path, "highs", GRID, 1)


def test_a_failing_solve_says_so(tmp_path: Path) -> None:
    (tmp_path / "options").write_text("a file where a folder should be")
    problem = perceptron()
    with pytest.raises(TightfitError, match="solving block"):
        option_store.solve_blocks(
            {planning_graph_digest(problem): problem}, tmp_path, "highs", GRID, 1
        )


def test_solving_loads_no_torch() -> None:
    code = "import sys, tightfit.stages.solve.worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def describe_link(path: Path, bandwidth: float) -> None:
    device, host = {"name": "cuda:0", "memory": 10**9}, {"name": "host", "memory": 10**9}
    link = {"between": ["cuda:0", "host"], "bandwidth": bandwidth, "latency": 1e-5}
    document = {"artifact": "tightfit.machine/1", "name": "a GPU", "devices": [device]}
    path.write_text(json.dumps({**document, "memories": [host], "links": [link]}))


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = perceptron()
    digest = planning_graph_digest(problem)
    block = Block(
        digest=digest,
        label="layer",
        forward=[0, 1, 2],
        backward=[4, 5, 6],
        once=[],
        storages=list(range(10)),
        inputs=[0],
        outputs=[3],
        incoming=[4],
        outgoing=[9],
        output_bytes=4,
        incoming_bytes=4,
        outgoing_bytes=4,
        gradient_bytes=4,
        carried_bytes=0,
    )
    chain = Blocks("model", [], 0.0, 0, 3, 0.0, 4, [block], {digest: problem})
    write_blocks(tmp_path / "blocks", chain)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    files = [
        "--blocks",
        tmp_path / "blocks",
        "--store",
        tmp_path,
        "--out",
        tmp_path / "options.out",
    ]
    settings = ["--solver", "cbc", "--peaks", "2", "--saves", "2", "--jobs", "1"]
    run(parser.parse_args([*map(str, files), *settings]))
    options = read_block_options(tmp_path / "options.out")
    assert list(options) == [digest]
    assert f"layer: {len(options[digest])} options" in capsys.readouterr().out
    machine = tmp_path / "machine.json"
    for bandwidth in (4.0, 8.0):
        describe_link(machine, bandwidth)
        run(parser.parse_args([*map(str, files), *settings, "--machine", str(machine)]))
        assert options_link_speed(tmp_path / "options.out") == HostLink(bandwidth, 1e-5).speed
        assert "solved 1, 0 from the store" in capsys.readouterr().out
        assert any(option.leaves for option in read_block_options(tmp_path / "options.out")[digest])
    assert len(list((tmp_path / "options").iterdir())) == 3


@pytest.mark.parametrize("count", ["0", "-2", "many"])
def test_command_refuses_counts_that_are_none(count: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    with pytest.raises((SystemExit, argparse.ArgumentError)):
        parser.parse_args(["--blocks", "b", "--store", "s", "--out", "o", "--peaks", count])
