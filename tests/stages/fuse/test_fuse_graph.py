"""Fused graphs: groups evaluated by ATen give the bits of the step that was traced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from tests.stages.generate.plans import traced
from tests.stages.trace.eager_comparison import check_against_eager
from tightfit.schemas.graph.fused_groups import (
    GROUP_PREFIX,
    group_body_digest,
    is_fused_group,
    parse_group_body,
    read_group_body,
    serialize_group_body,
)
from tightfit.schemas.graph.op_arguments import decode_arguments, encode_arguments
from tightfit.schemas.graph.ownership import previous_partial_gradients
from tightfit.schemas.graph.training_graph import Graph, check_graph, write_graph
from tightfit.stages.audit.audit import audit
from tightfit.stages.fuse.fuse_graph import fuse
from tightfit.stages.fuse.group_ops import group_ops
from tightfit.stages.generate.package import zero_time_costs
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.torch_utils.fused_group_operators import evaluate_body
from tightfit.stages.torch_utils.operators import training_operator
from tightfit.util.errors import ArtifactError


class Block(nn.Module):
    """A layer norm, gelu between two matrix products, dropout and the residual."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up = nn.Linear(size, 2 * size)
        self.down = nn.Linear(2 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.gelu(self.up(self.norm(x)), approximate="tanh") * 0.5 + 1
        return x + functional.dropout(self.down(inner), 0.1)


def blocks(depth: int = 2) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(8) for _ in range(depth))), ((torch.randn(3, 4, 8),), {})


class Drawn(nn.Module):
    """Operations in a drawn order on what was made before."""

    def __init__(self, steps: list[tuple[int, int, int]]) -> None:
        super().__init__()
        self.steps = steps
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        made = [x * self.weight, self.weight + 1]
        for kind, one, other in self.steps:
            a, b = made[one % len(made)], made[other % len(made)]
            made.append(
                (
                    lambda a, b: a + b,
                    lambda a, b: torch.tanh(a) * b,
                    lambda a, b: a @ b,
                    lambda a, b: a.t() + b.reshape(2, 8).reshape(4, 4),
                    lambda a, b: torch.softmax(a, 1) - b[0],
                    lambda a, b: functional.dropout(a, 0.3) + b.mean(0, keepdim=True),
                    lambda a, b: functional.layer_norm(a, (4,)).sigmoid(),
                )[kind](a, b)
            )
        return torch.stack(made).sum(0)


def by_aten(target: str) -> Any:
    """Runs a group call by call."""
    if not is_fused_group(target):
        return training_operator(target)
    return lambda *inputs, body: evaluate_body(parse_group_body(body), inputs)


def check_bits(made: Any, path: Path) -> Graph:
    """Asserts that the fused graph gives eager's bits; returns it."""
    graph, built = traced(made)
    fused = fuse(graph)
    check_graph(fused, "fused")
    for op in fused.ops:
        if is_fused_group(op.target):
            read_group_body(op)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.stages.trace.graph_interpreter.training_operator", by_aten)
        check_against_eager(fused, built, path)
    return fused


def test_blocks_give_the_bits_of_eager(tmp_path: Path) -> None:
    fused = check_bits(blocks(), tmp_path / "graph.arrow")
    groups = [op for op in fused.ops if is_fused_group(op.target)]
    assert groups
    assert len({op.target for op in groups}) < len(groups)
    assert [op.random for op in fused.ops if "dropout" in op.target and op.phase == "forward"]


