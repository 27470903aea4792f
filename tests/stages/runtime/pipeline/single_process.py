"""Pipelines in one process: a small model with what is hard for them, hand-made allocations of it,
and the ranks' actions in turn, with messages in a dictionary."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.stages.generate.plans import built_of
from tightfit.schemas.blocks import Block, Blocks
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph
from tightfit.schemas.pipeline_pattern import PatternOperation, PipelinePattern
from tightfit.schemas.pipeline_plan import PipelinePlan, PlannedDevice, PlannedStage
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.pipeline.split import PlannedPipeline, SplitPipeline, split_pipeline
from tightfit.stages.generate.package import write_directory, zero_time_costs
from tightfit.stages.generate.pipeline import build_pipeline_package
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.load import load_package

FACTS = {"strategy": "by hand", "machine": "none", "message": "Made by hand."}


class Hard(nn.Module):
    """A tied embedding, a skip over several layers, dropout, batch norm, a mask that all read, and
    several outputs."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(8, 8)
        self.third = nn.Linear(8, 8, bias=False)
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.embed.weight
        self.dropout = dropout

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        mask = (tokens > 1).unsqueeze(-1).to(torch.float32)
        x = functional.dropout(self.embed(tokens), self.dropout, self.training) * mask
        y = self.norm(torch.tanh(self.first(x)))
        z = functional.dropout(torch.relu(self.second(y)), self.dropout, self.training) + x * mask
        w = torch.sigmoid(self.third(z)).transpose(1, 2).contiguous().transpose(1, 2) + y
        logits = self.head(w + x)
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits, "hidden": y, "label": "text"}


def loss_of(output: dict[str, Any]) -> torch.Tensor:
    return output["loss"] + output["hidden"].square().mean()


def calls_of(count: int, seed: int = 3) -> list[Any]:
    draw = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(0, 9, (2, 4), generator=draw) for _ in range(2 * count)]
    return [((one, other), {}) for one, other in zip(tokens[::2], tokens[1::2], strict=True)]


@functools.cache
def hard() -> tuple[Hard, Graph]:
    torch.manual_seed(0)
    model = Hard().train()
    args, kwargs = calls_of(1)[0]
    return model, trace(built_of((model, (args, kwargs), loss_of)), "hard")


