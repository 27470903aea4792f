"""What a plan cannot have is refused before the search: with its cause, its place and a remedy."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal

import tightfit
from tests.tightfit.conftest import SETTINGS
from tightfit import ConfigError, ModelError, PlanMismatch
from tightfit.__main__ import main

PLACE = r" at .*test_named_refusals.py:\d+: "


class Model(nn.Module):
    """A layer, and something that is done with what it gives."""

    def __init__(self, does: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.does = nn.Linear(8, 8), does
        self.config = types.SimpleNamespace(layerdrop=0.1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.does(self.layer(x))


def branches(y: torch.Tensor) -> torch.Tensor:
    return y * 2 if y.mean() > 0 else y


def asserts(y: torch.Tensor) -> torch.Tensor:
    assert not torch.isnan(y).any()
    return y


def takes_a_number(y: torch.Tensor) -> torch.Tensor:
    return y / y.abs().max().item()


def takes_lengths(y: torch.Tensor) -> torch.Tensor:
    lengths = y.argmax(-1)
    return torch.stack([row[: int(length)].sum() for row, length in zip(y, lengths, strict=True)])


def makes_a_list(y: torch.Tensor) -> torch.Tensor:
    return y[y.argmax(-1).tolist()]


class Cube(torch.autograd.Function):
    """A function of NumPy with a derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(x.cpu().numpy() ** 3)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * gradients[0]


def cubes_an_array(y: torch.Tensor) -> Any:
    return Cube.apply(y)


def makes_an_array(y: torch.Tensor) -> torch.Tensor:
    return y + float(np.mean(y.detach().numpy()))


def draws_from_a_distribution(y: torch.Tensor) -> torch.Tensor:
    # torch.compile turns the checks off for all that comes after it in a process.
    return Normal(y, y.exp(), validate_args=True).rsample()


def nests(y: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([y, y[:2]], layout=torch.jagged).values()


CAUSES = [
    (branches, r"control flow \(if, while.* depends on the data of a tensor.*torch.where\(\)"),
    (asserts, "an assert depends on the data of a tensor: leave it out"),
    (takes_a_number, r"a Python number \(item.* depends on the data of a tensor: compute with"),
    (takes_lengths, r"a Python number \(item.* depends on the data of a tensor: compute with"),
    (makes_a_list, r"a Python list \(tolist.* index by the tensor itself"),
    (makes_an_array, r"a NumPy array .* compute with PyTorch's functions"),
    (cubes_an_array, r"a NumPy array .* an operator of your own \(torch\.library\.custom_op\)"),
    (draws_from_a_distribution, "torch.distributions checks.* validate_args=False"),
    (nests, "makes a nested tensor .* padded tensors and a mask"),
]


def plan(model: nn.Module, store: Path, x: Any = None, **options: Any) -> nn.Module:
    settings = {**SETTINGS, "store": store, "strategy": "keep_all", "progress": False, **options}
    return tightfit.plan(model, (torch.ones(4, 8) if x is None else x,), **settings)[0]


@pytest.mark.parametrize(("does", "said"), CAUSES)
def test_dependence_on_data_is_told_by_what_is_done_with_it(
    does: Callable[[torch.Tensor], Any], said: str, store: Path
) -> None:
    with pytest.raises(ModelError, match=f"{PLACE}.*{said}"):
        plan(Model(does), store)


class Dropping(Model):
    """As encoders of transformers: layers that are left out at random."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.rand(()) < self.config.layerdrop:
            return x
        return self.layer(x)


def test_layers_that_are_left_out_at_random_are_told(store: Path) -> None:
    with pytest.raises(ModelError, match=f"{PLACE}it leaves out layers at random .* rate to 0.0"):
        plan(Dropping(branches), store)


@pytest.mark.parametrize("padding", [None, 0])
def test_sparse_gradients_are_told_whatever_the_padding(padding: int | None, store: Path) -> None:
    embedding = nn.Embedding(50, 8, sparse=True, padding_idx=padding)
    tokens = torch.arange(6).view(2, 3)
    with pytest.raises(ModelError, match=r"0 makes sparse gradients .* set its sparse to False"):
        plan(nn.Sequential(embedding, nn.Linear(8, 4)), store, tokens)


def test_a_prepared_model_is_told_before_it_is_captured(store: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    prepared = accelerate.Accelerator(mixed_precision="bf16", cpu=True).prepare(model)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.raises(ModelError, match=r"prepare\(\), within accelerator.autocast\(\)"):
        plan(prepared, store)


def test_a_forward_that_was_replaced_is_told_before_it_is_captured(store: Path) -> None:
    model = nn.Linear(8, 8)
    model.forward = lambda x: x  # type: ignore[method-assign, assignment]
    with pytest.raises(ModelError, match=r"replaced on the instance, by .*lambda.*plan the model"):
        plan(model, store)


def test_options_are_told_by_their_names_in_python(store: Path) -> None:
    with pytest.raises(ConfigError, match='plan: strategy: "magic" was found'):
        plan(nn.Linear(8, 8), store, strategy="magic")
    with pytest.raises(ConfigError, match="plan: solver: peak_levels: 0 was found"):
        plan(nn.Linear(8, 8), store, solver=tightfit.SolverOptions(peak_levels=0))


def test_a_replica_of_data_parallel_is_refused_by_name(store: Path) -> None:
    planned = plan(nn.Sequential(nn.Linear(8, 8)), store)
    assert nn.DataParallel(planned)(torch.ones(4, 8)).shape == (4, 8)
    replica: Any = planned._replicate_for_data_parallel()
    with pytest.raises(PlanMismatch, match=r"replica of DataParallel.*DistributedDataParallel"):
        replica(torch.ones(4, 8))


def test_a_scripted_module_is_the_original(store: Path) -> None:
    planned = plan(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), store)
    x = torch.ones(4, 8)
    assert torch.equal(torch.jit.script(planned)(x), planned(x))


def test_an_interruption_before_there_is_a_plan_says_what_it_is(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tightfit.api.stage_runner.StageRunner.trace_graph", interrupt)
    with pytest.raises(KeyboardInterrupt, match="interrupted before it had a plan") as caught:
        plan(nn.Linear(8, 8), store)
    assert caught.value.__suppress_context__


def test_an_interruption_while_a_stage_is_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tightfit.__main__.import_module", interrupt)
    assert main(["trace"]) == 130
    assert capsys.readouterr().err == "tightfit trace: interrupted\n"
