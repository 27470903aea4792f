"""What PyTorch's selective checkpointing loses by greedy choices and by equal layers.

    python -m tests.benchmarks.checkpoint_policies > policies.md
    python -m tests.benchmarks.plot_checkpoint_policies policies.md

For each architecture, card and budget: the time of a step relative to that without checkpointing,
with what a greedy choice saves (most seconds for their bytes first, the better of two orders: ops
and whole blocks mixed, or whole blocks first), with the best program that saves the same in all
layers, with the best policy, and the proven bound. Budgets are shares of what the peak without
checkpointing is above that with nothing saved. Bytes are those of the CPU; times are those of a
card's roofline, or measured on the CPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from tests.benchmarks.checkpoint_architectures import ARCHITECTURES, BenchmarkModel
from tightfit.schemas.checkpoint_recording import CheckpointRecording
from tightfit.schemas.machine import MachineDevice, read_machine
from tightfit.stages.combine.checkpoint_program import (
    MILP_LIMITS,
    WHOLE_BLOCK,
    Key,
    fastest_policy,
    saved_peak,
)
from tightfit.stages.profile.checkpoint_recorder import record_checkpointed_step
from tightfit.stages.torch_utils.selective_checkpoint import IGNORED_OPS, find_blocks

BUDGETS = (0.1, 0.3, 0.5, 0.7, 0.9)
CARDS = ("rtx4090", "a100", "h100")
MEASURED = "measured"
"""Stands for times that are measured, in the place of a card."""
LIMITS = replace(MILP_LIMITS, seconds=10.0)
MACHINES = Path(__file__).parents[2] / "schemas" / "machines"
CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True)
class OpWork:
    """What an op does: floating-point operations, bytes that it reads and writes, and whether it
    only makes a view."""

    flops: int
    traffic: int
    view: bool

    def seconds(self, device: MachineDevice) -> float:
        """Its time by the roofline of a device."""
        if self.view:
            return 0.0
        computing = self.flops / device.speed("float32")
        return device.latency + max(computing, self.traffic / (device.bandwidth or 1.0))


class WorkCounter(TorchDispatchMode):
    """Notes the work of the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[OpWork] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in IGNORED_OPS:
            return out
        tensors = [x for x in pytree.tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
        traffic = sum(x.numel() * x.element_size() for x in tensors)
        view = any(x.alias_info and not x.alias_info.is_write for x in func._schema.returns)
        self.works.append(OpWork(self._flops(func, args, kwargs or {}, out), traffic, view))
        return out

    def _flops(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> int:
        if func.overloadpacket is CPU_ATTENTION:
            return sdpa_flop_count(*(x.shape for x in args[:3]))
        count = flop_registry.get(func.overloadpacket)
        return int(count(*args, **kwargs, out_val=out)) if count else 0


@dataclass(frozen=True)
class StepWork:
    """The work of a step without checkpointing, and which ops are those of each block."""

    works: Sequence[OpWork]
    spans: dict[str, list[int]]


def count_work(recording: CheckpointRecording, model: BenchmarkModel) -> StepWork:
    """Runs one step and notes its work."""
    mode = WorkCounter()
    spans: dict[str, list[int]] = {block.path: [] for block in recording.blocks}

    def note(path: str) -> Callable[..., None]:
        return lambda *hook_arguments: spans[path].append(len(mode.works))

    handles = []
    for path in spans:
        module = model.module.get_submodule(path)
        handles += [
            module.register_forward_pre_hook(note(path)),
            module.register_forward_hook(note(path)),
        ]
    with mode:
        model.loss(model.module(**model.kwargs)).backward()
    for handle in handles:
        handle.remove()
    return StepWork(mode.works, spans)


def on_card(recording: CheckpointRecording, step: StepWork, card: str) -> CheckpointRecording:
    """A recording with the times of a card's roofline."""
    path = MACHINES / f"{card}.json"
    device = read_machine(path).single_device(path)
    times = [work.seconds(device) for work in step.works]
    blocks = []
    for block in recording.blocks:
        first, last = step.spans[block.path]
        ops = [
            replace(op, seconds=seconds if op.recomputation >= 0 else 0.0)
            for op, seconds in zip(block.ops, times[first:last], strict=True)
        ]
        blocks.append(replace(block, ops=tuple(ops)))
    total = sum(times) + sum(block.seconds for block in blocks)
    return replace(recording, blocks=tuple(blocks), seconds=total)


def greedy_seconds(recording: CheckpointRecording, limit: int) -> float:
    """The time of a step with the ops that a greedy choice saves."""
    values: dict[Key, tuple[float, int]] = {}
    for index, block in enumerate(recording.blocks):
        values[index, WHOLE_BLOCK] = block.seconds, sum(x.size for x in block.kept)
        for number, op in enumerate(block.ops):
            if not op.objection and not op.random:
                values[index, number] = op.seconds, sum(x.size for x in op.storages)

    def density(key: Key) -> float:
        return values[key][0] / (1 + values[key][1])

    mixed = sorted(values, key=density, reverse=True)
    blocks_first = sorted(mixed, key=lambda key: key[1] != WHOLE_BLOCK)
    return min(_greedy_time(recording, values, order, limit) for order in (mixed, blocks_first))


def _greedy_time(
    recording: CheckpointRecording,
    values: dict[Key, tuple[float, int]],
    order: Sequence[Key],
    limit: int,
) -> float:
    """The time of a step that takes each decision, in order, that still fits."""
    chosen: list[Key] = []
    for key in order:
        inside = {number for index, number in chosen if index == key[0]}
        if WHOLE_BLOCK in inside or (key[1] == WHOLE_BLOCK and inside):
            continue
        if saved_peak(recording, [*chosen, key]) <= limit:
            chosen.append(key)
    return recording.seconds - sum(values[key][0] for key in chosen)


def table_rows(names: Sequence[str], cards: Sequence[str]) -> Iterator[str]:
    """A row for each architecture, card and budget."""
    for name in names:
        torch.manual_seed(0)
        model = ARCHITECTURES[name]()
        paths = find_blocks(model.module, None)
        measured = record_checkpointed_step(model.module, (), model.kwargs, model.loss, paths)
        step = count_work(measured, model)
        for card in cards:
            recording = measured if card == MEASURED else on_card(measured, step, card)
            for share in BUDGETS:
                yield f"| {name} | {card} | {share:.0%} | {' | '.join(_cells(recording, share))} |"


def _cells(recording: CheckpointRecording, share: float) -> Iterator[str]:
    """The megabytes of a budget, and the times of greedy, equal layers, the best, and its bound,
    relative to that without checkpointing."""
    least = saved_peak(recording, [])
    most = saved_peak(recording, [(n, WHOLE_BLOCK) for n in range(len(recording.blocks))])
    limit = int(least + share * (most - least))
    yield f"{limit / 1e6:.1f}"
    plain = recording.seconds - sum(block.seconds for block in recording.blocks)
    uniform = fastest_policy(recording, limit, uniform=True, limits=LIMITS)
    best = fastest_policy(recording, limit, limits=LIMITS)
    assert uniform is not None and best is not None
    greedy = greedy_seconds(recording, limit)
    for seconds in (greedy, uniform.seconds, best.seconds, best.bound):
        yield f"{seconds / plain:.5f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--architectures", nargs="*", default=list(ARCHITECTURES))
    parser.add_argument("--cards", nargs="*", default=list(CARDS), help=f"or {MEASURED}")
    options = parser.parse_args()
    print("| architecture | card | budget | MB | greedy | equal layers | best | bound |")
    print("|---|---|---|---|---|---|---|---|")
    for row in table_rows(options.architectures, options.cards):
        print(row, flush=True)


if __name__ == "__main__":
    main()
