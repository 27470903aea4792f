"""The states of an optimizer whose parameters are updated in the backward."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch


class OptimizerStates(Mapping[Any, Any]):
    """The states of an optimiser by parameter, fetched whenever they are looked at. They are
    copies: unless they are to be `taken` away, they refuse to be changed in place, as tensors of
    inference mode do."""

    def __init__(self, optimizer: Any, taken: bool = False) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.taken = taken

    def __getitem__(self, parameter: Any) -> Any:
        owner: Any = self.optimizer()
        number = owner._numbers.get(id(parameter))
        if number not in owner._updates.keys:
            raise KeyError(parameter)
        with torch.inference_mode(not self.taken):
            return owner._updates.states(number)

    def __iter__(self) -> Iterator[Any]:
        owner: Any = self.optimizer()
        return (owner._updates.parameters[number] for number in sorted(owner._updates.keys))

    def __len__(self) -> int:
        owner: Any = self.optimizer()
        return len(owner._updates.keys)
