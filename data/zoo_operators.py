"""Neural operators of neuraloperator for `zoo.yaml`: maps between functions on a square grid.

Factories as those of `data.models`.
"""

from __future__ import annotations

import contextlib
import io

import torch
from torch import nn

from data.models import Sample

Factory = tuple[nn.Module, Sample]


def fno(
    layers: int = 3, width: int = 32, modes: int = 12, batch: int = 4, size: int = 32
) -> Factory:
    """FNO: convolutions in Fourier space, complex weights."""
    from neuralop.models import FNO

    model = FNO((modes, modes), 3, 1, width, n_layers=layers)
    return model.train(), (_fields(batch, size), {})


def tfno(
    layers: int = 3, width: int = 32, modes: int = 12, batch: int = 4, size: int = 32
) -> Factory:
    """TFNO: an FNO whose weights are a Tucker decomposition."""
    from neuralop.models import TFNO

    model = TFNO(
        (modes, modes), 3, 1, width, n_layers=layers, rank=0.1, implementation="factorized"
    )
    return model.train(), (_fields(batch, size), {})


def uno(width: int = 16, modes: int = 8, batch: int = 4, size: int = 32) -> Factory:
    """UNO: coarser and finer grids with skips between them."""
    from neuralop.models import UNO

    with _silence():
        model = UNO(
            in_channels=3,
            out_channels=1,
            hidden_channels=width,
            lifting_channels=2 * width,
            projection_channels=2 * width,
            n_layers=3,
            uno_out_channels=[width, 2 * width, width],
            uno_n_modes=[[modes, modes]] * 3,
            uno_scalings=[[1.0, 1.0], [0.5, 0.5], [2.0, 2.0]],
            horizontal_skips_map={2: 0},
            channel_mlp_skip="linear",
        )
    return model.train(), (_fields(batch, size), {})


def codano(width: int = 8, modes: int = 8, batch: int = 2, size: int = 32) -> Factory:
    """CODANO: attention between the variables of a field."""
    from neuralop.models import CODANO

    with _silence():
        model = CODANO(
            lifting_channels=width,
            hidden_variable_codimension=width,
            projection_channels=width,
            n_layers=2,
            n_modes=[[modes, modes]] * 2,
            n_heads=[2, 2],
            per_layer_scaling_factors=[[1, 1]] * 2,
            attention_scaling_factors=[1, 1],
            attention_token_dim=width // 2,
        )
    return model.train(), (_fields(batch, size), {})


def _fields(batch: int, size: int) -> tuple[torch.Tensor]:
    return (torch.randn(batch, 3, size, size),)


def _silence() -> contextlib.AbstractContextManager[object]:
    """Within it nothing is printed: some models tell their settings while they are made."""
    return contextlib.redirect_stdout(io.StringIO())
