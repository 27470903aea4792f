"""Policies of selective checkpointing: bits of the model without, peaks as predicted, refusals."""

from __future__ import annotations

import copy
import pickle
import random
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import tightfit
from tests.tightfit.checkpoint_models import (
    BlockModel,
    equal_bits,
    policy_of,
    run_step,
    sample,
    squared_mean,
    step_bits,
    step_peak,
    with_policy,
)
from tightfit.stages.torch_utils.selective_checkpoint import inner_block

TANH = "aten.tanh.default"


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("budget", ["min", "40%", "100%"])
def test_a_policy_keeps_bits_and_its_peak(budget: str, dropout: float) -> None:
    model = BlockModel(dropout)
    policy = policy_of(model, budget)
    planned = with_policy(model, policy)
    assert equal_bits(step_bits(planned, sample()), step_bits(model, sample()))
    measured = step_peak(planned, sample())
    assert measured <= policy.peak <= 1.02 * measured
    if all(block.saved is not None for block in policy.blocks):
        assert measured == policy.peak
    assert policy.bound <= policy.seconds
    assert policy.total > policy.peak


def test_a_smaller_budget_recomputes_more() -> None:
    model = BlockModel()
    least, most = policy_of(model, "min"), policy_of(model, "100%")
    assert least.peak < most.peak
    assert all(block.saved is None for block in most.blocks)
    assert "layers.0: is not checkpointed" in most.summary()
    assert len(least.summary().splitlines()) == 6
    assert step_peak(model, sample()) == step_peak(with_policy(model, most), sample())


class CountingMode(TorchDispatchMode):
    """Counts operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def test_saved_operators_are_not_run_again() -> None:
    model = BlockModel()
    policy = policy_of(model, "min")
    blocks = [replace(block, saved=(block.operators.index(TANH),)) for block in policy.blocks]
    planned = with_policy(model, replace(policy, blocks=tuple(blocks)))
    with CountingMode() as mode:
        run_step(planned, sample())
    assert mode.counts[TANH] == len(blocks)
    assert mode.counts["aten.native_layer_norm.default"] == 2 * len(blocks)
    assert equal_bits(step_bits(planned, sample()), step_bits(model, sample()))


def test_random_operators_are_saved_from_some_one_on() -> None:
    """One that is skipped before one that is recomputed would shift what the latter draws."""
    policy = policy_of(BlockModel(0.2), "40%")
    for block in policy.blocks:
        assert block.random
        written = [name for name in block.operators if name.endswith("_.float")]
        assert written, "dropout on the CPU draws in place"
        saved = {block.operators[number] for number in block.saved or ()}
        assert not saved & {*written, "aten.t.default", "aten.view.default"}


def test_other_shapes_keep_their_bits() -> None:
    model = BlockModel(0.2)
    planned = with_policy(model, policy_of(model, "40%"))
    for rows in (3, 300):
        assert equal_bits(step_bits(planned, sample(rows)), step_bits(model, sample(rows)))


class StagedModel(nn.Module):
    """Convolutions in a list, which recompute nothing, and blocks in lists within a list."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter = nn.ModuleList([nn.Conv1d(16, 32, 1), nn.Conv1d(32, 32, 1)])
        self.stages = nn.ModuleList([BlockModel().layers, BlockModel().layers])

    def forward(self, x: Tensor) -> Tensor:
        x = x.T[None]
        for layer in self.enter:
            x = layer(x)
        x = x[0].T
        for stage in self.stages:
            for block in cast(nn.ModuleList, stage):
                x = block(x)
        return x


def test_lists_of_lists_and_blocks_that_recompute_nothing() -> None:
    model = StagedModel()
    lists = [f"stages.{stage}.{block}" for stage in range(2) for block in range(4)]
    for budget in ("min", "50%"):
        policy = policy_of(model, budget)
        assert [block.path for block in policy.blocks] == ["enter.0", "enter.1", *lists]
        planned = with_policy(model, policy)
        assert equal_bits(step_bits(planned, sample()), step_bits(model, sample()))
        measured = step_peak(planned, sample())
        assert measured <= policy.peak <= 1.02 * measured


