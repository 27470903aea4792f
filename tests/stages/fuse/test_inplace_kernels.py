"""Groups in place: kept where they have the bits of the other kernel and take fewer bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.stages.fuse.test_compile_groups import BODY, CPU, inputs
from tests.stages.generate.plans import generated, traced
from tightfit.schemas.graph.fused_groups import in_place_output, is_fused_group, read_group_body
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, Op
from tightfit.stages.fuse import inplace_kernels
from tightfit.stages.fuse.fuse_graph import fuse
from tightfit.stages.fuse.inplace_kernels import add_inplace_kernels, is_exact_and_smaller
from tightfit.stages.profile.measure import measure_op
from tightfit.stages.runtime.kernels.compile import InPlaceKernel, Kernel
from tightfit.stages.torch_utils.fused_group_operators import group_kernel, in_place_group_kernel
from tightfit.stages.torch_utils.graph_check import check_graph_program
from tightfit.util.errors import ArtifactError

FIRST = InPlaceKernel(0, 0)


def test_a_kernel_in_place_has_the_bits_of_the_other_one() -> None:
    given, (one, other) = inputs(), group_kernel(BODY, CPU)(inputs())
    found = group_kernel(BODY, CPU, FIRST)(given)
    assert torch.equal(found[0], one)
    assert torch.equal(found[1], other)
    assert found[0].data_ptr() == given[0].data_ptr()
    assert not found[0]._is_view()
    assert torch.equal(given[0], one)
    assert torch.equal(given[1], inputs()[1])


def test_an_exact_and_smaller_form_is_kept() -> None:
    assert is_exact_and_smaller(BODY, FIRST, CPU)


def near(given: Sequence[Tensor]) -> list[Tensor]:
    made = group_kernel(BODY, CPU, FIRST)(given)
    made[1].add_(1e-7)
    return made


def spoiling(given: Sequence[Tensor]) -> list[Tensor]:
    made = group_kernel(BODY, CPU, FIRST)(given)
    given[1].zero_()
    return made


def failing(given: Sequence[Tensor]) -> list[Tensor]:
    raise RuntimeError("this kernel does not run")


@pytest.mark.parametrize("wrong", [near, spoiling, failing, group_kernel(BODY, CPU)])
def test_other_bits_and_no_fewer_bytes_are_not_taken(
    wrong: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(body: Any, device: torch.device, over: InPlaceKernel | None = None) -> Kernel:
        return group_kernel(body, device) if over is None else wrong

    monkeypatch.setattr(inplace_kernels, "group_kernel", given)
    assert not is_exact_and_smaller(BODY, FIRST, CPU)


class Rows(nn.Module):
    """Matrix products with groups of small ops in between, which end with what they read."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.other = nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.full((16,), 2.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for line in self.lines:
            made = line(x)
            x = torch.tanh(made * self.scale) * 0.5 + made.view(4, 4, 16).exp().view(16, 16)
        return x, self.other(x * 2 + 1).sigmoid() * 3


@pytest.fixture(scope="module")
def rows() -> tuple[Graph, Any]:
    torch.manual_seed(0)
    graph, built = traced((Rows().train(), ((torch.randn(16, 16),), {})))
    return add_inplace_kernels(fuse(graph), lambda body, over: True), built


def groups_of(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if is_fused_group(op.target)]


def test_each_form_of_equal_groups_is_judged_once(rows: tuple[Graph, Any]) -> None:
    judged = []

    def judge(body: Any, over: InPlaceKernel) -> bool:
        judged.append((repr(body), over))
        return over.input == 0

    found = add_inplace_kernels(rows[0], judge)
    assert len(judged) == len(set(judged))
    assert len(judged) < sum(len(op.in_place) for op in groups_of(rows[0]))
    places = [op.inputs.index(value) for op in groups_of(found) for value in op.in_place]
    assert places
    assert not any(places)


