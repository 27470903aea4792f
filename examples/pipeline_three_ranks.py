"""Trains a small network as a pipeline of three processes, and in one process beside it.

    python examples/pipeline_three_ranks.py

The machine is three CPU ranks with 60 MB each; MadPipe allocates the layers to them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tightfit

RANKS, MICROBATCHES, ROWS = 3, 4, 2
MACHINE = {
    "artifact": "tightfit.machine/1",
    "name": "three ranks of a CPU",
    "devices": [{"name": f"cpu:{rank}", "memory": 60_000_000} for rank in range(RANKS)],
    "links": [
        {"between": [f"cpu:{one}", f"cpu:{other}"], "bandwidth": 1e9}
        for one, other in combinations(range(RANKS), 2)
    ],
}


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    layers = [module for _ in range(6) for module in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers).train()


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def batches(width: int, steps: int) -> list[tuple[torch.Tensor, ...]]:
    """The microbatches of each step."""
    drawing = torch.Generator().manual_seed(1)
    return [
        torch.randn(MICROBATCHES * ROWS, width, generator=drawing).split(ROWS) for _ in range(steps)
    ]


def run_rank(package: Path, width: int, steps: int) -> None:
    """What each process runs; the rank with the last layer prints the losses."""
    torch.distributed.init_process_group("gloo")
    pipeline: Any = tightfit.load_pipeline(package, network(width))
    optimizer = torch.optim.SGD(pipeline.parameters(), 0.1)
    for parts in batches(width, steps):
        losses = pipeline.step([((part,), {}) for part in parts], loss_of)
        optimizer.step()
        optimizer.zero_grad()
        if losses:
            print(json.dumps([loss.item() for loss in losses]), flush=True)
    torch.distributed.destroy_process_group()


def in_one_process(width: int, steps: int) -> list[list[float]]:
    """The losses of the microbatches of each step, of the network as it is."""
    model = network(width)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for parts in batches(width, steps):
        losses = []
        for part in parts:
            loss = loss_of(model(part))
            loss.backward()
            losses.append(loss.item())
        found.append(losses)
        optimizer.step()
        optimizer.zero_grad()
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--package", type=Path, help="run a rank of this package, as torchrun does")
    options = parser.parse_args(words)
    if options.package:
        run_rank(options.package, options.width, options.steps)
        return
    torch.set_num_threads(1)  # as each rank that torchrun starts
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder) / "machine.json"
        machine.write_text(json.dumps(MACHINE))
        made = tightfit.plan_pipeline(
            network(options.width),
            (torch.randn(ROWS, options.width),),
            {},
            loss=loss_of,
            machine=machine,
            microbatches=MICROBATCHES,
            progress=False,
        )
        print(made.message)
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
        command += [__file__, "--package", str(made.package)]
        command += ["--width", str(options.width), "--steps", str(options.steps)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    for losses in found:
        print("losses of the microbatches", losses)
    equal = found == in_one_process(options.width, options.steps)
    print("equal to one process" if equal else "NOT EQUAL to one process")


if __name__ == "__main__":
    main()
