"""`plan(fused_kernels=...)`: groups of small ops as single kernels, end to end."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tightfit
from tests.tightfit.conftest import SETTINGS
from tightfit import FusedKernelOptions
from tightfit.api.kernel_choice import KernelChoice
from tightfit.schemas.graph.fused_groups import is_fused_group
from tightfit.schemas.graph.training_graph import Graph, read_graph
from tightfit.stages.fuse import compile_groups
from tightfit.stages.runtime.kernels import compile
from tightfit.stages.torch_utils.model_factory import BuiltModel, Sample
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.fused_kernels import _relative_errors, compare_with_eager
from tightfit.stages.validate.load import load_planned_module
from tightfit.stages.validate.measure import measure_memory
from tightfit.stages.validate.step_results import StepResults
from tightfit.stages.validate.training_step import StepRunner

pytestmark = pytest.mark.usefixtures("loose_bounds")


class Net(nn.Module):
    """Layers of a few small ops each, which all have the same groups."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            inner = layer(x)
            x = x + inner.sigmoid() * inner.tanh() * 0.5
        return x


def net() -> Net:
    torch.manual_seed(0)
    return Net().train()


FUSED = FusedKernelOptions()
ROWS = torch.linspace(-1, 1, 64 * 16).reshape(64, 16)


@pytest.fixture(scope="module", autouse=True)
def fused_alone() -> Iterator[None]:
    """No calls of ATen take the place of groups, and no plan of eager's kernels that of one of
    fused ones, whatever was measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_groups, "is_slower_than_aten", lambda body, device: False)
        patch.setattr(KernelChoice, "can_compare", False)
        yield


@pytest.fixture(scope="module")
def planned(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[nn.Module, tightfit.ChosenPlan, Path]:
    store = tmp_path_factory.mktemp("store")
    fitted, made = tightfit.plan(
        net(),
        (ROWS,),
        budget="min",
        fused_kernels=FUSED,
        store=store,
        progress=False,
        **SETTINGS,
    )
    return fitted, made, store


def step(module: nn.Module, x: Tensor = ROWS) -> list[Tensor]:
    module.zero_grad()
    output = module(x)
    output.square().sum().backward()
    return [output, *(p.grad for p in module.parameters() if p.grad is not None)]


def graph_of(store: Path) -> Graph:
    [path] = store.glob("calls/*/fused-*/graph.arrow")
    return read_graph(path)


def keep_all_module(store: Path) -> nn.Module:
    [folder] = store.rglob("keep_all/*/module")
    return load_planned_module(folder, net())


def test_a_plan_has_the_bits_of_the_keep_all_step(
    planned: tuple[nn.Module, tightfit.ChosenPlan, Path],
) -> None:
    fitted, made, store = planned
    assert made.peak is not None
    assert made.peak < made.keep_all.peak
    for x in (ROWS, ROWS.flip(0)):
        assert all(map(torch.equal, step(fitted, x), step(keep_all_module(store), x)))


def test_a_plan_is_close_to_eager_and_says_how_close(
    planned: tuple[nn.Module, tightfit.ChosenPlan, Path],
) -> None:
    fitted, made, _ = planned
    for mine, theirs in zip(step(fitted), step(net()), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert re.search(r"fused kernels are \S+ in outputs and \S+ in gradients from", made.message)


def test_the_peak_is_as_predicted(planned: tuple[nn.Module, tightfit.ChosenPlan, Path]) -> None:
    fitted, made, store = planned
    built = BuiltModel(net(), [((ROWS,), {})])
    sample: Sample = ((ROWS.clone(),), {})
    usage, _ = measure_memory(fitted, StepRunner.of(graph_of(store), built), sample, "cpu")
    assert usage.peak == made.peak


@pytest.mark.long
def test_convolutions_are_planned_with_channels_last(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 4, 3))
    images = torch.randn(2, 3, 12, 12)
    fitted, made = tightfit.plan(
        model.train(), (images,), budget="min", fused_kernels=FUSED, store=tmp_path, progress=False,
        **SETTINGS,
    )  # fmt: skip
    text = (Path(made.package) / "step.py").read_text()
    assert "channels_last" in text
    output = fitted(images)
    assert output.is_contiguous()
    torch.testing.assert_close(output, model(images))


def test_groups_of_equal_layers_are_one_function(
    planned: tuple[nn.Module, tightfit.ChosenPlan, Path],
) -> None:
    _, made, store = planned
    groups = [op.target for op in graph_of(store).ops if is_fused_group(op.target)]
    assert len(groups) > len(set(groups))
    text = (Path(made.package) / "groups.py").read_text()
    assert text.count("\ndef _group_") <= len(set(groups))
    assert "aten.tanh.default(" in text


@pytest.mark.parametrize(
    "way",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["copy", "pickle"],
)
def test_a_copy_runs_the_same_kernels(
    way: Any, planned: tuple[nn.Module, tightfit.ChosenPlan, Path]
) -> None:
    fitted, _, _ = planned
    assert all(map(torch.equal, step(way(fitted)), step(fitted)))


def test_the_backward_reads_less_of_the_forward_than_eager(
    planned: tuple[nn.Module, tightfit.ChosenPlan, Path],
) -> None:
    _, _, store = planned
    eager = trace(BuiltModel(net(), [((ROWS,), {})]), "net")
    assert kept(graph_of(store)) < kept(eager)


def kept(graph: Graph) -> int:
    """The bytes that the backward reads of what the forward makes."""
    storage = {value.id: value.storage for value in graph.values}
    fixed = graph.baseline_storages()
    made = {storage[v] for op in graph.ops if op.phase == "forward" for v in op.outputs if v >= 0}
    read = {storage[v] for op in graph.ops if op.phase == "backward" for v in op.inputs}
    return sum(graph.storages[at] for at in (made & read) - fixed)


def test_other_numbers_than_eager_are_refused(
    planned: tuple[nn.Module, tightfit.ChosenPlan, Path],
) -> None:
    _, _, store = planned
    wrong = net()
    with torch.no_grad():
        wrong.layers[2].weight.mul_(1.001)  # type: ignore[operator]
    said, _ = compare_with_eager(graph_of(store), BuiltModel(net(), [((ROWS,), {})]), wrong)
    assert "4 times eager's are taken" in said


class Casting(nn.Module):
    """A step that float64 parameters do not run: it casts to float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last((self.first(x).double().tanh() * 2).float())
        return made


