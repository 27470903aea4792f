"""What PyTorch's selective checkpointing loses by greedy choices and by equal layers.

    python -m tests.benchmarks.checkpoint_policies

For each architecture, card and budget: the time of a step relative to that without checkpointing,
with what a greedy choice saves (most seconds for their bytes first, the better of two orders: ops
and whole blocks mixed, or whole blocks first), with the best program that saves the same in all
layers, with the best policy, and the proven bound. Budgets are shares of what the peak without
checkpointing is above that with nothing saved. Bytes are those of the CPU; times are measured
there, or those of a card's roofline.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tightfit.schemas.checkpoint_recording import CheckpointRecording
from tightfit.schemas.machine import MachineDevice, read_machine
from tightfit.stages.combine.checkpoint_program import (
    WHOLE_BLOCK,
    Key,
    fastest_policy,
    saved_peak,
)
from tightfit.stages.profile.checkpoint_recorder import record_checkpointed_step
from tightfit.stages.torch_utils.selective_checkpoint import IGNORED_OPS, find_blocks

TOKENS, BATCH, WIDTH, LAYERS = 128, 4, 256, 6
BUDGETS = (0.1, 0.3, 0.5, 0.7, 0.9)
CARDS = ("", "rtx4090", "a100", "h100")
"""Described cards; "" for measured times."""
MACHINES = Path(__file__).parents[2] / "schemas" / "machines"


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    none: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes: dict[str, Any] = {"n_layer": LAYERS, "n_embd": WIDTH, "n_head": 4, "vocab_size": 1000}
    return GPT2LMHeadModel(GPT2Config(**sizes, **none, use_cache=False))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes: dict[str, Any] = {
        "hidden_size": WIDTH,
        "intermediate_size": 688,
        "num_hidden_layers": LAYERS,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, vocab_size=1000, use_cache=False))


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    none: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes: dict[str, Any] = {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": LAYERS,
    }
    return BertForMaskedLM(BertConfig(**sizes, **none, num_attention_heads=4, vocab_size=1000))


def gemma() -> nn.Module:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    sizes: dict[str, Any] = {
        "hidden_size": WIDTH,
        "intermediate_size": 688,
        "num_hidden_layers": LAYERS,
    }
    return Gemma2ForCausalLM(Gemma2Config(**sizes, **heads, vocab_size=1000, use_cache=False))


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2,
    "llama": llama,
    "bert": bert,
    "gemma2": gemma,
}


def squared_logits(output: Any) -> Tensor:
    """A loss of the logits."""
    return (output.logits**2).mean()


class RooflineMode(TorchDispatchMode):
    """The seconds of the ops that run, by the roofline of a device."""

    def __init__(self, device: MachineDevice) -> None:
        super().__init__()
        self.device = device
        self.seconds: list[float] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in IGNORED_OPS:
            return out
        work = flop_registry.get(func.overloadpacket)
        flops = work(*args, **(kwargs or {}), out_val=out) if work else 0
        tensors = [x for x in pytree.tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
        traffic = sum(x.numel() * x.element_size() for x in tensors)
        view = any(x.alias_info and not x.alias_info.is_write for x in func._schema.returns)
        busy = max(flops / self.device.speed("float32"), traffic / (self.device.bandwidth or 1.0))
        self.seconds.append(0.0 if view else self.device.latency + busy)
        return out


def on_card(
    recording: CheckpointRecording, model: nn.Module, tokens: Tensor, card: str
) -> CheckpointRecording:
    """A recording with the times of a card's roofline."""
    path = MACHINES / f"{card}.json"
    mode = RooflineMode(read_machine(path).single_device(path))
    spans: dict[str, list[int]] = {block.path: [] for block in recording.blocks}

    def note(path: str) -> Callable[..., None]:
        return lambda *hook_arguments: spans[path].append(len(mode.seconds))

    handles = []
    for block in recording.blocks:
        module = model.get_submodule(block.path)
        handles += [
            module.register_forward_pre_hook(note(block.path)),
            module.register_forward_hook(note(block.path)),
        ]
    with mode:
        squared_logits(model(tokens)).backward()
    model.zero_grad()
    for handle in handles:
        handle.remove()
    blocks = []
    for block in recording.blocks:
        first, last = spans[block.path]
        times = mode.seconds[first:last]
        assert len(times) == len(block.ops)
        ops = [
            replace(op, seconds=seconds if op.recomputation >= 0 else 0.0)
            for op, seconds in zip(block.ops, times, strict=True)
        ]
        blocks.append(replace(block, ops=tuple(ops)))
    total = sum(mode.seconds) + sum(block.seconds for block in blocks)
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
        model = ARCHITECTURES[name]().train()
        tokens = torch.randint(1000, (BATCH, TOKENS))
        paths = find_blocks(model, None)
        measured = record_checkpointed_step(model, (tokens,), {}, squared_logits, paths)
        for card in cards:
            recording = on_card(measured, model, tokens, card) if card else measured
            least = saved_peak(recording, [])
            most = saved_peak(recording, [(n, WHOLE_BLOCK) for n in range(len(paths))])
            plain = recording.seconds - sum(block.seconds for block in recording.blocks)
            for share in BUDGETS:
                limit = int(least + share * (most - least))
                uniform = fastest_policy(recording, limit, uniform=True)
                best = fastest_policy(recording, limit)
                assert uniform is not None and best is not None
                seconds = (greedy_seconds(recording, limit), uniform.seconds, best.seconds)
                cells = [f"{value / plain:.4f}" for value in (*seconds, best.bound)]
                head = f"| {name} | {card or 'measured'} | {share:.0%} | {limit / 1e6:.1f}"
                yield f"{head} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--architectures", nargs="*", default=list(ARCHITECTURES))
    parser.add_argument("--cards", nargs="*", default=list(CARDS))
    options = parser.parse_args()
    print("| architecture | times | budget | MB | greedy | equal layers | best | bound |")
    print("|---|---|---|---|---|---|---|---|")
    for row in table_rows(options.architectures, options.cards):
        print(row, flush=True)


if __name__ == "__main__":
    main()