def test_what_saves_little_is_not_compiled(rows: tuple[Graph, Any]) -> None:
    graph = rows[0]
    plain = replace(graph, ops=[replace(op, in_place=[]) for op in graph.ops])
    fixed = min(graph.baseline_storages())
    assert add_inplace_kernels(plain, lambda body, over: True) == graph
    sizes = [10**9 if at == fixed else size for at, size in enumerate(graph.storages)]
    assert add_inplace_kernels(replace(plain, storages=sizes), lambda body, over: True) == (
        replace(graph, storages=sizes)
    )
    other = next(at for at in graph.values if at.kind == "tangent").storage
    sizes = [10**9 if at == other else size for at, size in enumerate(graph.storages)]
    large = replace(plain, storages=sizes)
    assert add_inplace_kernels(large, lambda body, over: True) == large


def test_what_no_output_can_take_the_place_of(rows: tuple[Graph, Any]) -> None:
    graph = rows[0]
    fixed = graph.baseline_storages()
    for op in groups_of(graph):
        for value in op.inputs:
            storage = graph.values[value].storage
            output = in_place_output(graph, op, value)
            assert (output is not None) == (value in op.in_place)
            if output is not None:
                made = graph.values[op.outputs[output]]
                assert storage not in fixed
                assert graph.storages[made.storage] == graph.storages[storage]


def test_no_two_values_of_a_storage_are_overwritten(rows: tuple[Graph, Any]) -> None:
    graph = rows[0]
    op = next(op for op in groups_of(graph) if op.in_place and len(op.inputs) > 1)
    one, other = op.in_place[0], next(value for value in op.inputs if value != op.in_place[0])
    values = [
        replace(at, storage=graph.values[one].storage) if at.id == other else at
        for at in graph.values
    ]
    assert in_place_output(replace(graph, values=values), op, one) is None


def test_a_doctored_form_in_place_is_refused(rows: tuple[Graph, Any]) -> None:
    graph = rows[0]
    check_graph_program(graph, "graph")
    op = next(op for op in groups_of(graph) if set(op.inputs) - set(op.in_place))
    wrong = next(value for value in op.inputs if value not in op.in_place)
    ops = [replace(at, in_place=[wrong]) if at.id == op.id else at for at in graph.ops]
    with pytest.raises(ArtifactError, match="overwrites what its outputs cannot take the place of"):
        check_graph_program(replace(graph, ops=ops), "graph")
    with pytest.raises(ArtifactError, match=f"cannot overwrite value {wrong}"):
        in_place_group_kernel(graph, op, wrong, CPU)


def test_a_form_in_place_is_measured(rows: tuple[Graph, Any]) -> None:
    graph = rows[0]
    op = next(op for op in groups_of(graph) if op.in_place)
    value = op.in_place[0]
    plain, written = measure_op(graph, op, {NO_VALUE, value}, CPU)
    assert written.in_place == op.inputs.index(value)
    size = graph.storages[graph.values[value].storage]
    assert (plain.net - written.net, plain.peak - written.peak) == (size, size)
    assert len(read_group_body(op).forms) == 1


def grads(module: nn.Module, x: Tensor, loss: Callable[[Any], Tensor]) -> list[Tensor | None]:
    module.zero_grad()
    output = module(x)
    loss(output).backward()
    return [*output, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.parametrize(
    "loss",
    [
        lambda made: made[0].square().sum() + made[1].sum(),
        lambda made: made[0].square().sum(),
        lambda made: made[1].cos().sum(),
    ],
    ids=["both", "first", "second"],
)
def test_a_package_in_place_gives_the_same_bits(
    loss: Callable[[Any], Tensor],
    packages: tuple[nn.Module, nn.Module, Tensor],
) -> None:
    """Where gradients do not arrive, too: what depends on these alone is absent."""
    plain, written, x = packages
    for one, other in zip(grads(plain, x, loss), grads(written, x, loss), strict=True):
        assert (one is None) == (other is None)
        assert one is None or (other is not None and torch.equal(one, other))


@pytest.fixture(scope="module")
def packages(
    rows: tuple[Graph, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[nn.Module, nn.Module, Tensor]:
    graph, built = rows
    folder: Path = tmp_path_factory.mktemp("packages")
    made = []
    for in_place in (False, True):
        package = generated(graph, folder / f"plan{in_place}", in_place=in_place)
        text = (folder / f"plan{in_place}" / "groups.py").read_text()
        assert ("_over_" in text) == in_place
        made.append(package.load(copy.deepcopy(built.model)))
    assert "_over_" in (folder / "planTrue" / "step.py").read_text()
    return made[0], made[1], built.samples[0][0][0]
