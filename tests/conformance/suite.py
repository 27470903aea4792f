"""What a suite is: groups of cases by name, each made in the process that plans them."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.battery.case import Case


@dataclass(frozen=True)
class Group:
    """The samples of one operator, layer or architecture; `cases` makes them all from a seed. They
    are planned with operators of these `namespaces`."""

    name: str
    cases: Callable[[int], Sequence[Case]]
    namespaces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """A suite by name; `groups` are found when they are asked for. `missing` says why a suite
    cannot run on this machine."""

    name: str
    groups: Callable[[], Sequence[Group]]
    missing: Callable[[], str] = lambda: ""


@dataclass(frozen=True)
class Selection:
    """Which cases of a group are run: each `total`-th from one on, or `sample` of them at random.

    Both depend on the name of the group, so that a share has cases of all kinds."""

    share: int = 0
    total: int = 1
    sample: int | None = None
    seed: int = 0

    def numbers(self, group: str, count: int) -> list[int]:
        """The numbers of the cases that are run, of `count`, in order."""
        if self.sample is not None:
            chance = random.Random(f"{self.seed} {group}")
            return sorted(chance.sample(range(count), min(self.sample, count)))
        first = zlib.crc32(group.encode())
        return [number for number in range(count) if (first + number) % self.total == self.share]


def seed_everything(seed: int) -> None:
    """Seeds the random numbers of Python, NumPy and PyTorch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def copy_inputs(tree: Any) -> Any:
    """The same structure with tensors of their own, in the same strides and with the same
    `requires_grad`; a tensor in several places stays one."""
    copies: dict[int, Tensor] = {}

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = _copy_tensor(leaf)
        return copies[id(leaf)]

    return pytree.tree_map(copied, tree)


def _copy_tensor(tensor: Tensor) -> Tensor:
    plain = tensor.detach()
    if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg() or not tensor.numel():
        copy = plain.clone()
    else:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        extent = 1 + sum((size - 1) * stride for size, stride in steps)
        whole = plain.as_strided((extent,), (1,)).clone()
        copy = torch.empty(0, dtype=tensor.dtype)
        copy.set_(whole.untyped_storage(), 0, tensor.shape, tensor.stride())
    return copy.requires_grad_(tensor.requires_grad)
