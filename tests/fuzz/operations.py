"""What a random module is made of: a table of operations. A new one is one entry.

Each takes the module, two values and a whole number that stands for its choices, and gives a
value; what does not fit the values raises, and is then not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from tests.fuzz.program import Program

Operation = Callable[["Program", Tensor, Tensor, int], Any]


def _dim(a: Tensor, k: int) -> int:
    return k % max(a.dim(), 1) - max(a.dim(), 1)


def _part(a: Tensor, k: int) -> Tensor:
    chunks = a.chunk(2 + k % 2, _dim(a, k))
    return chunks[k % len(chunks)]


def _set_first(a: Tensor, k: int) -> Tensor:
    a = a.clone()
    a[..., 0] = 0.5
    return a


def _add_view(a: Tensor, b: Tensor, k: int) -> Tensor:
    """Writes into a view of what is read again."""
    a = a.clone()
    a.narrow(_dim(a, k), 0, 1).add_(1.0)
    return a * 2


def _write_mean(m: Program, a: Tensor, k: int) -> Tensor:
    """A running mean, of another value before and after."""
    before = m.mean.clone()
    with torch.no_grad():
        m.mean.mul_(0.9).add_(0.1 * a.detach().float().mean())
    return a * (1 + before) + m.mean.clone()


def _read_mean_before(m: Program, a: Tensor, k: int) -> Tensor:
    """The backward needs what a later write changes."""
    return a * m.mean.clone()


def _replace_buffer(m: Program, a: Tensor, k: int) -> Tensor:
    m.level = m.level * 0.5 + a.detach().float().amax()
    return a + m.level


def _norm(m: Program, a: Tensor, k: int) -> Tensor:
    flat = a.reshape(a.shape[0], -1)
    width = flat.shape[1]
    mean, spread = m.statistics(width)
    return functional.batch_norm(flat, mean, spread, training=True).reshape(a.shape)


def _where_sorted(a: Tensor, k: int) -> Tensor:
    values, places = a.sort(_dim(a, k), descending=bool(k % 2))
    return values + places.to(a.dtype) * 0.01


def _no_grad(a: Tensor) -> Tensor:
    with torch.no_grad():
        return a.tanh()


OPERATIONS: dict[str, Operation] = {
    "tanh": lambda m, a, b, k: a.tanh(),
    "sigmoid": lambda m, a, b, k: a.sigmoid(),
    "relu": lambda m, a, b, k: a.relu(),
    "gelu": lambda m, a, b, k: functional.gelu(a),
    "silu": lambda m, a, b, k: functional.silu(a),
    "leaky": lambda m, a, b, k: functional.leaky_relu(a, 0.1 * (k % 3)),
    "softplus": lambda m, a, b, k: functional.softplus(a),
    "exp": lambda m, a, b, k: a.clamp(-2, 2).exp(),
    "sine": lambda m, a, b, k: a.sin(),
    "square": lambda m, a, b, k: a.clamp(-3, 3).square(),
    "root": lambda m, a, b, k: (a.abs() + 0.1).sqrt(),
    "absolute": lambda m, a, b, k: a.abs(),
    "sign": lambda m, a, b, k: a.sign(),
    "softmax": lambda m, a, b, k: a.softmax(_dim(a, k)),
    "log_softmax": lambda m, a, b, k: a.log_softmax(_dim(a, k)),
    "cumsum": lambda m, a, b, k: a.cumsum(_dim(a, k)),
    "cumprod": lambda m, a, b, k: a.tanh().cumprod(_dim(a, k)),
    "sort": lambda m, a, b, k: _where_sorted(a, k),
    "topk": lambda m, a, b, k: a.topk(1 + k % 2, _dim(a, k)).values,
    "kthvalue": lambda m, a, b, k: a.kthvalue(1, _dim(a, k)).values,
    "median": lambda m, a, b, k: a.median(_dim(a, k)).values,
    "layer_norm": lambda m, a, b, k: functional.layer_norm(a, a.shape[-1:]),
    "rms_norm": lambda m, a, b, k: functional.rms_norm(a, a.shape[-1:]),
    "instance_norm": lambda m, a, b, k: functional.instance_norm(a),
    "group_norm": lambda m, a, b, k: functional.group_norm(a, 2),
    "batch_norm": lambda m, a, b, k: _norm(m, a, k),
    "normalize": lambda m, a, b, k: functional.normalize(a, dim=_dim(a, k)),
    "standardise": lambda m, a, b, k: (a - a.mean(-1, True)) / (a.std(-1, keepdim=True) + 0.1),
    "dropout": lambda m, a, b, k: functional.dropout(a, 0.1 + 0.1 * (k % 4), m.training),
    "feature_dropout": lambda m, a, b, k: functional.dropout1d(a, 0.3, m.training),
    "noise": lambda m, a, b, k: a + 0.1 * torch.randn_like(a),
    "uniform": lambda m, a, b, k: torch.where(torch.rand(a.shape) > 0.4, a, 0.5 * a),
    "bernoulli": lambda m, a, b, k: a * torch.bernoulli(a.detach().sigmoid()),
    "shuffle": lambda m, a, b, k: a[torch.randperm(len(a))],
    "gumbel": lambda m, a, b, k: functional.gumbel_softmax(a, hard=bool(k % 2)),
    "random_relu": lambda m, a, b, k: functional.rrelu(a, training=m.training),
    "transpose": lambda m, a, b, k: a.transpose(-1, _dim(a, k)),
    "flatten": lambda m, a, b, k: a.flatten(1),
    "reshape": lambda m, a, b, k: a.reshape(-1, a.shape[-1]),
    "unsqueeze": lambda m, a, b, k: a.unsqueeze(_dim(a, k)),
    "squeeze": lambda m, a, b, k: a.squeeze(),
    "expand": lambda m, a, b, k: a.unsqueeze(0).expand(2, *a.shape),
    "slice": lambda m, a, b, k: a[..., k % 2 :: 2],
    "chunk": lambda m, a, b, k: _part(a, k),
    "narrow": lambda m, a, b, k: a.narrow(_dim(a, k), 0, max(a.shape[_dim(a, k)] - 1, 1)),
    "flip": lambda m, a, b, k: a.flip(_dim(a, k)),
    "roll": lambda m, a, b, k: a.roll(1 + k % 3, _dim(a, k)),
    "repeat": lambda m, a, b, k: a.repeat_interleave(2, _dim(a, k)),
    "pad": lambda m, a, b, k: functional.pad(a, (1, k % 2)),
    "unfold": lambda m, a, b, k: a.unfold(_dim(a, k), 2, 1),
    "lower": lambda m, a, b, k: a.tril(),
    "contiguous": lambda m, a, b, k: a.transpose(0, -1).contiguous(),
    "clone": lambda m, a, b, k: a.clone(),
    "detach": lambda m, a, b, k: a.detach(),
    "no_grad": lambda m, a, b, k: _no_grad(a),
    "sum": lambda m, a, b, k: a.sum(_dim(a, k), keepdim=bool(k % 2)),
    "mean": lambda m, a, b, k: a.mean(_dim(a, k), keepdim=bool(k % 2)),
    "all_mean": lambda m, a, b, k: a.mean(),
    "amax": lambda m, a, b, k: a.amax(_dim(a, k), keepdim=True),
    "maximum_at": lambda m, a, b, k: a.max(_dim(a, k)).values,
    "logsumexp": lambda m, a, b, k: a.logsumexp(_dim(a, k)),
    "spread": lambda m, a, b, k: a.var(_dim(a, k), correction=0),
    "length": lambda m, a, b, k: (a.square().sum(_dim(a, k)) + 0.1).sqrt(),
    "product": lambda m, a, b, k: a.tanh().prod(_dim(a, k)),
    "add": lambda m, a, b, k: a + b,
    "subtract": lambda m, a, b, k: a - 0.5 * b,
    "multiply": lambda m, a, b, k: a * b.tanh(),
    "divide": lambda m, a, b, k: a / (b.abs() + 1),
    "maximum": lambda m, a, b, k: torch.maximum(a, b),
    "interpolate": lambda m, a, b, k: torch.lerp(a, b, 0.3),
    "where": lambda m, a, b, k: torch.where(a > 0, a, b),
    "mask": lambda m, a, b, k: a.masked_fill(b > 0, 0.25),
    "cat": lambda m, a, b, k: torch.cat([a, b], _dim(a, k)),
    "stack": lambda m, a, b, k: torch.stack([a, b], 0),
    "matmul": lambda m, a, b, k: a @ b.transpose(-1, -2) * 0.2,
    "einsum": lambda m, a, b, k: torch.einsum("...i,...i->...", a, b),
    "outer": lambda m, a, b, k: torch.outer(a.flatten()[:5], b.flatten()[:4]),
    "attention": lambda m, a, b, k: functional.scaled_dot_product_attention(a, b, b),
    "distance": lambda m, a, b, k: torch.cdist(a, b),
    "similarity": lambda m, a, b, k: functional.cosine_similarity(a, b, -1),
    "linear": lambda m, a, b, k: functional.linear(a, m.weight(k, 6, a.shape[-1]), m.weight(k, 6)),
    "square_linear": lambda m, a, b, k: a @ m.weight(k, a.shape[-1], a.shape[-1]),
    "gain": lambda m, a, b, k: a * m.weight(k, a.shape[-1]),
    "gain_by_view": lambda m, a, b, k: a + m.weight(k, 2, a.shape[-1]).t()[:, k % 2],
    "convolve": lambda m, a, b, k: functional.conv1d(a, m.weight(k, 4, a.shape[-2], 2)),
    "pool": lambda m, a, b, k: functional.max_pool1d(a, 2),
    "mean_pool": lambda m, a, b, k: functional.avg_pool1d(a, 2, ceil_mode=True),
    "resize": lambda m, a, b, k: functional.interpolate(a, size=5, mode="linear"),
    "embed": lambda m, a, b, k: functional.embedding(
        (a.detach().abs() * 3).long().clamp(max=6), m.weight(k, 7, 4)
    ),
    "bag": lambda m, a, b, k: functional.embedding_bag(
        (a.detach().abs() * 3).long().clamp(max=6), m.weight(k, 7, 4), mode=("sum", "mean")[k % 2]
    ),
    "one_hot": lambda m, a, b, k: functional.one_hot(a.argmax(-1), 8).to(a.dtype) * a.sum(),
    "gather": lambda m, a, b, k: a.gather(-1, b.argsort(-1)),
    "select": lambda m, a, b, k: a.index_select(_dim(a, k), torch.tensor([0, 0])),
    "index": lambda m, a, b, k: a[torch.tensor([0, -1])],
    "index_add": lambda m, a, b, k: a.index_add(0, torch.tensor([0, 0]), a[:2]),
    "scatter": lambda m, a, b, k: torch.zeros_like(a).scatter_add(-1, b.argsort(-1), a),
    "take": lambda m, a, b, k: torch.take_along_dim(a, a.argsort(-1), -1),
    "bucket": lambda m, a, b, k: a * torch.bucketize(a.detach(), torch.linspace(-1, 1, 4)),
    "double": lambda m, a, b, k: a.double().mul(1.1).float(),
    "half": lambda m, a, b, k: a.bfloat16().mul(1.1).float(),
    "fourier": lambda m, a, b, k: torch.fft.rfft(a).abs(),
    "complex": lambda m, a, b, k: torch.view_as_real(torch.fft.fft(a)).sum(-1),
    "entropy": lambda m, a, b, k: functional.cross_entropy(a, a.argmax(-1)),
    "binary": lambda m, a, b, k: functional.binary_cross_entropy(a.sigmoid(), b.sigmoid().detach()),
    "smooth": lambda m, a, b, k: functional.smooth_l1_loss(a, b, reduction="none"),
    "new_constant": lambda m, a, b, k: a * torch.tensor([0.5, 1.5]).mean(),
    "positions": lambda m, a, b, k: a + torch.arange(a.shape[-1], dtype=a.dtype) * 0.1,
    "add_in_place": lambda m, a, b, k: a.clone().add_(b),
    "chain_in_place": lambda m, a, b, k: (a + 1).mul_(0.5).sub_(b.detach()),
    "relu_in_place": lambda m, a, b, k: (a - 0.1).relu_(),
    "write_into": lambda m, a, b, k: a.add_(0.5),
    "scale_into": lambda m, a, b, k: a.mul_(0.5),
    "set_first": lambda m, a, b, k: _set_first(a, k),
    "write_view": lambda m, a, b, k: _add_view(a, b, k),
    "copy_into": lambda m, a, b, k: torch.zeros_like(a).copy_(b),
    "fill_diagonal": lambda m, a, b, k: a.clone().fill_diagonal_(0.5),
    "write_mean": lambda m, a, b, k: _write_mean(m, a, k),
    "read_mean": lambda m, a, b, k: _read_mean_before(m, a, k),
    "replace_buffer": lambda m, a, b, k: _replace_buffer(m, a, k),
    "read_buffer": lambda m, a, b, k: a + m.level,
    "checkpoint": lambda m, a, b, k: checkpoint(
        lambda x: x.tanh().square(), a, use_reentrant=False
    ),
}

NOT_PROMISED = (
    ("batch_norm", "a_buffer_written_between_forward_and_backward"),
    ("batch_norm", "state_loaded_between_forward_and_backward"),
)
"""Operations with a use in which eager raises and a plan need not: for what was changed in place
and it does not read."""

WRITING = ("write_into", "scale_into")
"""Those that write into a value that others may have been made from."""

LASTING = (*WRITING, "write_mean", "replace_buffer", "batch_norm")
"""Those that do more than to make a value."""