def test_hooks_run_as_without_a_policy() -> None:
    seen: list[float] = []

    def note(module: Any, args: Any, output: Tensor) -> Tensor:
        seen.append(output.sum().item())
        return 2 * output

    model = BlockModel()
    model.layers[1].register_forward_hook(note)
    planned = with_policy(model, policy_of(model, "40%"))
    seen.clear()
    want = step_bits(model, sample())
    assert equal_bits(step_bits(planned, sample()), want)
    assert set(seen) == {seen[0]}


def test_planning_leaves_no_trace() -> None:
    model = BlockModel(0.2)
    model.enter.register_buffer("count", torch.zeros(1))
    run_step(model, sample())
    gradients = [parameter.grad for parameter in model.parameters()]
    contents = [gradient.clone() for gradient in gradients if gradient is not None]
    state, modules = torch.get_rng_state(), list(model.modules())
    policy_of(model, "min")
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert equal_bits([g for g in gradients if g is not None], contents)
    assert torch.equal(torch.get_rng_state(), state)
    assert list(model.modules()) == modules


def test_names_copies_and_evaluation_are_those_of_the_model() -> None:
    model = BlockModel(0.2)
    policy = pickle.loads(pickle.dumps(policy_of(model, "min")))
    planned = with_policy(model, policy)
    assert list(planned.state_dict()) == list(model.state_dict())
    other = copy.deepcopy(planned)
    assert equal_bits(step_bits(other, sample()), step_bits(model, sample()))
    planned.eval(), model.eval()
    with torch.no_grad():
        assert torch.equal(planned(sample()), model(sample()))


def test_a_model_that_is_checkpointed_takes_a_policy() -> None:
    model = BlockModel()
    planned = with_policy(model, policy_of(model, "min"))
    policy = policy_of(planned, "60%")
    policy.apply(planned)
    assert equal_bits(step_bits(planned, sample()), step_bits(model, sample()))
    assert step_peak(planned, sample()) <= policy.peak


def test_other_operators_are_refused() -> None:
    model = BlockModel(0.2)
    planned = with_policy(model, policy_of(model, "min"))
    planned.eval()
    with pytest.raises(tightfit.PlanMismatch, match=r"operator 4 of block 'layers\.0' is"):
        run_step(planned, sample())
    other = BlockModel(0.2)
    layer: Any = other.layers[2]
    layer.forward = layer.norm.forward
    policy_of(model, "min").apply(other)
    with pytest.raises(tightfit.PlanMismatch, match=r"block 'layers\.2' ran 1 operators, and"):
        run_step(other, sample())


def test_another_model_is_refused() -> None:
    policy = policy_of(BlockModel(), "min")
    with pytest.raises(tightfit.ConfigError, match=r"no block 'layers\.2'"):
        policy.apply(BlockModel(blocks=2))
    with pytest.raises(tightfit.ConfigError, match=r"has a module .layers\.\d. beside the blocks"):
        policy.apply(BlockModel(blocks=7))
    other = BlockModel()
    other.layers[1] = nn.Linear(32, 32)
    with pytest.raises(tightfit.ConfigError, match="another class or other parameters"):
        policy.apply(other)


