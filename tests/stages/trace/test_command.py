"""The stage by hand, and its memory."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tightfit.schemas.graph.training_graph import read_graph
from tightfit.stages.trace.command import add_arguments, run
from tightfit.util.errors import ConfigError, ModelError

TINY = {"layers": 1, "width": 32, "heads": 2, "vocabulary": 50, "batch": 1, "tokens": 8}


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(list(words))


def command(out: Path, factory: str, arguments: str = "{}") -> argparse.Namespace:
    return options(
        "--factory", factory, "--arguments", arguments, "--name", "mine", "--out", str(out)
    )


def test_it_writes_a_graph_and_the_same_bytes_again(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(command(tmp_path / name, "data.models:gpt2", json.dumps(TINY)))
    graph = read_graph(tmp_path / "one")
    assert graph.model == "mine" and graph.device == "cpu"
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_it_leaves_room_for_a_loss(tmp_path: Path) -> None:
    words = command(tmp_path / "graph", "data.models:gpt2", json.dumps(TINY))
    for written, room in (("1kB", 1000), ("usual", 2 * 8 * 50 * 4 + 8 * 8 + 16)):
        words.loss_room = written
        run(words)
        assert read_graph(tmp_path / "graph").loss_room == room
    words.loss_room = "50%"
    with pytest.raises(ConfigError, match="--loss-room: '50%' is a share"):
        run(words)


def test_a_model_with_tensor_attributes_is_built_for_real(tmp_path: Path) -> None:
    run(command(tmp_path / "graph", "tests.stages.trace.modules:structured"))
    graph = read_graph(tmp_path / "graph")
    constants = [value for value in graph.values if value.kind == "constant"]
    assert sorted(len(value.data) for value in constants) == [4, 16]


def test_nothing_is_written_when_it_fails(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        run(command(tmp_path / "graph", "tests.stages.trace.unsupported_modules:branching"))
    with pytest.raises(ConfigError, match="not JSON"):
        run(command(tmp_path / "graph", "data.models:gpt2", "{"))
    with pytest.raises(ConfigError, match="not a JSON object"):
        run(command(tmp_path / "graph", "data.models:gpt2", "[]"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_weights_are_never_allocated(tmp_path: Path) -> None:
    """A layer of GPT-2 with 4.4 GB of weights, traced in a process that may not have half a
    gigabyte more than PyTorch itself takes."""
    big = {"layers": 1, "width": 8832, "heads": 48, "vocabulary": 20000, "batch": 8, "tokens": 1024}
    script = f"""
import resource, torch, transformers.models.gpt2.modeling_gpt2
from tightfit.stages.trace.command import run
from argparse import Namespace
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(Namespace(factory="data.models:gpt2", arguments={json.dumps(big)!r}, name="big", device="cpu",
              out={str(tmp_path / "graph")!r}, search_path=[], operators=[],
              assume_all_ones_masks=False,
              channels_last=False, loss_room="0", dynamic_shapes=None))
print("grown by", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, "MiB")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    grown = int(done.stdout.split("grown by")[1].split()[0])
    graph = read_graph(tmp_path / "graph")
    weights = sum(
        graph.storages[value.storage] for value in graph.values if value.kind == "parameter"
    )
    assert weights > 4e9
    assert grown < 500, done.stdout
