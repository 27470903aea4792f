"""Groups that take longer than ATen's calls stay these."""

from __future__ import annotations

import pytest
import torch

from tests.stages.fuse.test_compiling import BODY, CPU, inputs
from tests.stages.fuse.test_fusing import blocks
from tests.stages.generate.plans import traced
from tightfit.schemas.graph import Graph
from tightfit.schemas.groups import Body, body_of, is_group
from tightfit.stages.device.evaluate import evaluate
from tightfit.stages.fuse import compiling, pace
from tightfit.stages.fuse.compiling import fuse_compiled
from tightfit.stages.fuse.fusing import fuse
from tightfit.stages.fuse.pace import MARGIN, _calls_of, least_seconds, slower_than_aten


def test_the_calls_of_a_body_give_what_it_gives() -> None:
    for _ in range(2):
        found = _calls_of(BODY)(inputs())
        assert all(map(torch.equal, found, evaluate(BODY, inputs())))


@pytest.mark.parametrize(("seconds", "slower"), [(MARGIN * 1.01, True), (MARGIN * 0.99, False)])
def test_a_kernel_may_take_a_little_longer(
    seconds: float, slower: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "least_seconds", lambda calls, device: [seconds, 1.0])
    assert slower_than_aten(BODY, CPU) is slower


def test_both_run_in_turn_and_the_least_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    clock = iter([5.0, 9.0, *[7.0, 2.0] * (pace.ROUNDS - 1)])
    monkeypatch.setattr(pace, "host_seconds", lambda call: (call(), next(clock))[1])
    found = least_seconds([lambda: ran.append("fused"), lambda: ran.append("alone")], CPU)
    assert found == [5.0, 2.0]
    assert ran == ["fused", "alone"] * pace.ROUNDS


def groups(graph: Graph) -> set[str]:
    return {op.target for op in graph.ops if is_group(op.target)}


def test_a_slow_group_stays_aten_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = traced(blocks(1))
    fused = fuse(graph)
    slow = next(op for op in fused.ops if is_group(op.target) and op.phase == "forward")

    def judge(body: Body, device: torch.device) -> bool:
        return body == body_of(slow)

    monkeypatch.setattr(compiling, "compile_group", lambda body, device: None)
    monkeypatch.setattr(compiling, "slower_than_aten", judge)
    monkeypatch.setattr(compiling, "exact_and_smaller", lambda body, over, device: False)
    told: list[str] = []
    found = fuse_compiled(graph, CPU, told.append)
    assert slow.target not in groups(found)
    assert groups(found)
    assert told == ["the kernel of a group of gelu, mul, add is slower than ATen; it stays ATen"]