class NormalizedBlock(nn.Module):
    """A block that updates statistics in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).relu()


def test_blocks_that_cannot_be_checkpointed_are_refused() -> None:
    model = nn.Sequential(NormalizedBlock(), NormalizedBlock())
    before = [buffer.clone() for buffer in model.buffers()]
    with pytest.raises(tightfit.ModelError, match=r"changes its buffer '0\.norm\.running_mean'"):
        tightfit.checkpoint_policy(model, (sample(),), budget="min")
    assert equal_bits(list(model.buffers()), before)
    twice = BlockModel()
    twice.leave.register_forward_pre_hook(lambda module, args: (twice.layers[0](*args),))
    with pytest.raises(tightfit.ModelError, match=r"'layers\.0' runs 2 times in a step"):
        policy_of(twice, "min")


def test_what_is_asked_is_checked() -> None:
    model = BlockModel()
    with pytest.raises(tightfit.ConfigError, match="is below what the step takes with nothing"):
        policy_of(model, 1000)
    for blocks, words in (
        (["layers.9"], "is no submodule"),
        (["layers", "layers.1"], "lies in another block"),
        ([], "is empty"),
    ):
        with pytest.raises(tightfit.ConfigError, match=words):
            tightfit.checkpoint_policy(model, (sample(),), blocks=blocks)
    with pytest.raises(tightfit.ModelError, match="no ModuleList, ModuleDict or Sequential"):
        tightfit.checkpoint_policy(nn.Linear(16, 3), (sample(),))
    with pytest.raises(tightfit.ModelError, match="the loss is no tensor of one element"):
        tightfit.checkpoint_policy(model, (sample(),), loss=lambda output: output)
    assert isinstance(model.layers[0], type(model.layers[1]))


def test_named_blocks_without_a_loss() -> None:
    model = BlockModel()
    policy = tightfit.checkpoint_policy(model, (sample(),), budget="min", blocks=["layers.1"])
    assert [block.path for block in policy.blocks] == ["layers.1"]
    planned = with_policy(model, policy)
    assert equal_bits(step_bits(planned, sample()), step_bits(model, sample()))


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_compiled_model_with_a_policy(dropout: float) -> None:
    model = BlockModel(dropout)
    planned = with_policy(model, policy_of(model, "40%"))
    torch.compiler.reset()
    compiled = torch.compile(planned, backend="aot_eager")
    if dropout:
        with pytest.raises(Exception, match="draws random numbers, and a compiled recomputation"):
            compiled(sample())
    else:
        squared_mean(compiled(sample())).backward()
        found = [parameter.grad for parameter in planned.parameters()]
        want = step_bits(model, sample())[1:]
        assert all(g is not None and torch.equal(g, w) for g, w in zip(found, want, strict=True))


class BiasedBlock(nn.Module):
    """A block that adds a tensor, given by keyword or in a list, or draws from the host."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, bias: Any = None) -> Tensor:
        bias = bias() if callable(bias) else bias
        return x + self.linear(torch.tanh(x + (bias[0] if isinstance(bias, list) else bias)))


class BiasedModel(nn.Module):
    """Calls blocks with a bias, which it may change in place after each."""

    def __init__(self, bias: Any, step: int = 1, by_keyword: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList([BiasedBlock() for _ in range(3)])
        self.bias, self.step, self.by_keyword = bias, step, by_keyword

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias
        if not callable(bias):
            bias = [torch.zeros(16)] if isinstance(bias, list) else torch.zeros(16)
        for layer in self.layers:
            x = layer(x, bias=bias) if self.by_keyword else layer(x, bias)
            if self.step:
                (bias[0] if isinstance(bias, list) else bias).add_(self.step)
        return x


@pytest.mark.parametrize("bias", [None, []])
@pytest.mark.parametrize("by_keyword", [True, False])
def test_an_argument_that_is_changed_in_place_is_refused(bias: Any, by_keyword: bool) -> None:
    name = "bias" if by_keyword else 1
    words = f"argument {name} of block 'layers.0' after its forward, .*x = x [+] y"
    with pytest.raises(tightfit.ModelError, match=words):
        policy_of(BiasedModel(bias, by_keyword=by_keyword), "min")


@pytest.mark.parametrize("bias", [None, []])
def test_an_argument_that_is_changed_after_planning_is_refused(bias: Any) -> None:
    model = BiasedModel(bias, step=0)
    planned = with_policy(model, policy_of(model, "min"))
    assert equal_bits(step_bits(planned, sample()), step_bits(model, sample()))
    changing: Any = planned
    changing.step = 1
    with pytest.raises(tightfit.PlanMismatch, match=r"argument bias of block 'layers\.\d' was"):
        run_step(planned, sample())


def test_a_block_that_begins_in_place_is_refused() -> None:
    blocks = [nn.Sequential(nn.LeakyReLU(0.1, inplace=True), nn.Linear(16, 16)) for _ in range(2)]
    model = nn.Sequential(nn.Linear(16, 16), *blocks)
    run_step(model, sample())
    with pytest.raises(tightfit.ModelError, match=r"0 of block '1' within .* 0 of block '2'"):
        tightfit.checkpoint_policy(model, (sample(),), budget="min", blocks=["1", "2"])


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_a_block_that_draws_from_the_host_is_refused(draw: Any) -> None:
    states = random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index]
    with pytest.raises(tightfit.ModelError, match=r"block 'layers\.0' draws from .*torch\.rand"):
        policy_of(BiasedModel(draw, step=0), "min")
    assert states == (random.getstate(), np.random.get_state()[1].tobytes())  # type: ignore[index]


