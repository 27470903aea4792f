"""Steps that no pipeline runs are refused in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.stages.runtime.pipeline.single_process import blocks_by_hand, hard, split_by_hand
from tightfit.schemas.graph.training_graph import Graph, OwnedGradient
from tightfit.stages.generate.package import zero_time_costs
from tightfit.util.errors import ConfigError, ModelError, TightfitError


def of_an_input(graph: Graph) -> Graph:
    return replace(graph, gradients=[*graph.gradients, OwnedGradient(graph.inputs[0], 60)])


def guarded(graph: Graph, **changes: object) -> Graph:
    return replace(graph, guards=json.dumps({**json.loads(graph.guards), **changes}))


def drawing(graph: Graph, phase: str, target: str) -> Graph:
    """The same where the last op of a phase draws random numbers."""
    last = max(op.id for op in graph.ops if op.phase == phase and not graph.is_view(op))
    ops = [
        replace(op, random=True, target=target or op.target) if op.id == last else op
        for op in graph.ops
    ]
    return replace(graph, ops=ops)


CHANGES: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "input": (of_an_input, "the input tokens requires a gradient|the input .* requires"),
    "autocast": (lambda g: guarded(g, autocast={"enabled": True}), "was traced under autocast"),
    "assigned_buffers": (
        lambda g: guarded(g, assigned_buffers=["norm.x"]),
        r"in the place of "
        r"norm\.x",
    ),
    "guards": (lambda g: replace(g, guards="[]"), "the guards are not JSON"),
    "backward": (lambda g: drawing(g, "backward", ""), "in the backward, which come in another"),
    "draws": (lambda g: drawing(g, "forward", "aten.multinomial.default"), "draw ahead of it"),
    "loss": (lambda g: replace(g, has_loss=False), "plan it with a loss, such as lambda"),
    "device": (lambda g: replace(g, device="cuda"), "pipelines run on CPUs so far"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_step_that_is_no_pipeline(name: str) -> None:
    change, said = CHANGES[name]
    _, graph = hard()
    with pytest.raises(TightfitError, match=said) as caught:
        split_by_hand(change(graph), blocks_by_hand(graph, 6), [0, 1], [3, 7], 2)
    assert str(caught.value).count("\n") == 0


def test_a_buffer_that_two_stages_have_in_use() -> None:
    """The step counts batches and reads the count elsewhere."""
    _, graph = hard()
    blocks = blocks_by_hand(graph, 6)
    writing = {op.id for op in graph.ops if op.writes}
    [first] = [block for block in blocks.blocks if writing & {*block.forward}][:1]
    for op in writing:
        for block in blocks.blocks:
            if op in block.forward:
                block.forward.remove(op)
    blocks.blocks[5].forward.extend(sorted(writing))
    assert first
    with pytest.raises(ModelError, match="is written by the forward of one stage and read"):
        split_by_hand(graph, blocks, [0, 1], [3, 7], 2)


def test_a_plan_of_another_chain() -> None:
    _, graph = hard()
    with pytest.raises(ConfigError, match="a chain with 6 positions, the blocks are one of 7"):
        split_by_hand(graph, blocks_by_hand(graph, 6), [0, 1], [3, 6], 2)
    assert zero_time_costs(graph).device.type == "cpu"
