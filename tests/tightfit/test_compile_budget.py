"""Budgets of `torch.compile` in bytes: peaks that are measured, bits of gradients, and messages."""

from __future__ import annotations

import contextlib
import functools
import gc
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._functorch import partitioners
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.nn.functional import cross_entropy

import tightfit
from tests.tightfit.compile_models import (
    CLASSES,
    ROWS,
    WIDTH,
    Auxiliary,
    Centered,
    Convolutions,
    Layers,
    MaskedAttention,
    MixedTypes,
    Noise,
)
from tightfit.stages.compile.budget_planner import BudgetPlanner, PartitionedGraph
from tightfit.stages.compile.partitioner import BudgetPartitioner, _planner
from tightfit.stages.torch_utils.memory_meter import memory_session

EAGER = "aot_eager_decomp_partition"

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++"))), reason="inductor needs a C++ compiler"
)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    tightfit.set_compile_budget(None)
    torch._dynamo.reset()


def build(dropout: float = 0.0, broken: bool = False) -> Layers:
    torch.manual_seed(0)
    return Layers(dropout, broken).train()


def run_step(module: Callable[..., Any], rows: int = ROWS) -> Tensor:
    """The loss of a step that keeps the logits until it ends."""
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    x = torch.randn(rows, WIDTH, generator=generator)
    logits = module(x)
    loss = cross_entropy(logits, torch.arange(rows) % CLASSES)
    loss.backward()
    return loss.detach()