def blocks_by_hand(graph: Graph, count: int) -> Blocks:
    """The step cut into blocks at even places of the forward, wherever that is; what the backward
    runs belongs to the block of the latest forward that it reads, or as early as its gradients."""
    loss = next(op for op in graph.ops if op.target == LOSS_TARGET)
    views = {op.id for op in graph.ops if graph.is_view(op)}
    nodes = [op for op in graph.ops if op.id not in views and op is not loss]
    forward = [op.id for op in nodes if op.id < loss.id]
    stage_of = {op: at * count // len(forward) for at, op in enumerate(forward)}
    maker = {graph.values[v].storage: op for op in nodes for v in op.outputs if v != NO_VALUE}
    for op in nodes:
        if op.id < loss.id:
            continue
        storages = {graph.values[value].storage for value in op.inputs}
        made = [maker[storage].id for storage in storages if storage in maker]
        early = [stage_of[one] for one in made if one > loss.id]
        late = [stage_of[one] for one in made if one < loss.id]
        stage_of[op.id] = min([*early, count - 1]) if not late else max(late)
        assert all(stage_of[op.id] <= other for other in early)
    found = []
    for number in range(count):
        own = [op for op, where in stage_of.items() if where == number]
        there = [op for op in own if op < loss.id]
        back = [op for op in own if op > loss.id]
        found.append(Block("", str(number), there, back, [], [], [], [], [], [], 0, 0, 0, 0, 0))
    return Blocks(graph.model, [], 0.0, 0, loss.id, 0.0, 0, found, {})


def plan_by_hand(
    devices: Sequence[int], cuts: Sequence[int], batches: int = 3
) -> tuple[PipelinePlan, PipelinePattern]:
    """Stages that end at `cuts` on devices, and the pattern in which a batch enters each time that
    `batches` units have passed."""
    names = [f"cpu:{number}" for number in range(max(devices) + 1)]
    firsts = [1, *(cut + 1 for cut in cuts[:-1])]
    count = len(devices)
    stages = [
        PlannedStage(number, names[device], first, last, 1)
        for number, (device, first, last) in enumerate(
            zip(devices, firsts, cuts, strict=True), start=1
        )
    ]
    period = float(batches)
    rows: list[tuple[str, int, int]] = []
    rows += [("forward", stage, stage - 1) for stage in range(1, count + 1)]
    rows += [("backward", stage, 2 * count - stage) for stage in range(1, count + 1)]
    rows += [
        (kind, stage, begin)
        for stage in range(1, count)
        if devices[stage - 1] != devices[stage]
        for kind, begin in (("send", stage), ("receive", 2 * count - stage - 1))
    ]
    last = 2 * count - 1
    operations = []
    for kind, stage, begin in rows:
        name = names[devices[stage - 1]]
        if kind in ("send", "receive"):
            name = "/".join(sorted((name, names[devices[stage]])))
        late, start = divmod(begin, batches)
        shift = last // batches - late
        operations.append(PatternOperation(name, stage, kind, float(start), 0.0, shift))  # type: ignore[arg-type]
    pattern = PipelinePattern(period, 1, operations)
    known = [PlannedDevice(name, 0, 1 << 40, 0.0) for name in names]
    plan = PipelinePlan(
        "by hand", "none", "feasible", "", period=period, devices=known, stages=stages,
        weight_copies=2, buffers=False, solver="",
    )  # fmt: skip
    return plan, pattern


def split_by_hand(
    graph: Graph,
    blocks: Blocks,
    devices: Sequence[int],
    cuts: Sequence[int],
    microbatches: int,
    sequence: Sequence[ChainOperation] = (),
) -> SplitPipeline:
    plan, pattern = plan_by_hand(devices, cuts)
    planned = PlannedPipeline(plan, pattern, sequence)
    return split_pipeline(graph, "", zero_time_costs(graph), blocks, planned, microbatches)


def package_of(graph: Graph, found: SplitPipeline, folder: Path) -> ModuleType:
    stages = list(zip(found.graphs, found.schedules, strict=True))
    write_directory(folder, build_pipeline_package(graph, found.pipeline, stages, FACTS))
    loaded: ModuleType = load_package(folder)
    return loaded


class Mail:
    """Messages of a rank, in a dictionary of all."""

    def __init__(self, rank: int, boxes: dict[Any, torch.Tensor]) -> None:
        self.rank, self.boxes = rank, boxes

    def check(self, rank: int | None) -> int:
        return self.rank

    def send(self, parcel: int, microbatch: int, peer: int, tensor: torch.Tensor) -> None:
        self.boxes[parcel, microbatch, peer] = tensor.detach()

    def wait(self, parcel: int, microbatch: int, peer: int) -> None:
        assert (parcel, microbatch, peer) not in self.boxes, "nobody has taken it yet"

    def receive(self, parcel: int, microbatch: int, peer: int) -> torch.Tensor:
        return self.boxes.pop((parcel, microbatch, self.rank)).clone()

    def share(self, number: int, tensor: torch.Tensor, peer: int, sends: bool) -> None:
        if sends:
            self.boxes["share", number, peer] = tensor.clone()
        else:
            tensor.copy_(self.boxes.pop(("share", number, self.rank)))

    def broadcast_random_state(self, state: torch.Tensor) -> torch.Tensor:
        return state

    def ready(self, action: Sequence[Any]) -> bool:
        """Whether an action can be done: what was sent is there, or was taken."""
        kind, subject, microbatch, peer = action[:4]
        if kind == "receive":
            return (subject, microbatch, self.rank) in self.boxes
        if kind == "wait":
            return (subject, microbatch, peer) not in self.boxes
        return True


def run_in_turn(
    package: ModuleType,
    model: nn.Module,
    calls: list[Any],
    loss: Any,
    patching: pytest.MonkeyPatch,
    outputs: list[Any] | None = None,
) -> tuple[list[torch.Tensor], list[nn.Module]]:
    """One step of all ranks, each of which has a model of its own; the losses and these models."""
    boxes: dict[Any, torch.Tensor] = {}
    models = [copy.deepcopy(model) for _ in range(package.RANKS)]
    steps, mails = [], []
    for rank, own in enumerate(models):
        mail = Mail(rank, boxes)
        patching.setattr(
            package.runtime.pipeline.rank, "PeerMessages", lambda group, facts, mail=mail: mail
        )
        steps.append(package.load_pipeline(own, rank).begin(calls, loss, outputs))
        mails.append(mail)
    state = torch.get_rng_state()
    places = [0] * len(steps)
    with torch.no_grad():
        while any(at < len(step.pipeline.actions) for at, step in zip(places, steps, strict=True)):
            before = list(places)
            for rank, step in enumerate(steps):
                actions = step.pipeline.actions
                while places[rank] < len(actions) and mails[rank].ready(actions[places[rank]]):
                    if actions[places[rank]][0] == "draw":
                        torch.set_rng_state(state)
                    if actions[places[rank]][0] == "share" and _waits(step, actions[places[rank]]):
                        break
                    step.do(actions[places[rank]])
                    places[rank] += 1
            assert places != before, "all ranks wait for each other"
        losses = [loss for step in steps for loss in step.finish()]
    assert not boxes
    assert not any(step.kept or step.programs or step.results or step.states for step in steps)
    return losses, models


def _waits(step: Any, action: Sequence[Any]) -> bool:
    ranks = step.facts["shared"][action[1]]["ranks"]
    box = ("share", action[1], step.rank)
    return step.rank != ranks[0] and box not in step.messages.boxes
