"""Batch norm by the kernels that eager takes. Here both are those of the CPU, which have the same
bits: what is told of cuDNN is that a step would call it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import compare, generated, recompute, traced
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.stages.torch_utils.graph_check import check_graph_program
from tightfit.stages.trace.canonicalize.eager_kernels import (
    BATCH_NORM_EVALUATION,
    use_cudnn_batch_norm,
)
from tightfit.stages.trace.program import CapturedProgram, OperatorCall, Variable

aten = torch.ops.aten
CHOOSING = "aten._batch_norm_with_update_functional.default"
BACKWARD = "aten.batch_norm_backward.default"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Eager takes cuDNN wherever it is asked; what it was asked."""
    asked: list[tuple[Any, ...]] = []

    def chosen(*args: Any) -> Any:
        asked.append(args)
        return SimpleNamespace(name="Cudnn")

    monkeypatch.setattr(torch._C, "_select_batch_norm_backend", chosen)
    return asked


def model(norm: nn.Module) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Conv2d(8, 4, 3))
    return layers, ((torch.randn(2, 3, 8, 8),), {})


def targets(graph: Graph) -> set[str]:
    return {op.target for op in graph.ops if "batch_norm" in op.target}


def test_training_chooses_as_eager_does(asked: list[tuple[Any, ...]], tmp_path: Path) -> None:
    """Bits, statistics and the order of their updates are those of eager."""
    graph, built = traced(model(nn.BatchNorm2d(8)))
    check_graph_program(graph, "graph")
    assert targets(graph) == {CHOOSING, BACKWARD}
    compare(generated(graph, tmp_path / "all"), built)
    compare(generated(graph, tmp_path / "some", recompute(graph, 1)), built)
    shapes = [tuple(operand.shape) for operand in asked[0][:5]]
    assert shapes == [(2, 8, 6, 6), (8,), (8,), (8,), (8,)] and asked[0][5:] == (True, 1e-5)


def test_what_the_forward_leaves_goes_to_its_own_backward(
    asked: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    made, sample = model(nn.BatchNorm2d(8))
    made = nn.Sequential(made, nn.BatchNorm2d(4))
    graph, built = traced((made, sample))
    forward = [op for op in graph.ops if op.target == CHOOSING]
    backward = [op for op in graph.ops if op.target == BACKWARD]
    assert [op.outputs[3] for op in forward] == [op.inputs[-1] for op in backward[::-1]]
    assert NO_VALUE not in [op.outputs[3] for op in forward]
    compare(generated(graph, tmp_path / "all"), built)


def test_nothing_changes_where_eager_takes_its_own_kernels(tmp_path: Path) -> None:
    graph, _ = traced(model(nn.BatchNorm2d(8)))
    assert targets(graph) == {
        "aten._native_batch_norm_legit_functional.default",
        "aten.native_batch_norm_backward.default",
    }


def test_nothing_changes_where_cudnn_is_switched_off(asked: list[tuple[Any, ...]]) -> None:
    with torch.backends.cudnn.flags(enabled=False):
        graph, _ = traced(model(nn.BatchNorm2d(8)))
    assert CHOOSING not in targets(graph) and not asked


def test_without_weights_the_capture_stays(asked: list[tuple[Any, ...]]) -> None:
    graph, _ = traced(model(nn.BatchNorm2d(8, affine=False)))
    assert CHOOSING not in targets(graph) and not asked


def test_evaluation_calls_cudnn(asked: list[tuple[Any, ...]]) -> None:
    """Its backward is PyTorch's own, in eager too."""
    fake = torch.empty(2, 8, 6, 6)
    operands = [Variable("intermediate", fake) for _ in range(5)]
    results: list[Variable | None] = [Variable("intermediate", fake) for _ in range(3)]
    norm = OperatorCall(BATCH_NORM_EVALUATION, (*operands, 0.1, 1e-5), {}, list(results))
    mask = [True, True, True]
    given = (*operands[:2], *operands[1:2], *operands[3:], *results[1:], False, 1e-5, mask)
    back = OperatorCall(aten.native_batch_norm_backward.default, given, {}, [None, None, None])
    use_cudnn_batch_norm(CapturedProgram([], {}, {}, [norm, back], [], [], {}))
    assert norm.target is aten.cudnn_batch_norm.default
    assert norm.args == (*operands, False, 0.1, 1e-5)
    assert norm.outputs == [*results, None] and norm.inputs() == operands
    assert back.target is aten.native_batch_norm_backward.default and back.args == given
    assert asked[0][-2:] == (False, 1e-5)


def test_without_running_statistics_the_capture_stays(asked: list[tuple[Any, ...]]) -> None:
    graph, _ = traced(model(nn.BatchNorm2d(8, track_running_stats=False)))
    assert targets(graph) == {
        "aten._native_batch_norm_legit.no_stats",
        "aten.native_batch_norm_backward.default",
    }
    assert not asked
