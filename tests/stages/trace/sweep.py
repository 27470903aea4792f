"""Modules and functions of PyTorch with inputs, one by one, by name."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(0))
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {}


class Calls(nn.Module):
    """A function of its inputs, the first scaled by a weight."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = copy.deepcopy(function)
        self.weight = nn.Parameter(torch.tensor(1.5))

    def forward(self, first: torch.Tensor, *others: torch.Tensor) -> Any:
        return self.function(first * self.weight, *others)


def case(name: str, function: Callable[..., Any], *args: Any) -> None:
    CASES[name] = (lambda: Calls(function), args)


def of_module(name: str, module: nn.Module, *args: Any) -> None:
    CASES[name] = (lambda: copy.deepcopy(module), args)


rows = draw(3, 6)
image = draw(2, 4, 6, 6)
signal = draw(2, 4, 8)
volume = draw(2, 4, 5, 5, 5)
ACTIVATIONS = (
    "ELU Hardshrink Hardsigmoid Hardtanh Hardswish LeakyReLU LogSigmoid PReLU ReLU "
    "ReLU6 RReLU SELU CELU GELU Sigmoid SiLU Mish Softplus Softshrink Softsign Tanh "
    "Tanhshrink GLU Softmin Softmax LogSoftmax"
)
for n in ACTIVATIONS.split():
    kw = {"dim": -1} if n in ("Softmin", "Softmax", "LogSoftmax") else {}
    mod = getattr(nn, n)(**kw)
    of_module(n, nn.Sequential(nn.Linear(6, 6), mod), rows)
of_module("Threshold", nn.Sequential(nn.Linear(6, 6), nn.Threshold(0.1, 2.0)), rows)
of_module("Softmax2d", nn.Sequential(nn.Conv2d(4, 4, 1), nn.Softmax2d()), image)
of_module(
    "AdaptiveLogSoftmax",
    nn.AdaptiveLogSoftmaxWithLoss(6, 12, [4, 8]),
    rows,
    torch.tensor([1, 5, 9]),
)
for n in ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"):
    of_module(n, getattr(nn, n)(4), {"1": signal, "2": image, "3": volume}[n[-2]])
of_module("BN momentum none", nn.BatchNorm2d(4, momentum=None), image)
of_module("BN notrack", nn.BatchNorm2d(4, track_running_stats=False), image)
of_module("BN eval", nn.BatchNorm2d(4).eval(), image)
of_module("GroupNorm", nn.GroupNorm(2, 4), image)
of_module("LayerNorm", nn.LayerNorm(6), rows)
of_module("RMSNorm", nn.RMSNorm(6), rows)
case("LRN", nn.LocalResponseNorm(2), image)
of_module("InstanceNorm2d", nn.InstanceNorm2d(4, affine=True), image)
case("normalize", lambda x: functional.normalize(x), rows)
pools = {
    "MaxPool1d": (2, signal),
    "MaxPool2d": (2, image),
    "MaxPool3d": (2, volume),
    "AvgPool1d": (2, signal),
    "AvgPool2d": (2, image),
    "AvgPool3d": (2, volume),
    "AdaptiveAvgPool1d": (3, signal),
    "AdaptiveAvgPool2d": (4, image),
    "AdaptiveAvgPool3d": (2, volume),
    "AdaptiveMaxPool1d": (3, signal),
    "AdaptiveMaxPool2d": (4, image),
    "AdaptiveMaxPool3d": (2, volume),
}
for n, (k, x) in pools.items():
    case(n, getattr(nn, n)(k), x)
case("FractionalMaxPool2d", nn.FractionalMaxPool2d(2, output_size=3), image)
case("FractionalMaxPool3d", nn.FractionalMaxPool3d(2, output_size=3), volume)
case("LPPool1d", nn.LPPool1d(2, 2), signal.abs())
case("LPPool2d", nn.LPPool2d(2, 2), image.abs())
case(
    "MaxUnpool2d",
    lambda x: functional.max_unpool2d(*functional.max_pool2d(x, 2, return_indices=True), [2, 2]),
    image,
)
for n in "ReflectionPad1d ReplicationPad1d ZeroPad1d CircularPad1d".split():
    case(n, getattr(nn, n)(2), signal)
