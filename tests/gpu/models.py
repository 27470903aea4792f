"""The models of the benchmark, plain and small in code: nothing is downloaded.

Each factory returns `(model in training mode, (args, kwargs))`; the output is the loss. With
`checkpoint` "full" every block runs under `torch.utils.checkpoint`, with "selective" so that it
keeps what torchtitan keeps. Sizes are "full", those that are measured; "small", those of a first
look at a GPU; and "tiny", for a CPU.

On a GPU attention runs the flash kernel where it can. By itself PyTorch takes cuDNN's for half
precision on an H100, which runs nowhere else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from tests.gpu.model_sizes import DROPOUT, GPT2, LLAMA, LLAMA3, RESNET, SEED, SIZES

Sample = tuple[tuple[Any, ...], dict[str, Any]]

_SAVED = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}
"""What torchtitan's selective checkpointing keeps; of products of matrices it keeps every other."""


def _flash_first() -> None:
    """PyTorch puts cuDNN's attention first when it chooses for the first time."""
    if torch.cuda.is_available() and hasattr(torch._C, "_set_sdp_priority_order"):
        each = torch.zeros(1, 1, 8, 64, dtype=torch.bfloat16, device="cuda")
        torch._fused_sdp_choice(each, each, each)
        torch._C._set_sdp_priority_order([1, 2, 0, 3])


_flash_first()


