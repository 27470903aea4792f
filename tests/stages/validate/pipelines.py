"""A chain for pipelines, and the process of a rank that loses another one."""

from __future__ import annotations

import json
import os
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Words(nn.Module):
    """Blocks between an embedding and a head that is tied to it."""

    def __init__(self, depth: int = 3, width: int = 16, dropout: float = 0.2) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(6) for _ in range(depth))
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.embed.weight
        self.dropout = dropout

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = x + functional.dropout(norm(torch.tanh(block(x))), self.dropout, self.training)
        logits: torch.Tensor = self.head(x)
        return logits


def words(depth: int = 3) -> tuple[Any, ...]:
    tokens = torch.randint(0, 11, (4, 6))
    return Words(depth).train(), ((tokens,), {}), _loss


def _loss(logits: torch.Tensor) -> torch.Tensor:
    return logits.logsumexp(-1).mean()


class Losing(nn.Module):
    """Gives its loss, and logits of many words, which are all that is held while the loss is taken,
    as of a model with a large vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.second(torch.tanh(self.first(x)))
        loss = y.square().mean()
        wide = y.detach().unsqueeze(1).expand(4, 5000, 8).contiguous()
        return loss, wide, y.detach()


def losing() -> tuple[Any, ...]:
    return Losing().train(), ((torch.randn(4, 8),), {}), lambda output: output[0]


def summing() -> tuple[Any, ...]:
    """A loss whose gradient repeats one number, with strides 0."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).train()
    return model, ((torch.randn(4, 8),), {}), lambda output: output.sum()


def machine(path: Path, count: int, memory: int) -> Path:
    """A machine of equal CPUs."""
    names = [f"cpu:{number}" for number in range(count)]
    links = [{"between": pair, "bandwidth": 1e9} for pair in combinations(names, 2)]
    devices = [{"name": name, "memory": memory} for name in names]
    document = {"artifact": "tightfit.machine/1", "name": f"{count} CPUs"}
    path.write_text(json.dumps({**document, "devices": devices, "links": links}))
    return path


def lonely(rank: int, module: str, folder: str) -> None:
    """Rank 1 ends in the middle of a step; rank 0 writes what it says then."""
    from tightfit.stages.validate.load import load_package

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/lonely", rank=rank, world_size=2
    )
    torch.manual_seed(0)
    model, sample, loss = words()
    pipeline = load_package(module).load_pipeline(model, rank)
    if rank == 1:
        pipeline.actions = pipeline.actions[:3]
        pipeline.step([sample] * pipeline.microbatches, loss)
        os._exit(3)
    try:
        pipeline.step([sample] * pipeline.microbatches, loss)
    except RuntimeError as error:
        (Path(folder) / "said").write_text(str(error))
    os._exit(0)