def test_the_gradient_of_a_sample_is_preserved() -> None:
    x = sample().requires_grad_()
    gradient = x.grad = torch.zeros_like(x)
    first = tightfit.checkpoint_policy(BlockModel(), (x,), budget="min", loss=squared_mean)
    assert x.grad is gradient and not gradient.any()
    x.grad = None
    second = tightfit.checkpoint_policy(BlockModel(), (x,), budget="min", loss=squared_mean)
    assert x.grad is None
    assert first.peak == second.peak


def test_threads_count_their_own_operators() -> None:
    """When one forward ends, another one of the same block is in its middle."""
    model, x = BlockModel(), torch.ones(4, 32)
    planned = with_policy(model, policy_of(model, "min"))
    layer = planned.get_submodule("layers.1")
    paused, resumed = threading.Event(), threading.Event()
    outputs: list[Tensor] = []
    thread = threading.Thread(target=lambda: outputs.append(layer(x)))

    def begin_other(module: Any, args: Any, output: Tensor) -> None:
        if thread.ident is None:
            thread.start()
            assert paused.wait(60)

    def pause(module: Any, args: Any) -> None:
        if threading.current_thread() is thread:
            paused.set()
            assert resumed.wait(60)

    inner_block(layer).register_forward_hook(begin_other)
    inner_block(layer).get_submodule("down").register_forward_pre_hook(pause)
    try:
        assert equal_bits(step_bits(planned, sample()), step_bits(model, sample()))
    finally:
        resumed.set()
        thread.join()
    assert torch.equal(outputs[0], model.layers[1](x))


def test_messages_name_what_to_type() -> None:
    model, x = BlockModel(), sample()
    calls: list[tuple[Any, Any, str]] = [
        ((x,), "layers.0", r"is a str, .*blocks=\['layers.0'\]"),
        ((x,), [model], "names the model itself"),
        (x, None, r"args: is a Tensor, expected a tuple of .*\(x,\)"),
    ]
    for args, blocks, words in calls:
        with pytest.raises(tightfit.ConfigError, match=words):
            tightfit.checkpoint_policy(model, args, blocks=blocks)
    for part in (model.enter, model.layers[0]):
        part.requires_grad_(False)
    words = r"block 'layers\.0' has no backward .*blocks=\['layers\.1', 'layers\.2', 'layers\.3'\]"
    with pytest.raises(tightfit.ModelError, match=words):
        policy_of(model, "min")


@pytest.mark.skipif(
    not hasattr(CheckpointPolicy, "MUST_CPU_OFFLOAD"), reason="this PyTorch has no name for it"
)
def test_pytorch_recomputes_what_a_policy_would_offload() -> None:
    runs = 0

    @torch.library.custom_op("tightfit_tests::count_run", mutates_args=())
    def count_run(x: torch.Tensor) -> torch.Tensor:
        nonlocal runs
        runs += 1
        return x * 2

    count_run.register_fake(torch.empty_like)
    count_run.register_autograd(lambda context, gradient: gradient * 2)

    def offload(*_: Any, **__: Any) -> CheckpointPolicy:
        return CheckpointPolicy["MUST_CPU_OFFLOAD"]

    contexts = partial(create_selective_checkpoint_contexts, offload)
    x = torch.ones(3, requires_grad=True)
    y = checkpoint(lambda x: count_run(x).sin(), x, use_reentrant=False, context_fn=contexts)
    y.sum().backward()
    assert runs == 2