for n in "ReflectionPad2d ReplicationPad2d ZeroPad2d CircularPad2d".split():
    case(n, getattr(nn, n)(2), image)
for n in "ReflectionPad3d ReplicationPad3d".split():
    case(n, getattr(nn, n)(1), volume)
case("ConstantPad2d", nn.ConstantPad2d(1, 3.0), image)
for mode, x in (
    ("nearest", image),
    ("bilinear", image),
    ("bicubic", image),
    ("area", image),
    ("nearest-exact", image),
    ("linear", signal),
    ("trilinear", volume),
):
    case("up " + mode, lambda x, mode=mode: functional.interpolate(x, scale_factor=2, mode=mode), x)
case("aa", lambda x: functional.interpolate(x, size=(3, 3), mode="bilinear", antialias=True), image)
numbers = torch.tensor([[1, 2, 4], [4, 3, 2]])
of_module("Embedding", nn.Embedding(10, 3, padding_idx=2), numbers)
of_module("Emb maxnorm", nn.Embedding(10, 3, max_norm=1.0), numbers)
of_module("Emb freq", nn.Embedding(10, 3, scale_grad_by_freq=True), numbers)
for mode in ("sum", "mean", "max"):
    of_module("EmbeddingBag " + mode, nn.EmbeddingBag(10, 3, mode=mode), numbers)
of_module(
    "MHA", nn.MultiheadAttention(8, 2, dropout=0.1), draw(3, 2, 8), draw(4, 2, 8), draw(4, 2, 8)
)
of_module(
    "Enc",
    nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False),
    draw(3, 2, 8),
)
of_module("Dec", nn.TransformerDecoderLayer(8, 2, 16), draw(3, 2, 8), draw(4, 2, 8))
of_module("Transformer", nn.Transformer(8, 2, 1, 1, 16), draw(3, 2, 8), draw(4, 2, 8))
case("Fold", lambda x: functional.fold(functional.unfold(x, 3), (6, 6), 3), image)
case(
    "grid_sample",
    lambda x, g: functional.grid_sample(x, g, align_corners=False),
    image,
    draw(2, 3, 3, 2).tanh(),
)
case(
    "affine_grid",
    lambda t: functional.affine_grid(t, [2, 3, 4, 4], align_corners=False),
    draw(2, 2, 3),
)
case("cosine", lambda a, b: functional.cosine_similarity(a, b), rows, draw(3, 6))
case("pairwise", lambda a, b: functional.pairwise_distance(a, b), rows, draw(3, 6))
case("cdist", torch.cdist, rows, draw(4, 6))
case("pdist", functional.pdist, rows)
of_module("Bilinear", nn.Bilinear(3, 4, 5), draw(2, 3), draw(2, 4))
case("PixelShuffle", nn.PixelShuffle(2), image)
case("PixelUnshuffle", nn.PixelUnshuffle(2), image)
case("ChannelShuffle", nn.ChannelShuffle(2), image)
for n, x in (
    ("Dropout", rows),
    ("Dropout1d", signal),
    ("Dropout2d", image),
    ("Dropout3d", volume),
    ("AlphaDropout", rows),
    ("FeatureAlphaDropout", image),
):
    case(n, getattr(nn, n)(0.3), x)
for n, mod, x in (
    ("Conv1d", nn.Conv1d(4, 4, 3), signal),
    ("Conv2d g", nn.Conv2d(4, 4, 3, groups=2, padding="same"), image),
    ("Conv3d", nn.Conv3d(4, 2, 3), volume),
    ("ConvT1d", nn.ConvTranspose1d(4, 2, 3), signal),
    ("ConvT2d", nn.ConvTranspose2d(4, 2, 3, 2), image),
    ("ConvT3d", nn.ConvTranspose3d(4, 2, 3), volume),
    ("Conv circ", nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), image),
):
    of_module(n, mod, x)
