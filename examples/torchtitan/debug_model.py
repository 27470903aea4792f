"""torchtitan's debug model of Llama 3 on two processes with gloo, without a GPU: tokens per second
and bytes of a rank with torchtitan's `selective` and `full` checkpointing, and with policies.

    pip install torchtitan==0.3.0 triton
    python examples/torchtitan/debug_model.py

torchtitan's Trainer takes a host without an accelerator for one with CUDA. This calls what the
Trainer calls: the model's configuration, with PyTorch's attention in the place of the compiled
FlexAttention, and `parallelize_llama` with FSDP2 and an activation checkpointing.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import pickle
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torchtitan.tools.utils
from torch import Tensor, distributed, multiprocessing, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import cross_entropy

import tightfit

torchtitan.tools.utils.device_type = "cpu"
torchtitan.tools.utils.device_module = torch.cpu
sys.path.insert(0, str(Path(__file__).parent))

from planned_checkpointing import PlannedAC  # noqa: E402
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3 import model_registry, parallelize_llama  # noqa: E402

RANKS, STEPS = 2, 5
SHARES = ("min", "30%", "60%")
"""Budgets of the policies."""
HEAD = (
    "| mode | tokens per CPU second of a rank | predicted peak, MB | measured | same bits |\n"
    "|---|---|---|---|---|"
)


def build_model(device: str) -> Any:
    """torchtitan's debug model with the attention of torchtitan that runs on CPUs."""
    config: Any = model_registry("debugmodel", attn_backend="flex").model
    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    with torch.device(device):
        return config.build()


def start_weights(model: Any) -> nn.Module:
    """A model on the CPU with the same weights in each mode: torchtitan draws them in another order
    if some blocks are wrapped and others are not."""
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.init_weights(buffer_device=None)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.to_local().normal_(0.0, 0.02, generator=generator)
    return model.train()


def tokens_of(rank: int, batch: int, length: int) -> Tensor:
    """The tokens of a rank, and one more for the labels."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(2048, (batch, length + 1), generator=generator)


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross entropy of the next tokens."""
    return cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def shard_model(checkpointing: Any, folder: Path) -> nn.Module:
    """The debug model as torchtitan parallelizes it."""
    parallelism = ParallelismConfig(
        data_parallel_shard_degree=RANKS, spmd_backend="partial_dtensor"
    )
    dims = ParallelDims.from_config(parallelism, RANKS)
    dims.build_mesh()
    training = TrainingConfig(mixed_precision_param="float32", mixed_precision_reduce="float32")
    model = parallelize_llama(
        build_model("meta"),
        parallel_dims=dims,
        training=training,
        parallelism=parallelism,
        compile_config=CompileConfig(),
        ac_config=checkpointing,
        dump_folder=str(folder),
    )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    return start_weights(model)


def write_policies(folder: Path, tokens: Tensor) -> dict[str, int]:
    """Writes a policy for each share of the memory between nothing saved and no checkpointing; by
    name of the file, the predicted peaks. All ranks have to call it."""
    model, peaks = shard_model(FullAC.Config(), folder), {}
    for share in SHARES:
        policy = tightfit.checkpoint_policy(
            model,
            (tokens[:, :-1],),
            budget=share,
            loss=lambda logits: next_token_loss(logits, tokens),
        )
        if distributed.get_rank() == 0:
            (folder / share).write_bytes(pickle.dumps(policy))
        peaks[share] = policy.peak
    distributed.barrier()
    return peaks


def measure(model: nn.Module, tokens: Tensor) -> tuple[float, int, str]:
    """The CPU seconds of the fastest step, the peak of the one after which least is left (threads
    of gloo free some of what the profiler sees), and the digest of loss and gradients."""

    def step() -> Tensor:
        loss = next_token_loss(model(tokens[:, :-1]), tokens)
        loss.backward()
        return loss.detach()

    digest = hashlib.sha256(step().numpy().tobytes())
    for parameter in model.parameters():
        gradient: Any = parameter.grad
        digest.update(gradient.to_local().numpy().tobytes())
    seconds, usages = [], []
    for _ in range(STEPS):
        model.zero_grad()
        distributed.barrier()
        started = time.process_time()
        step()
        seconds.append(time.process_time() - started)
        model.zero_grad()
        gc.collect()
        with tightfit.memory_session("cpu") as session, session.section("step"):
            step()
        usages.append(session.section_usage("step"))
    return min(seconds), min(usages, key=lambda usage: usage.net).peak, digest.hexdigest()


def run_rank(rank: int, folder: Path, batch: int, length: int) -> None:
    """Trains in each mode; the first rank prints the table."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'ranks'}", rank=rank, world_size=RANKS
    )
    tokens, first = tokens_of(rank, batch, length), ""
    peaks = write_policies(folder, tokens)
    modes = {
        "none": None,
        "full": FullAC.Config(),
        "selective": SelectiveAC.Config(),
        **{share: PlannedAC.Config(policy=str(folder / share)) for share in SHARES},
    }
    if rank == 0:
        print(HEAD)
    for name, checkpointing in modes.items():
        seconds, peak, digest = measure(shard_model(checkpointing, folder), tokens)
        first = first or digest
        if rank == 0:
            predicted = f"{peaks[name] / 1e6:.1f}" if name in peaks else ""
            same = "yes" if digest == first else "no"
            rate = f"{batch * length / seconds:.0f}"
            print(f"| {name} | {rate} | {predicted} | {peak / 1e6:.1f} | {same} |", flush=True)
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        multiprocessing.spawn(run_rank, (Path(name), options.batch, options.length), RANKS)


if __name__ == "__main__":
    main()