def gradients(model: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    return found


def measured_peak(model: nn.Module, compiled: Callable[..., Any]) -> int:
    """Bytes of a step that was compiled before, parameters included."""
    run_step(compiled)
    model.zero_grad()
    gc.collect()
    with memory_session("cpu") as session, session.section("step"):
        run_step(compiled)
    model.zero_grad()
    return session.section_usage("step").peak + sum(each.nbytes for each in model.parameters())


def compile_within(
    budget: int, backend: str = EAGER, model: nn.Module | None = None, **options: Any
) -> tuple[nn.Module, Any, BudgetPlanner, list[Tensor]]:
    torch._dynamo.reset()
    model = model or build()
    compiled = torch.compile(model, backend=backend)
    with tightfit.compile_budget(budget, **options) as planner:
        run_step(compiled)
    return model, compiled, planner, gradients(model)


def smallest(model: nn.Module) -> int:
    """The least peak that is found, as the warning tells it."""
    with pytest.warns(UserWarning, match="compile_budget: the smallest partition found"):
        *_, planner, _ = compile_within(1, model=model)
    return max(graph.peak for graph in planner.graphs.values())


@functools.cache
def least_peak(dropout: float = 0.0) -> int:
    """The least peak of the layers."""
    return smallest(build(dropout))


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_measured_peaks_stay_within_the_budget_with_the_bits_of_plain_compile(
    dropout: float,
) -> None:
    model, compiled, planner, expected = compile_within(1 << 40, model=build(dropout))
    most, least = planner.graphs["0/0"].peak, least_peak(dropout)
    assert planner.graphs["0/0"].slowdown == 1
    assert least < 0.75 * most
    peaks, slowdowns = [], []
    for share in (0.0, 0.3, 0.6, 0.9):
        budget = int(least + share * (most - least))
        model, compiled, planner, found = compile_within(budget, model=build(dropout))
        graph = planner.graphs["0/0"]
        assert graph.fits and graph.peak <= budget
        peak = measured_peak(model, compiled)
        assert 0.97 * graph.peak <= peak <= graph.peak
        assert all(map(torch.equal, found, expected))
        peaks.append(peak)
        slowdowns.append(graph.slowdown)
    assert peaks == sorted(peaks)
    assert slowdowns == sorted(slowdowns, reverse=True)


def test_peaks_count_what_convolutions_take_inside() -> None:
    torch.manual_seed(0)
    model, compiled, planner, _ = compile_within(1 << 40, model=Convolutions())
    assert measured_peak(model, compiled) <= 1.02 * planner.graphs["0/0"].peak
    least = smallest(Convolutions())
    assert least < planner.graphs["0/0"].peak
    model, compiled, _, _ = compile_within(least, model=Convolutions())
    assert 0.9 * least <= measured_peak(model, compiled) <= 1.02 * least


def test_peaks_count_copies_of_operands_of_other_types() -> None:
    torch.manual_seed(0)
    least = smallest(MixedTypes())
    torch.manual_seed(0)
    model, compiled, planner, _ = compile_within(least, model=MixedTypes())
    peak, predicted = measured_peak(model, compiled), planner.graphs["0/0"].peak
    assert 0.97 * predicted <= peak <= predicted


def test_a_graph_that_fits_saves_what_the_compiler_does() -> None:
    plain = build()
    run_step(torch.compile(plain, backend=EAGER))
    plain.zero_grad()
    usual = measured_peak(plain, torch.compile(plain, backend=EAGER))
    model, compiled, _, _ = compile_within(1 << 40)
    assert measured_peak(model, compiled) == usual


def test_the_bytes_of_the_warning_are_enough() -> None:
    least = least_peak()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, _, planner, _ = compile_within(least)
        assert planner.graphs["0/0"].peak == least
        with pytest.raises(BackendCompilerFailed, match="compile_budget: the smallest partition"):
            compile_within(least - 1)


def test_a_reserve_is_left_to_what_runs_between_forward_and_backward() -> None:
    _, _, without, _ = compile_within(1 << 40, reserve=0)
    _, _, reserved, _ = compile_within(1 << 40, reserve="50MB")
    assert reserved.graphs["0/0"].peak >= 50_000_000 > without.graphs["0/0"].peak


def test_graphs_of_a_step_share_the_budget() -> None:
    *_, expected = compile_within(1 << 40, model=build(broken=True))
    model, compiled, plain, _ = compile_within(1 << 40, model=build(broken=True))
    assert list(plain.graphs) == ["0/0", "1/0"]
    most = max(graph.peak for graph in plain.graphs.values())
    assert abs(measured_peak(model, compiled) / most - 1) < 0.03
    budget = int(0.9 * most)
    model, compiled, _, found = compile_within(budget, model=build(broken=True))
    assert measured_peak(model, compiled) <= budget
    assert all(map(torch.equal, found, expected))


def test_an_earlier_graph_leaves_too_little() -> None:
    _, _, plain, _ = compile_within(1 << 40, model=build(broken=True))
    first = plain.graphs["0/0"].peak
    with pytest.warns(UserWarning, match=r"graph 1/0 takes .* of them inputs, parameters and what"):
        _, _, planner, _ = compile_within(first // 2, model=build(broken=True))
    assert not planner.graphs["1/0"].fits


def test_a_budget_that_is_set_once_holds_until_it_is_ended() -> None:
    planner = tightfit.set_compile_budget(1 << 40)
    assert planner is not None
    run_step(torch.compile(build(), backend=EAGER))
    assert list(planner.graphs) == ["0/0"]
    other = tightfit.set_compile_budget("1TB")
    assert tightfit.set_compile_budget(None) is None
    assert other is not None and inductor_config.custom_partitioner_fn is None
    torch._dynamo.reset()
    run_step(torch.compile(build(), backend=EAGER))
    assert list(planner.graphs) == ["0/0"] and not other.graphs


def test_each_thread_sets_its_own_budget() -> None:
    mine = tightfit.set_compile_budget(1 << 40)
    found: list[Any] = []

    def set_and_end() -> None:
        found.append(_planner.get())
        found.append(tightfit.set_compile_budget("1GB"))
        found.append(_planner.get())
        tightfit.set_compile_budget(None)
        found.append(_planner.get())

    thread = threading.Thread(target=set_and_end)
    thread.start()
    thread.join()
    before, theirs, within, after = found
    assert theirs is within and before is None and after is None
    assert _planner.get() is mine
    tightfit.set_compile_budget(None)
    assert _planner.get() is None


def test_no_budget_is_set_within_a_context() -> None:
    mine = tightfit.set_compile_budget("8GB")
    for budget in (None, "1GB"):
        with (
            tightfit.compile_budget("5MB") as planner,
            pytest.raises(tightfit.ConfigError, match="a compile_budget context is open"),
        ):
            assert _planner.get() is planner
            tightfit.set_compile_budget(budget)
        assert _planner.get() is mine
    tightfit.set_compile_budget(None)
    assert _planner.get() is None


def steps_of(make: Callable[[], nn.Module], backend: str | None, budget: int = 0) -> list[Tensor]:
    """Gradients and buffers after two steps, compiled or not, within a budget or none."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make()
    call = torch.compile(model, backend=backend) if backend else model
    with tightfit.compile_budget(budget) if budget else contextlib.nullcontext():
        run_step(call)
    run_step(call)
    return [*gradients(model), *model.buffers()]


@pytest.mark.filterwarnings("ignore:compile_budget")
@pytest.mark.parametrize("backend", [EAGER, pytest.param("inductor", marks=needs_compiler)])
def test_nothing_is_recomputed_from_a_buffer_that_the_forward_updates(backend: str) -> None:
    def make() -> nn.Module:
        return nn.Sequential(*(Centered() for _ in range(3)), nn.Linear(WIDTH, CLASSES))

    for found, expected in zip(steps_of(make, backend, 1), steps_of(make, None), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:compile_budget")
def test_custom_operators_run_once() -> None:
    def make() -> nn.Module:
        layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), Noise()) for _ in range(3))
        return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))

    for found, expected in zip(steps_of(make, EAGER, 1), steps_of(make, None), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_scalar_beside_other_outputs_leaves_bytes_to_their_loss() -> None:
    peaks = []
    for scalar in (True, False):
        torch._dynamo.reset()
        compiled = torch.compile(Auxiliary(scalar), backend=EAGER)
        with tightfit.compile_budget(1 << 40) as planner:
            compiled(torch.randn(ROWS, WIDTH))
        peaks.append(planner.graphs["0/0"].peak)
    assert peaks[0] == pytest.approx(peaks[1], rel=0.01)


def test_sizes_may_be_symbols() -> None:
    least = least_peak()
    torch._dynamo.reset()
    model = build()
    compiled = torch.compile(model, backend=EAGER, dynamic=True)
    with tightfit.compile_budget(int(1.2 * least)) as planner:
        run_step(compiled)
    assert planner.graphs["0/0"].fits
    assert measured_peak(model, compiled) <= 1.2 * least
    run_step(compiled, rows=ROWS // 2)
    assert list(planner.graphs) == ["0/0"]


def test_keys_hold_the_ask_and_the_plan() -> None:
    one, other = BudgetPlanner(1000), BudgetPlanner(1001)
    assert BudgetPartitioner(one).uuid() == BudgetPartitioner(BudgetPlanner(1000)).uuid()
    assert BudgetPartitioner(one).uuid() != BudgetPartitioner(other).uuid()
    *_, planner, _ = compile_within(1 << 40)
    assert BudgetPartitioner(planner).uuid() != BudgetPlanner(1 << 40).digest()


@pytest.mark.parametrize("budget", ["50%", "8 parsecs", 0, "min"])
def test_a_budget_is_a_size(budget: Any) -> None:
    with pytest.raises(tightfit.ConfigError, match="budget: "), tightfit.compile_budget(budget):
        pass


def test_another_partitioner_is_not_replaced() -> None:
    class Theirs(CustomPartitionerFn):
        def __call__(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("nothing is compiled")

        def uuid(self) -> str:
            return ""

    with (
        inductor_config.patch(custom_partitioner_fn=Theirs()),
        pytest.raises(tightfit.ConfigError, match="custom_partitioner_fn is set to Theirs"),
        tightfit.compile_budget("1GB"),
    ):
        pass


def test_a_release_without_the_mechanism_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(partitioners, "reordering_to_mimic_autograd_engine")
    with (
        pytest.raises(tightfit.ConfigError, match=r"has no torch\._functorch\.partitioners\.reord"),
        tightfit.compile_budget("1GB"),
    ):
        pass


@needs_compiler
@pytest.mark.parametrize("build_model", [partial(build, 0.2), MaskedAttention])
def test_inductor_stays_within_the_budget(build_model: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    *_, plain, expected = compile_within(1 << 40, "inductor", build_model())
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="smallest partition found"):
        model, compiled, planner, found = compile_within(1, "inductor", build_model())
    least = planner.graphs["0/0"].peak
    assert least < 0.8 * plain.graphs["0/0"].peak
    assert measured_peak(model, compiled) <= 1.02 * least
    assert all(map(torch.equal, found, expected))


def test_what_kernels_take_beyond_the_budget_is_told() -> None:
    planner = BudgetPlanner(1000)
    planner.graphs["0/0"] = PartitionedGraph("0/0", 900, 0, 1.0, True, 1, 0.0)
    with pytest.warns(UserWarning, match=r"take 1,250 bytes.*lower the budget by 250 bytes"):
        planner.note_excess(250)
    assert planner.graphs["0/0"].peak == 1250 and not planner.graphs["0/0"].fits