@pytest.mark.long
def test_a_model_that_casts_is_compared_with_eager_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    _, made = tightfit.plan(
        Casting(), (ROWS,), budget="100%", fused_kernels=FUSED, store=tmp_path, progress=False,
        **SETTINGS,
    )  # fmt: skip
    assert any(is_fused_group(op.target) for op in graph_of(tmp_path).ops)
    assert re.search(r"; fused kernels differ from eager by \S+ in outputs", made.message)


class Heads(nn.Module):
    """Two outputs, which meet in one backward, and parameters that only one of them needs."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.other = (nn.Linear(16, 16) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.body(x).tanh() * 2 + x
        one = self.one((inner.sigmoid() * inner).cos()).tanh() * 3
        other = self.other((inner * self.scale).sin()) * one.detach().sigmoid() + inner
        return one.square().sum(), other * 2 + one


@pytest.mark.long
@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)])
def test_gradients_that_do_not_arrive_are_absent_as_in_eager(
    wanted: tuple[int, ...], heads: tuple[nn.Module, nn.Module]
) -> None:
    fitted, model = heads
    eager = copy.deepcopy(model)
    for module in (fitted, eager):
        module.zero_grad()
        outputs = module(ROWS)
        sum((outputs[number] * 0.5).sum() for number in wanted).backward()
    mine, theirs = dict(fitted.named_parameters()), dict(eager.named_parameters())
    for name, parameter in theirs.items():
        gradient = mine[name].grad
        assert (gradient is None) == (parameter.grad is None), name
        if gradient is not None:
            torch.testing.assert_close(gradient, parameter.grad)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model, store = Heads(), tmp_path_factory.mktemp("heads")
    fitted, _ = tightfit.plan(
        model,
        (ROWS,),
        budget="100%",
        fused_kernels=FUSED,
        store=store,
        progress=False,
        **SETTINGS,
    )
    return fitted, model


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("mine", "theirs", "error"),
    [
        ([1.0, NAN, INF], [1.0, NAN, INF], 0.0),
        ([1.0, NAN], [1.0, 2.0], INF),
        ([1.0, 2.0], [1.0, NAN], INF),
        ([1.0, 0.0], [1.0, NAN], INF),
        ([INF, 1.0], [-INF, 1.0], INF),
        ([3.0, 4.0], [3.0, 0.0], 4 / 3),
    ],
)
def test_numbers_that_are_not_finite_are_alike_or_wrong(
    mine: list[float], theirs: list[float], error: float
) -> None:
    trails = [StepResults({"a": torch.tensor(at)}, {}, {}) for at in (mine, theirs)]
    assert _relative_errors(*trails).outputs == pytest.approx(error)


def test_what_are_no_kernels(tmp_path: Path) -> None:
    with pytest.raises(tightfit.ConfigError, match="fused_kernels is 'fast', expected"):
        tightfit.plan(net(), (ROWS,), fused_kernels="fast", store=tmp_path)  # type: ignore[arg-type]


@pytest.mark.long
def test_an_optimizer_may_step_in_the_backward(tmp_path: Path) -> None:
    """The parameters are those of the same kernels in a keep-all step with the optimizer after
    them."""
    model = net()
    own = torch.optim.AdamW(model.parameters(), 0.1)
    fitted, made = tightfit.plan(
        model,
        (ROWS,),
        budget="100%",
        fused_kernels=FUSED,
        optimizer=own,
        store=tmp_path,
        progress=False,
        **SETTINGS,
    )
    assert made.optimizer is not None
    alone = keep_all_module(tmp_path)
    other = torch.optim.AdamW(alone.parameters(), 0.1)
    for module, steps in ((fitted, made.optimizer), (alone, other)):
        for _ in range(3):
            module(ROWS).square().sum().backward()
            steps.step()
            steps.zero_grad()
    made.optimizer.close()  # type: ignore[attr-defined]
    assert all(map(torch.equal, model.parameters(), alone.parameters()))
    assert "fused kernels are" in made.message


def test_without_a_compiler_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(device: torch.device) -> None:
        raise RuntimeError("groups need a compiler for cpu and there is none: use kernels: eager")

    monkeypatch.setattr(compile, "check_compiler", absent)
    with pytest.raises(tightfit.ModelError, match="there is none: use kernels: eager"):
        tightfit.plan(net(), (ROWS,), fused_kernels=FUSED, store=tmp_path, progress=False)
