"""One of two processes that train a planned module and its original with data parallelism."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

from tests.stages.generate.small_model import Small


def train(module: nn.Module, rank: int) -> list[torch.Tensor]:
    """The gradients after two steps, the first of which accumulates without synchronising."""
    parallel = DistributedDataParallel(module, bucket_cap_mb=1)
    for number in range(3):
        torch.manual_seed(10 * number + rank)
        x = torch.randn(4, 6)
        torch.manual_seed(number)
        if number == 0:
            with parallel.no_sync():
                parallel(x, scale=2.0)["logits"].square().sum().backward()
        else:
            parallel(x, scale=2.0)["logits"].square().sum().backward()
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def work(rank: int, directory: str) -> None:
    """Compares the two on one rank, and the ranks with each other."""
    torch.set_num_threads(1)
    package = Path(directory)
    sys.path.insert(0, str(package.parent))
    init_process_group("gloo", init_method=f"file://{package.parent}/meet", rank=rank, world_size=2)
    results = []
    for planned in (True, False):
        torch.manual_seed(0)
        model = Small().train()
        load = importlib.import_module(package.name).load
        results.append(train(load(model) if planned else model, rank))
    mine, theirs = results
    assert len(mine) == len(theirs) == 8
    assert all(map(torch.equal, mine, theirs))
    for gradient in mine:
        other = gradient.clone()
        torch.distributed.broadcast(other, 0)
        assert torch.equal(other, gradient)
    destroy_process_group()
