"""A step whose activations wait on a disk: plans with it beside those that only compute again, and
beside hooks that send all that autograd saves there."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tightfit
from tests.benchmarks.alternating_runs import contest
from tests.benchmarks.baselines import Contestant
from tests.benchmarks.cases import CASES
from tests.benchmarks.tables import result_table
from tightfit.schemas.graph.training_graph import read_graph
from tightfit.schemas.plan import TransferTotals
from tightfit.stages.profile.link_cache import cached_machine
from tightfit.stages.runtime.offload.disk_target import DiskTarget
from tightfit.stages.runtime.offload.target import OffloadTarget, TransferHandle
from tightfit.stages.torch_utils.model_factory import build_from_factory
from tightfit.stages.validate.training_step import StepRunner
from tightfit.stages.validate.transfer_check import last_transfers

CASE = CASES[0]
BUDGETS = ("50%", "30%", "20%")


def table_of_waiting(folder: Path, rounds: int) -> str:
    """The results in Markdown: eager, hooks to disk, and for each budget a plan of `auto` and one
    of `offload`, with the disk as it is measured first; below it what was waited."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TIGHTFIT_DISK"] = str(folder)
    torch.manual_seed(0)
    built = build_from_factory(CASE.factory, CASE.arguments)
    args, kwargs = built.samples[0]
    contestants = [
        Contestant("eager", built.model),
        Contestant("all that autograd saves put to disk", _ToDisk(copy.deepcopy(built.model))),
    ]
    sending: list[tuple[str, nn.Module, TransferTotals]] = []
    for budget in BUDGETS:
        for strategy in ("auto", "offload"):
            fitted, made = tightfit.plan(
                copy.deepcopy(built.model), tuple(args), kwargs, budget=budget, strategy=strategy,
                store=folder / "store", check=False,
            )  # fmt: skip
            if made.transfers is not None:
                sending.append((f"{strategy}, {budget}", fitted, made.transfers))
            sent = made.transfers.offloaded_bytes if made.transfers else 0
            name = f"{strategy}, {budget}" + (f", {sent / 1e6:.0f} MB sent" if sent else "")
            contestants.append(Contestant(name, fitted, None, made.peak, made.time))
    graph = next((folder / "store" / "calls").rglob("graph.arrow"))
    stepper = StepRunner.of(read_graph(graph), built)
    table = result_table(contest(contestants, stepper, built.samples[0], rounds, waiting=True))
    machine = cached_machine(folder / "store", "cpu", folder)
    described = json.loads(machine.read_text())["sources"]["links"]
    return "\n".join([described, "", table, "", *(_waits(*each) for each in sending)])


def _waits(name: str, fitted: nn.Module, foretold: TransferTotals) -> str:
    """What the last step of a plan waited and had on the disk."""
    moved = last_transfers(fitted)
    return (
        f"- {name}: {moved.peak / 1e6:.1f} MB on the disk, {foretold.host_peak / 1e6:.1f} "
        f"predicted; the last step waited {moved.waited:.4f} s, {foretold.wait_seconds:.4f} "
        "predicted"
    )


class _ToDisk(nn.Module):
    """Runs a model; what autograd saves of it goes to a disk and comes back when it is read, as
    `torch.autograd.graph.save_on_cpu` does with the memory of the host."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.disk: OffloadTarget = DiskTarget(1 << 30)
        self.end = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.end = 0
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            return self.model(*args, **kwargs)

    def _pack(self, tensor: Tensor) -> tuple[int, torch.dtype, torch.Size]:
        place, sent = self.end, tensor.detach().contiguous()
        self.end += -(-sent.numel() * sent.element_size() // 64) * 64
        self.disk.wait(self.disk.write(sent, place))
        return place, tensor.dtype, tensor.shape

    def _unpack(self, packed: tuple[int, torch.dtype, torch.Size]) -> Tensor:
        place, dtype, shape = packed
        found = torch.empty(shape, dtype=dtype)
        ticket: TransferHandle = self.disk.read(found, place)
        self.disk.wait(ticket)
        return found
