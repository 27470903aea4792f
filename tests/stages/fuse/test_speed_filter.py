"""Groups that take longer than ATen's calls stay these."""

from __future__ import annotations

import pytest
import torch

from tests.stages.fuse.test_compile_groups import BODY, CPU, inputs
from tests.stages.fuse.test_fuse_graph import blocks
from tests.stages.generate.plans import traced
from tightfit.schemas.graph.fused_groups import GroupBody, is_fused_group, read_group_body
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.fuse import compile_groups, speed_filter
from tightfit.stages.fuse.compile_groups import fuse_and_compile
from tightfit.stages.fuse.fuse_graph import fuse
from tightfit.stages.fuse.speed_filter import (
    SLOWDOWN_MARGIN,
    _aten_runner,
    is_slower_than_aten,
    min_seconds,
)
from tightfit.stages.torch_utils.fused_group_operators import evaluate_body


def test_the_calls_of_a_body_give_what_it_gives() -> None:
    for _ in range(2):
        found = _aten_runner(BODY)(inputs())
        assert all(map(torch.equal, found, evaluate_body(BODY, inputs())))


@pytest.mark.parametrize(
    ("seconds", "slower"), [(SLOWDOWN_MARGIN * 1.01, True), (SLOWDOWN_MARGIN * 0.99, False)]
)
def test_a_kernel_may_take_a_little_longer(
    seconds: float, slower: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed_filter, "min_seconds", lambda calls, device: [seconds, 1.0])
    assert is_slower_than_aten(BODY, CPU) is slower


def test_both_run_in_turn_and_the_least_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    clock = iter([5.0, 9.0, *[7.0, 2.0] * (speed_filter.ROUNDS - 1)])
    monkeypatch.setattr(speed_filter, "host_seconds", lambda call: (call(), next(clock))[1])
    found = min_seconds([lambda: ran.append("fused"), lambda: ran.append("alone")], CPU)
    assert found == [5.0, 2.0]
    assert ran == ["fused", "alone"] * speed_filter.ROUNDS


def groups(graph: Graph) -> set[str]:
    return {op.target for op in graph.ops if is_fused_group(op.target)}


def test_a_slow_group_stays_aten_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = traced(blocks(1))
    fused = fuse(graph)
    slow = next(op for op in fused.ops if is_fused_group(op.target) and op.phase == "forward")

    def judge(body: GroupBody, device: torch.device) -> bool:
        return body == read_group_body(slow)

    monkeypatch.setattr(compile_groups, "compile_group", lambda body, device: None)
    monkeypatch.setattr(compile_groups, "is_slower_than_aten", judge)
    monkeypatch.setattr(compile_groups, "is_exact_and_smaller", lambda body, over, device: False)
    told: list[str] = []
    found = fuse_and_compile(graph, CPU, told.append)
    assert slow.target not in groups(found)
    assert groups(found)
    assert told == ["the kernel of a group of gelu, mul, add is slower than ATen; it stays ATen"]
