"""Policies of selective checkpointing with FSDP2 and tensor parallel, with gloo: one process here,
two if long."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import multiprocessing, nn

import tightfit
from tests.tightfit.checkpoint_models import (
    ROWS,
    WIDTH,
    BlockModel,
    equal_bits,
    policy_of,
    sample,
    squared_mean,
    step_bits,
    step_peak,
    with_policy,
)
from tightfit.stages.combine.checkpoint_program import saved_peak
from tightfit.stages.profile.checkpoint_recorder import record_checkpointed_step
from tightfit.stages.profile.shared_recording import share_recording

Measurement = tuple[bool, int, int]
"""Whether the bits are those without checkpointing, and the predicted and the measured peak."""
REPEATS = 8
"""Steps that are measured: the profiler misses events of gloo's threads in most."""
GATHERED_BYTES = 4 * ROWS * WIDTH
"""Of a collective that nothing waits for a buffer is counted, and gloo may have freed it."""


def shard_blocks(model: nn.Module, ranks: int) -> nn.Module:
    """Shards each block, then the rest, over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.get_submodule("layers").children():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def checkpoint_blocks(model: nn.Module) -> nn.Module:
    """Puts each block into PyTorch's wrapper, as trainers do."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    layers = model.get_submodule("layers")
    for name, block in list(layers.named_children()):
        setattr(layers, name, checkpoint_wrapper(block))
    return model


def parallelize_blocks(model: nn.Module, ranks: int, shards_rows: bool) -> nn.Module:
    """Splits the weights of each block over all ranks, and the rows between them if asked."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, parallel

    mesh = init_device_mesh("cpu", (ranks,))
    rows: dict[str, Any] = {"input_layouts": Shard(0)} if shards_rows else {}
    styles: dict[str, parallel.ParallelStyle] = {
        "layers.*.up": parallel.ColwiseParallel(**rows),
        "layers.*.down": parallel.RowwiseParallel(),
    }
    if shards_rows:
        styles |= {
            "enter": parallel.PrepareModuleOutput(
                output_layouts=Replicate(), desired_output_layouts=Shard(0), use_local_output=False
            ),
            "layers.*.norm": parallel.SequenceParallel(sequence_dim=0),
            "layers.*.down": parallel.RowwiseParallel(
                output_layouts=Shard(0), use_local_output=False
            ),
            "leave": parallel.PrepareModuleInput(
                input_layouts=Shard(0), desired_input_layouts=Replicate(), use_local_output=True
            ),
        }
    return parallel.parallelize_module(model, mesh, styles)


Measure = Callable[[int, int, list[str]], Iterator[Measurement]]


def run_rank(rank: int, ranks: int, folder: Path, budgets: list[str], measure: Measure) -> None:
    """Plans and trains on one rank; writes what it found."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'ranks'}", rank=rank, world_size=ranks
    )
    try:
        found = [*measure(rank, ranks, budgets)]
    finally:
        torch.distributed.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(found))


def measure_sharded(rank: int, ranks: int, budgets: list[str]) -> Iterator[Measurement]:
    """A measurement for each budget. Then policies that come before sharding, and behind it."""
    base, x = BlockModel(0.2), sample() + rank
    plain = shard_blocks(copy.deepcopy(base), ranks)
    want = step_bits(plain, x)
    for budget in budgets:
        model = shard_blocks(checkpoint_blocks(copy.deepcopy(base)), ranks)
        policy = policy_of(model, budget)
        policy.apply(model)
        same = equal_bits(step_bits(model, x), want)
        yield same, policy.peak, step_peak(model, x, REPEATS)
    local = policy_of(base, "min")
    model = shard_blocks(with_policy(base, local), ranks)
    assert equal_bits(step_bits(model, x), want)
    with pytest.raises(tightfit.ConfigError, match="is sharded: apply the policy"):
        local.apply(plain)


def measure_parallel(rank: int, ranks: int, budgets: list[str]) -> Iterator[Measurement]:
    """Measurements with weights split, then with rows split, too: one for each budget, and one for
    the first products of all blocks saved, which are distributed tensors."""
    base = BlockModel()

    def measure(model: nn.Module, policy: tightfit.ActivationCheckpointPolicy) -> Measurement:
        policy.apply(model)
        same = equal_bits(step_bits(model, sample()), want)
        return same, policy.peak, step_peak(model, sample(), REPEATS)

    for shards_rows in (False, True):
        make = partial(parallelize_blocks, ranks=ranks, shards_rows=shards_rows)
        want = step_bits(make(copy.deepcopy(base)), sample())
        for budget in budgets:
            model = make(copy.deepcopy(base))
            yield measure(model, policy_of(model, budget))
        model = make(copy.deepcopy(base))
        policy = policy_of(model, "min")
        paths = [block.path for block in policy.blocks]
        recording = record_checkpointed_step(model, (sample(),), {}, squared_mean, paths)
        products = [
            (at, number)
            for at, block in enumerate(recording.blocks)
            for number, op in enumerate(block.ops)
            if op.name == "aten.addmm.default" and not op.objection
        ]
        blocks = [replace(policy.blocks[at], saved=(number,)) for at, number in products]
        assert [block.path for block in blocks] == paths
        peak = saved_peak(recording, products)
        shared = share_recording(replace(recording, seconds=recording.seconds + rank))
        assert shared.ranks == tuple(range(ranks))
        mean = shared.recording.seconds
        assert shared.first_of_ranks(partial(tuple, (rank, mean))) == (0, mean)
        yield measure(model, replace(policy, blocks=tuple(blocks), peak=peak))


def check_ranks(folder: Path, ranks: int, count: int, buffers: int = 0) -> None:
    """Bits on all ranks are those without checkpointing, and peaks as predicted."""
    for rank in range(ranks):
        found = json.loads((folder / f"{rank}.json").read_text())
        assert len(found) == count
        for bits, predicted, measured in found:
            assert bits
            assert measured <= predicted <= 1.02 * measured + buffers


def test_a_policy_under_fsdp(tmp_path: Path) -> None:
    run_rank(0, 1, tmp_path, ["40%"], measure_sharded)
    check_ranks(tmp_path, 1, 1)


@pytest.mark.long
def test_policies_under_fsdp_on_two_processes(tmp_path: Path) -> None:
    budgets = ["min", "20%", "60%", "100%"]
    multiprocessing.spawn(run_rank, (2, tmp_path, budgets, measure_sharded), 2)
    check_ranks(tmp_path, 2, 4)


def test_a_policy_under_tensor_parallel(tmp_path: Path) -> None:
    run_rank(0, 1, tmp_path, ["40%"], measure_parallel)
    check_ranks(tmp_path, 1, 4, GATHERED_BYTES)


@pytest.mark.long
def test_policies_under_tensor_parallel_on_two_processes(tmp_path: Path) -> None:
    budgets = ["min", "40%", "100%"]
    multiprocessing.spawn(run_rank, (2, tmp_path, budgets, measure_parallel), 2)
    check_ranks(tmp_path, 2, 8, GATHERED_BYTES)