class Rotating(nn.Module):
    """Real and complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex((self.line(x).tanh() * 2).view(-1, 2, 2))
        return torch.view_as_real(pairs * pairs.conj() + pairs).flatten(1).sigmoid() * 3


def test_complex_numbers_are_in_no_group(tmp_path: Path) -> None:
    fused = check_bits((Rotating(), ((torch.randn(4, 4),), {})), tmp_path / "graph.arrow")
    groups = [op for op in fused.ops if is_fused_group(op.target)]
    assert groups
    for op in groups:
        assert not any("complex" in fused.values[at].dtype for at in (*op.inputs, *op.outputs))


def test_fewer_ops_and_the_graph_itself_is_left_alone() -> None:
    graph, _ = traced(blocks())
    before = repr(graph)
    assert len(fuse(graph).ops) < len(graph.ops)
    assert repr(graph) == before
    assert fuse(graph) == fuse(graph)


def test_deeper_models_have_no_more_distinct_groups() -> None:
    counts = [
        len({op.target for op in fuse(traced(blocks(depth))[0]).ops if is_fused_group(op.target)})
        for depth in (4, 6)
    ]
    assert counts[0] == counts[1]


STEPS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=9
)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_drawn_steps_give_the_bits_of_eager(
    tmp_path: Path, steps: list[tuple[int, int, int]]
) -> None:
    torch.manual_seed(1)
    check_bits((Drawn(steps), ((torch.randn(4, 4),), {})), tmp_path / "graph.arrow")


def test_contributions_to_a_gradient_are_made_in_their_order() -> None:
    steps = [(2, 11, 16), (0, 14, 7), (5, 1, 5), (0, 11, 15), (6, 7, 12), (4, 3, 18), (1, 0, 6)]
    graph, _ = traced((Drawn(steps), ((torch.randn(4, 4, requires_grad=True),), {})))
    fused = fuse(graph)
    assert any(is_fused_group(op.target) for op in fused.ops)
    maker = {value: op.id for op in fused.ops for value in op.outputs}
    for value, before in previous_partial_gradients(fused).items():
        assert maker[before] <= maker[value]
    build_planning_graph(fused, zero_time_costs(fused))


@settings(max_examples=12, deadline=None)
@given(steps=STEPS)
def test_groups_are_convex(steps: list[tuple[int, int, int]]) -> None:
    graph, _ = traced((Drawn(steps), ((torch.randn(4, 4),), {})))
    units = group_ops(graph)
    reached: dict[int, set[int]] = {}

    def behind(unit: int) -> set[int]:
        if unit not in reached:
            reached[unit] = set()
            reached[unit] = {far for near in units.behind(unit) for far in {near} | behind(near)}
        return reached[unit]

    assert not [unit for unit in units.members if unit in behind(unit)]
    for members in units.members.values():
        assert len({graph.ops[op].phase for op in members}) == 1
        assert len(members) == 1 or not any(graph.ops[op].random for op in members)


def a_group() -> Any:
    return next(op for op in fuse(traced(blocks(1))[0]).ops if is_fused_group(op.target))


def doctored(op: Any, old: str, new: str, digest: bool = False) -> Any:
    args, kwargs = decode_arguments(op.arguments)
    written = kwargs["body"].replace(old, new)
    assert written != kwargs["body"]
    target = GROUP_PREFIX + group_body_digest(written) if digest else op.target
    return replace(op, target=target, arguments=encode_arguments(args, {"body": written}))


def test_a_body_is_read_as_it_was_written() -> None:
    body = read_group_body(a_group())
    assert parse_group_body(serialize_group_body(body)) == body


def test_a_doctored_body_is_refused() -> None:
    with pytest.raises(ArtifactError, match="another digest"):
        read_group_body(doctored(a_group(), "aten.", "prims."))


def test_an_audit_finds_a_doctored_body(tmp_path: Path) -> None:
    graph = fuse(traced(blocks(1))[0])
    write_graph(tmp_path / "graph.arrow", graph, fused=True)
    said = "there is no record of how it was made"
    assert audit(tmp_path).complaints == [f"{tmp_path / 'graph.arrow'}: {said}"]
    ops = [doctored(op, "aten.", "prims.") if is_fused_group(op.target) else op for op in graph.ops]
    write_graph(tmp_path / "graph.arrow", replace(graph, ops=ops), fused=True)
    [complaint] = audit(tmp_path).complaints
    assert "has a body of another digest than its target names" in complaint


def test_an_operator_that_no_group_may_run_is_refused() -> None:
    with pytest.raises(ArtifactError, match="which no group may run"):
        read_group_body(doctored(a_group(), "aten.", "os.", digest=True))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"inputs":[],"calls":[],"outputs":[0]}', "[" * 5000]
)
def test_a_text_that_is_no_body_is_refused(text: str) -> None:
    with pytest.raises(ArtifactError, match="group"):
        parse_group_body(text)
