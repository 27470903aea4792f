"""The models of the benchmark, plain and small in code: nothing is downloaded.

Each factory returns `(model in training mode, (args, kwargs))`; the output is the loss. With
`checkpointed`, every block runs under `torch.utils.checkpoint`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Sample = tuple[tuple[Any, ...], dict[str, Any]]

GPT2 = {
    "full": {
        "layers": 36,
        "width": 1280,
        "heads": 20,
        "vocabulary": 50257,
        "tokens": 1024,
        "batch": 8,
    },
    "tiny": {"layers": 2, "width": 16, "heads": 2, "vocabulary": 9, "tokens": 32, "batch": 8},
}
"""GPT2-large."""
LLAMA = {
    "full": {
        "layers": 22, "width": 2048, "heads": 32, "groups": 4, "hidden": 5632,
        "vocabulary": 32000, "tokens": 2048, "batch": 4,
    },
    "tiny": {
        "layers": 4, "width": 16, "heads": 4, "groups": 2, "hidden": 24,
        "vocabulary": 9, "tokens": 32, "batch": 8,
    },
}  # fmt: skip
"""TinyLlama's 1.1 billion parameters."""
RESNET: dict[str, dict[str, Any]] = {
    "full": {"stages": (3, 4, 23, 3), "width": 64, "classes": 1000, "batch": 64, "size": 224},
    "tiny": {"stages": (2, 2), "width": 4, "classes": 5, "batch": 2, "size": 32},
}
"""ResNet-101."""


class _Blocks(nn.Module):
    """Blocks one after the other, each under a checkpoint where asked."""

    def __init__(self, blocks: list[nn.Module], checkpointed: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


class _Gpt2Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.gather = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attend(self.before(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.gather(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.widen(self.between(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 with tied embeddings."""

    def __init__(self, sizes: dict[str, int], checkpointed: bool) -> None:
        super().__init__()
        width = sizes["width"]
        self.words = nn.Embedding(sizes["vocabulary"], width)
        self.places = nn.Embedding(sizes["tokens"], width)
        blocks: list[nn.Module] = [
            _Gpt2Block(width, sizes["heads"]) for _ in range(sizes["layers"])
        ]
        self.blocks = _Blocks(blocks, checkpointed)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.words(tokens) + self.places(places)))
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

    def __init__(self, sizes: dict[str, int]) -> None:
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
        steps = torch.arange(0, self.depth, 2) / self.depth
        angles = torch.arange(sizes["tokens"])[:, None] / 10000**steps
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

    def __init__(self, sizes: dict[str, int], checkpointed: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes["vocabulary"], sizes["width"])
        blocks: list[nn.Module] = [_LlamaBlock(sizes) for _ in range(sizes["layers"])]
        self.blocks = _Blocks(blocks, checkpointed)
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

    def __init__(self, sizes: dict[str, Any], checkpointed: bool) -> None:
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
        self.blocks = _Blocks(blocks, checkpointed)
        self.head = nn.Linear(inward, sizes["classes"])

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.blocks(self.stem(images)).mean((2, 3))
        return functional.cross_entropy(self.head(x), labels)


def gpt2(size: str = "tiny", checkpointed: bool = False) -> tuple[nn.Module, Sample]:
    """GPT2-large in bfloat16."""
    sizes = GPT2[size]
    return Gpt2(sizes, checkpointed).to(torch.bfloat16).train(), _words(sizes)


def llama(size: str = "tiny", checkpointed: bool = False) -> tuple[nn.Module, Sample]:
    """A model like Llama of a billion parameters, in bfloat16."""
    sizes = LLAMA[size]
    return Llama(sizes, checkpointed).to(torch.bfloat16).train(), _words(sizes)


def resnet(size: str = "tiny", checkpointed: bool = False) -> tuple[nn.Module, Sample]:
    """ResNet-101 in float32."""
    sizes = RESNET[size]
    images = torch.randn(sizes["batch"], 3, sizes["size"], sizes["size"])
    labels = torch.randint(sizes["classes"], (sizes["batch"],))
    return Resnet(sizes, checkpointed).train(), ((images, labels), {})


def _words(sizes: dict[str, int]) -> Sample:
    shape = (sizes["batch"], sizes["tokens"])
    tokens, labels = (torch.randint(sizes["vocabulary"], shape) for _ in range(2))
    return (tokens, labels), {}


MODELS = {"gpt2": gpt2, "llama": llama, "resnet": resnet}
"""The factories by name."""