def selective() -> Any:
    """The contexts of torchtitan's selective checkpointing of one block."""
    counts = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operator == torch.ops.aten.mm.default:
            counts[context.is_recompute] += 1
            if counts[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        found = operator in _SAVED
        return CheckpointPolicy.MUST_SAVE if found else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class _Blocks(nn.Module):
    """Blocks one after the other, each under a checkpoint where asked."""

    def __init__(self, blocks: list[nn.Module], checkpoint: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.checkpoint = checkpoint

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if self.checkpoint == "selective":
                x = checkpoint(block, x, use_reentrant=False, context_fn=selective)
            else:
                x = checkpoint(block, x, use_reentrant=False) if self.checkpoint else block(x)
        return x


class _Gpt2Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.gather = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attend(self.before(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=DROPOUT, is_causal=True
        )
        x = x + self.drop(self.gather(mixed.transpose(1, 2).flatten(2)))
        wide = functional.gelu(self.widen(self.between(x)), approximate="tanh")
        return x + self.drop(self.narrow(wide))


class Gpt2(nn.Module):
    """GPT-2 with dropout and tied embeddings."""

    def __init__(self, sizes: dict[str, Any], checkpoint: str) -> None:
        super().__init__()
        width = sizes["width"]
        self.words = nn.Embedding(sizes["vocabulary"], width)
        self.places = nn.Embedding(sizes["tokens"], width)
        blocks: list[nn.Module] = [
            _Gpt2Block(width, sizes["heads"]) for _ in range(sizes["layers"])
        ]
        self.blocks = _Blocks(blocks, checkpoint)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(DROPOUT)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.drop(self.words(tokens) + self.places(places))))
        logits = functional.linear(x, self.words.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class _RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return wide.to(x.dtype) * self.weight


class _LlamaBlock(nn.Module):
    cosine: Tensor
    sine: Tensor

    def __init__(self, sizes: dict[str, Any]) -> None:
        super().__init__()
        width, hidden = sizes["width"], sizes["hidden"]
        self.heads, self.groups = sizes["heads"], sizes["groups"]
        self.depth = width // self.heads
        shared = self.groups * self.depth
        self.before, self.between = _RmsNorm(width), _RmsNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, shared, bias=False)
        self.value = nn.Linear(width, shared, bias=False)
        self.gather = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.widen = nn.Linear(width, hidden, bias=False)
        self.narrow = nn.Linear(hidden, width, bias=False)
        self.tokens = sizes["tokens"]
        self.reset_angles()

    def reset_angles(self, device: str = "cpu") -> None:
        """The buffers of the rotary positions."""
        steps = torch.arange(0, self.depth, 2, device=device) / self.depth
        angles = torch.arange(self.tokens, device=device)[:, None] / 10000**steps
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def turned(self, x: Tensor) -> Tensor:
        """Rotary positions."""
        left, right = x.chunk(2, -1)
        return x * self.cosine + torch.cat([-right, left], -1) * self.sine

    def forward(self, x: Tensor) -> Tensor:
        normed = self.before(x)
        query, key, value = (
            layer(normed).unflatten(-1, (-1, self.depth)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        times = self.heads // self.groups
        key = self.turned(key).repeat_interleave(times, 1)
        value = value.repeat_interleave(times, 1)
        mixed = functional.scaled_dot_product_attention(
            self.turned(query), key, value, is_causal=True
        )
        x = x + self.gather(mixed.transpose(1, 2).flatten(2))
        normed = self.between(x)
        return x + self.narrow(functional.silu(self.gate(normed)) * self.widen(normed))


class Llama(nn.Module):
    """A model like Llama: rotary positions, grouped queries, gated layers."""

    def __init__(self, sizes: dict[str, Any], checkpoint: str) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes["vocabulary"], sizes["width"])
        blocks: list[nn.Module] = [_LlamaBlock(sizes) for _ in range(sizes["layers"])]
        self.blocks = _Blocks(blocks, checkpoint)
        self.norm = _RmsNorm(sizes["width"])
        self.head = nn.Linear(sizes["width"], sizes["vocabulary"], bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(self.norm(self.blocks(self.words(tokens))))
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class _Bottleneck(nn.Module):
    def __init__(self, inward: int, width: int, stride: int) -> None:
        super().__init__()
        outward = 4 * width
        self.body = nn.Sequential(
            *_convolution(inward, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, outward, 1),
        )
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inward != outward:
            self.short = nn.Sequential(*_convolution(inward, outward, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.short(x))


def _convolution(inward: int, outward: int, size: int, stride: int = 1) -> list[nn.Module]:
    made = nn.Conv2d(inward, outward, size, stride, size // 2, bias=False)
    return [made, nn.BatchNorm2d(outward)]


class Resnet(nn.Module):
    """A residual network of bottlenecks."""

    def __init__(self, sizes: dict[str, Any], checkpoint: str) -> None:
        super().__init__()
        width = sizes["width"]
        self.stem = nn.Sequential(*_convolution(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        inward = width
        for number, count in enumerate(sizes["stages"]):
            for place in range(count):
                stride = 2 if number and not place else 1
                blocks.append(_Bottleneck(inward, width << number, stride))
                inward = 4 * (width << number)
        self.blocks = _Blocks(blocks, checkpoint)
        self.head = nn.Linear(inward, sizes["classes"])

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.blocks(self.stem(images)).mean((2, 3))
        return functional.cross_entropy(self.head(x), labels)


def gpt2(size: str = "tiny", checkpoint: str = "") -> tuple[nn.Module, Sample]:
    """GPT2-large in bfloat16."""
    sizes = GPT2[size]
    return Gpt2(sizes, checkpoint).to(torch.bfloat16).train(), _words(sizes)


def llama(size: str = "tiny", checkpoint: str = "") -> tuple[nn.Module, Sample]:
    """A model like Llama of a billion parameters, in bfloat16."""
    sizes = LLAMA[size]
    return Llama(sizes, checkpoint).to(torch.bfloat16).train(), _words(sizes)


def llama3(size: str = "tiny", checkpoint: str = "") -> tuple[nn.Module, Sample]:
    """Eight layers of Llama 3 8B, in bfloat16."""
    sizes = LLAMA3[size]
    return Llama(sizes, checkpoint).to(torch.bfloat16).train(), _words(sizes)


def resnet(size: str = "tiny", checkpoint: str = "") -> tuple[nn.Module, Sample]:
    """ResNet-101 in float32."""
    sizes = RESNET[size]
    return Resnet(sizes, checkpoint).train(), _images(sizes)


def _words(sizes: dict[str, Any]) -> Sample:
    shape = (sizes["batch"], sizes["tokens"])
    tokens, labels = (torch.randint(sizes["vocabulary"], shape) for _ in range(2))
    return (tokens, labels), {}


def _images(sizes: dict[str, Any]) -> Sample:
    images = torch.randn(sizes["batch"], 3, sizes["size"], sizes["size"])
    return (images, torch.randint(sizes["classes"], (sizes["batch"],))), {}


MODELS = {"gpt2": gpt2, "llama": llama, "llama3": llama3, "resnet": resnet}
"""The factories by name."""


def made_on(device: str, name: str, size: str, checkpoint: str = "") -> tuple[nn.Module, Sample]:
    """A model whose parameters are made on a device, where that takes no time, and a sample on the
    host; the same for the same device and seed."""
    torch.manual_seed(SEED)
    sample = (_images if name == "resnet" else _words)(SIZES[name][size])
    with torch.device("meta"):
        model, _ = MODELS[name](size, checkpoint)
    model = model.to_empty(device=device)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
        elif isinstance(module, _LlamaBlock):
            module.reset_angles(device)
            module.to(next(module.parameters()).dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.02) if parameter.dim() > 1 else parameter.fill_(1.0)
    return model, sample
