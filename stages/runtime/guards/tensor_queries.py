"""What a forward asked of its tensors, and what each call is to answer as it was when planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import torch

from ..interface import Interface
from .compare import ModelDifference


class TensorQueryGuard:
    """Compares what the forward asked, of tensors with these names."""

    def __init__(self, interface: Interface, names: Sequence[str]) -> None:
        self.names = names
        self.alike = interface.same_object_inputs
        kinds = [tensor.kind for tensor in interface.tensors]
        inputs = [at for at, kind in enumerate(kinds) if kind == "input"]
        own = [at for at, kind in enumerate(kinds) if kind in ("parameter", "buffer")]
        self.asked = [
            (at, *TENSOR_QUERIES[fact])
            for fact, of_input in interface.tensor_queries
            for at in (inputs if of_input else own)
        ]
        self.exact = inputs if ("strides", True) in interface.tensor_queries else []
        self.exact = self.exact + (own if ("strides", False) in interface.tensor_queries else [])
        self.ones = interface.all_ones_inputs
        self.mixed = interface.not_all_ones_inputs

    def check(
        self,
        tensors: Sequence[torch.Tensor],
        modules: Sequence[torch.nn.Module],
        constants: Sequence[torch.Tensor],
        strides: Sequence[tuple[int, ...]],
    ) -> None:
        """Raises Difference where an answer is another one; `constants` are tensors that the
        forward reads and that are no parameters or buffers of the modules, `strides` those that
        the tensors are to have."""
        for at, holds, said in self.asked:
            if not holds(tensors[at]):
                raise ModelDifference(
                    f"{self.names[at]} {said}, which the forward asks for and which was not so "
                    f"when the plan was made"
                )
        for at in self.exact:
            if tensors[at].stride() != strides[at]:
                raise ModelDifference(
                    f"{self.names[at]} has strides {tensors[at].stride()}, the plan was made for "
                    f"{strides[at]} and the forward asks for them"
                )
        for at in self.ones:
            if not _is_ones(tensors[at]):
                raise ModelDifference(
                    f"{self.names[at]} holds more than ones, and the plan rests on it that it is "
                    "ones",
                    "plan with a sample of such contents, too, or with ones=False "
                    "(in Python assume_all_ones_masks=False)",
                )
        for at in self.mixed:
            if _is_ones(tensors[at]):
                raise ModelDifference(
                    f"{self.names[at]} holds nothing but ones, and the plan is for those that hold "
                    "others, too",
                    "plan with a sample of such contents, too",
                )
        if self.alike:
            own = (
                (*vars(m)["_parameters"].values(), *vars(m)["_buffers"].values()) for m in modules
            )
            self._check_alike(tensors, {*map(id, constants), *map(id, chain(*own))})

    def _check_alike(self, tensors: Sequence[torch.Tensor], known: set[int]) -> None:
        first: dict[int, int] = {}
        for at, expected in self.alike:
            found = first.setdefault(id(tensors[at]), at)
            if id(tensors[at]) in known:
                raise ModelDifference(
                    f"{self.names[at]} is a tensor that the model keeps, and the forward asks "
                    "which tensors are one object"
                )
            if found == expected:
                continue
            one, other = self.names[at], self.names[expected if found == at else found]
            was = "is not" if found == at else "is"
            raise ModelDifference(
                f"{one} {was} the same object as {other}, which the forward asks for and which was "
                f"otherwise when the plan was made"
            )


def _is_ones(tensor: torch.Tensor) -> bool:
    return bool((tensor if tensor.dtype == torch.bool else tensor == 1).all())


_PARAMETER_FLAGS = {"_is_param", "_is_buffer"}
TENSOR_QUERIES: dict[str, tuple[Callable[[torch.Tensor], bool], str]] = {
    "leaf": (lambda tensor: tensor.is_leaf, "was computed by autograd, and is no leaf"),
    "view": (lambda tensor: not tensor._is_view(), "is a view of another tensor"),
    "strides": (lambda tensor: True, "has other strides"),
    "offset": (
        lambda tensor: tensor.storage_offset() == 0,
        "does not begin where its storage begins",
    ),
    "hooks": (
        lambda tensor: not (tensor._backward_hooks or tensor._post_accumulate_grad_hooks),
        "has a hook",
    ),
    "conjugate": (lambda tensor: not tensor.is_conj(), "is conjugated as it is read"),
    "negative": (lambda tensor: not tensor.is_neg(), "is negated as it is read"),
    "zero": (lambda tensor: not tensor._is_zerotensor(), "is a zero without memory"),
    "pinned": (lambda tensor: not tensor.is_pinned(), "lies in pinned memory"),
    "shared": (
        lambda tensor: tensor.device.type != "cpu" or not tensor.is_shared(),
        "lies in memory that processes share",
    ),
    "kind": (
        lambda tensor: (
            type(tensor) is torch.Tensor and not _PARAMETER_FLAGS.intersection(vars(tensor))
        ),
        "is a parameter, a buffer or of a class of its own",
    ),
}
"""What holds of a tensor that was just made, with what is said of one of which it does not."""
