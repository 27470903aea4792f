"""Policies of selective checkpointing with FSDP2, with gloo: one process here, two if long."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import multiprocessing, nn

import tightfit
from tests.tightfit.checkpoint_models import (
    BlockModel,
    equal_bits,
    policy_of,
    sample,
    step_bits,
    step_peak,
    with_policy,
)

REPEATS = 8
"""Steps that are measured: the profiler misses events of gloo's threads in most."""


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


def run_rank(rank: int, ranks: int, folder: Path, budgets: list[str]) -> None:
    """Plans and trains on one rank; writes what it found."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'ranks'}", rank=rank, world_size=ranks
    )
    try:
        found = [*measure_policies(rank, ranks, budgets)]
    finally:
        torch.distributed.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(found))


def measure_policies(rank: int, ranks: int, budgets: list[str]) -> Iterator[tuple[bool, int, int]]:
    """For each budget whether the bits are those without checkpointing, and the predicted and the
    measured peak. Then policies that come before sharding, and behind it."""
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


def check_ranks(folder: Path, ranks: int, budgets: list[str]) -> None:
    """Bits on all ranks are those without checkpointing, and peaks as predicted."""
    for rank in range(ranks):
        found = json.loads((folder / f"{rank}.json").read_text())
        assert len(found) == len(budgets)
        for bits, predicted, measured in found:
            assert bits
            assert measured <= predicted <= 1.02 * measured


def test_a_policy_under_fsdp(tmp_path: Path) -> None:
    run_rank(0, 1, tmp_path, ["40%"])
    check_ranks(tmp_path, 1, ["40%"])


@pytest.mark.long
def test_policies_under_fsdp_on_two_processes(tmp_path: Path) -> None:
    budgets = ["min", "20%", "60%", "100%"]
    multiprocessing.spawn(run_rank, (2, tmp_path, budgets), 2)
    check_ranks(tmp_path, 2, budgets)