targets = draw(3, 6)
losses = dict(
    L1Loss=(rows, targets),
    MSELoss=(rows, targets),
    HuberLoss=(rows, targets),
    SmoothL1Loss=(rows, targets),
    KLDivLoss=(rows, targets.softmax(1)),
    PoissonNLLLoss=(rows, targets.abs()),
    BCEWithLogitsLoss=(rows, targets.sigmoid()),
    SoftMarginLoss=(rows, targets.sign()),
    HingeEmbeddingLoss=(rows, targets.sign()),
    CrossEntropyLoss=(rows, torch.tensor([1, 2, 5])),
    MultiMarginLoss=(rows, torch.tensor([1, 2, 5])),
    MultiLabelMarginLoss=(rows, torch.tensor([[3, 0, -1, 1, 1, 1]] * 3)),
    MultiLabelSoftMarginLoss=(rows, (targets > 0).float()),
    NLLLoss=(rows, torch.tensor([1, 2, 5])),
    GaussianNLLLoss=(rows, targets, targets.abs() + 0.1),
    CosineEmbeddingLoss=(rows, targets, torch.tensor([1.0, -1, 1])),
    MarginRankingLoss=(rows[0], targets[0], targets[1].sign()),
    TripletMarginLoss=(rows, targets, draw(3, 6)),
)
for n, a in losses.items():
    for red in ("none", "mean", "sum"):
        case(f"{n} {red}", getattr(nn, n)(reduction=red), *a)
