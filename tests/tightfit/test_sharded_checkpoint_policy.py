"""Policies of selective checkpointing with FSDP2, on two processes with gloo."""

from __future__ import annotations

import copy
import json
import os
import socket
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

RANKS = 2
REPEATS = 8
"""Steps that are measured: the profiler misses events of gloo's threads in most."""


def shard_blocks(model: nn.Module) -> nn.Module:
    """Shards each block, then the rest, over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
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


def run_rank(rank: int, port: int, folder: Path, budgets: list[str]) -> None:
    """Plans and trains on one rank; writes what it found."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    base, x = BlockModel(0.2), sample() + rank
    want = step_bits(shard_blocks(copy.deepcopy(base)), x)
    found = []
    for budget in budgets:
        model = shard_blocks(checkpoint_blocks(copy.deepcopy(base)))
        policy = policy_of(model, budget)
        policy.apply(model)
        same = equal_bits(step_bits(model, x), want)
        found.append((same, policy.peak, step_peak(model, x, REPEATS)))
    local = policy_of(base, "min")
    model = shard_blocks(with_policy(base, local))
    same = equal_bits(step_bits(model, x), want)
    (folder / f"{rank}.json").write_text(json.dumps([found, same]))
    sharded = shard_blocks(BlockModel(0.2))
    with pytest.raises(tightfit.ConfigError, match="is sharded: apply the policy"):
        local.apply(sharded)
    torch.distributed.destroy_process_group()


def check_ranks(folder: Path, budgets: list[str]) -> None:
    """Trains on all ranks; bits are those without checkpointing, peaks as predicted."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    multiprocessing.spawn(run_rank, (port, folder, budgets), RANKS)
    for rank in range(RANKS):
        found, same = json.loads((folder / f"{rank}.json").read_text())
        assert same
        assert len(found) == len(budgets)
        for bits, predicted, measured in found:
            assert bits
            assert measured <= predicted <= 1.02 * measured


def test_a_policy_under_fsdp(tmp_path: Path) -> None:
    check_ranks(tmp_path, ["40%"])


@pytest.mark.long
def test_policies_under_fsdp(tmp_path: Path) -> None:
    check_ranks(tmp_path, ["min", "20%", "60%", "100%"])