case(
    "BCELoss", lambda x, y: functional.binary_cross_entropy(x.sigmoid(), y), rows, targets.sigmoid()
)
case(
    "CE smooth",
    nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.rand(6)),
    rows,
    torch.tensor([1, 2, 5]),
)
case(
    "CTC",
    lambda x, y: functional.ctc_loss(
        x.log_softmax(-1), y, torch.tensor([5, 5]), torch.tensor([2, 2])
    ),
    draw(5, 2, 4),
    torch.tensor([[1, 2], [2, 3]]),
)
of_module("weight_norm", torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), rows)
of_module("spectral_norm", torch.nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)), rows)
of_module("orthogonal", torch.nn.utils.parametrizations.orthogonal(nn.Linear(6, 6)), rows)
case("fft", lambda x: torch.fft.fft(x).abs(), rows)
case("rfft", lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2), rows)
case("fft2", lambda x: torch.fft.ifft2(torch.fft.fft2(x)).real, rows)
case(
    "stft",
    lambda x: torch.stft(x, 8, return_complex=True, window=torch.hann_window(8)).abs(),
    draw(2, 32),
)
case(
    "istft",
    lambda x: torch.istft(
        torch.stft(x, 8, return_complex=True, window=torch.hann_window(8)),
        8,
        window=torch.hann_window(8),
    ),
    draw(2, 32),
)
case("complex", lambda x: (torch.complex(x, x) * (1 + 2j)).imag, rows)
case("einsum", lambda x: torch.einsum("ij,kj->ik", x, x), rows)
case("cumsum", lambda x: x.cumsum(1), rows)
case("cumprod", lambda x: x.cumprod(1), rows)
case("logcumsumexp", lambda x: x.logcumsumexp(1), rows)
case("cummax", lambda x: x.cummax(1)[0], rows)
case("sort", lambda x: x.sort(1)[0], rows)
case("topk", lambda x: x.topk(2)[0], rows)
case("kthvalue", lambda x: x.kthvalue(2)[0], rows)
case("median", lambda x: x.median(1)[0], rows)
case("mode", lambda x: x.mode(1)[0], rows)
case("gather", lambda x: x.gather(1, torch.tensor([[0, 1], [2, 2], [5, 0]])), rows)
case(
    "scatter",
    lambda x: torch.zeros_like(x).scatter(1, torch.tensor([[0, 1], [2, 3], [5, 0]]), x[:, :2]),
    rows,
)
case(
    "scatter_add",
    lambda x: torch.zeros_like(x).scatter_add(1, torch.tensor([[0, 1], [2, 2], [5, 0]]), x[:, :2]),
    rows,
)
case(
    "scatter_reduce",
    lambda x: torch.zeros_like(x[0]).scatter_reduce(
        0, torch.tensor([0, 1, 1, 2, 2, 2]), x[0], "amax"
    ),
    rows,
)
case(
    "index_put",
    lambda x: x.clone().index_put((torch.tensor([0, 0]),), x[1:], accumulate=True),
    rows,
)
case("where", lambda x: torch.where(x > 0, x, x.exp()), rows)
case("index", lambda x: x[[0, 0, 1]], rows)
case("roll", lambda x: x.roll(1, 0).flip(1), rows)
case("norms", lambda x: (x.norm(dim=1), x.norm(p=1, dim=0), torch.linalg.vector_norm(x)), rows)
case("std", lambda x: (x.std(1), x.var(0)), rows)
case("logsumexp", lambda x: x.logsumexp(1), rows)
case("prod", lambda x: x.prod(1), rows)
case("amax", lambda x: (x.amax(1), x.max(), x.max(1)[0]), rows)
case("solve", lambda x: torch.linalg.solve(x @ x.T + torch.eye(3), x), rows)
case("chol", lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(3)), rows)
case("svd", lambda x: torch.linalg.svdvals(x), rows)
case("det", lambda x: torch.linalg.det(x @ x.T), rows)
case("inv", lambda x: torch.linalg.inv(x @ x.T + torch.eye(3)), rows)
case("matexp", lambda x: torch.linalg.matrix_exp(x @ x.T), rows)
case("qr", lambda x: torch.linalg.qr(x.T)[1], rows)
case("eigh", lambda x: torch.linalg.eigvalsh(x @ x.T), rows)
case("gumbel", lambda x: functional.gumbel_softmax(x), rows)
case("gumbel hard", lambda x: functional.gumbel_softmax(x, hard=True), rows)
case("rand", lambda x: x * torch.rand_like(x) + torch.randn(3, 6), rows)
case("bernoulli", lambda x: x * torch.bernoulli(x.sigmoid().detach()), rows)
case("multinomial", lambda x: x.gather(1, torch.multinomial(x.softmax(1).detach(), 2)), rows)
case("randperm", lambda x: x[torch.randperm(3)], rows)
case("normal", lambda x: torch.normal(x.detach(), 1.0) + x, rows)
case("matmul bc", lambda x: x @ x.new_ones(2, 6, 4), rows)
case("baddbmm", lambda x: torch.baddbmm(x, x, x), draw(2, 3, 3))
case(
    "sdpa",
    lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True),
    draw(2, 2, 3, 8),
)
case(
    "sdpa drop",
    lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.2),
    draw(2, 2, 3, 8),
)
case("tensor_split", lambda x: torch.cat(x.tensor_split(4, 1)[::-1], 1), rows)
case("chunk", lambda x: [c * 2 for c in x.unsafe_chunk(3, 1)], rows)
case("onehot", lambda x, i: x @ functional.one_hot(i, 6).to(x.dtype).T, rows, torch.tensor([1, 2]))
case("pad_sequence", lambda x: torch.nn.utils.rnn.pad_sequence([x[0], x[1, :3]]), rows)
case("renorm", lambda x: x.renorm(2, 0, 1.0), rows)
case("lerp", lambda x: x.lerp(x * x, 0.3), rows)
case("dist", lambda x, y: torch.dist(x, y), rows, targets)
case("nanmean", lambda x: x.nanmean(1), rows)
case("trig", lambda x: x.erf() + x.atan2(x * x) + x.lgamma() + x.sinc(), rows)
case("quantile", lambda x: x.quantile(0.3, dim=1), rows)
case("diag", lambda x: torch.diag_embed(x).tril(), rows)
case("trapz", lambda x: torch.trapezoid(x), rows)
case("kron", lambda x: torch.kron(x, x), rows)
case("tensordot", lambda x: torch.tensordot(x, x, ([1], [1])), rows)
case(
    "checkpoint",
    lambda x: torch.utils.checkpoint.checkpoint(lambda y: (y @ y.T).tanh(), x, use_reentrant=False),
    rows,
)
case("unique", lambda x: x.unique(), rows)
case("nonzero", lambda x: x[x > 0], rows)
of_module("RNNCell", nn.RNNCell(6, 4), rows)
of_module("LSTMCell", nn.LSTMCell(6, 4), rows)
of_module("GRUCell", nn.GRUCell(6, 4), rows)
of_module("Flatten", nn.Sequential(nn.Flatten(), nn.Unflatten(1, (2, 3)), nn.Linear(3, 2)), rows)
