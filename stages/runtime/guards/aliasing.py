"""Tensors of a call that are tied to one another where eager's sums or writes differ then."""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch

from ..interface import TensorSpec


class AliasingGuard:
    """Which tensors of a call must not be the same, or share bytes.

    `written` are the paths of the buffers that the step writes, `tied` the inputs that are another
    one, as they were when planned. The parameters at `remote` live in an offload target, alone.
    """

    def __init__(
        self,
        tensors: Sequence[TensorSpec],
        names: Sequence[str],
        written: list[str],
        tied: Container[int] = (),
        remote: Container[int] = (),
    ) -> None:
        self.names = names
        positions = list(enumerate(tensors))
        self.inputs = [at for at, tensor in positions if tensor.kind == "input"]
        self.given = [at for at in self.inputs if tensors[at].requires_grad and at not in tied]
        self.parameters = [at for at, tensor in positions if tensor.kind == "parameter"]
        paths = set(written)
        own = [at for at, tensor in positions if tensor.kind in ("parameter", "buffer")]
        written_at = {at for at in own if tensors[at].path in paths}
        self.own = [at for at in own if at not in remote]
        self.writing = {number for number, at in enumerate(self.own) if at in written_at}
        """Which of the own tensors the step writes, by their place among them."""
        self.apart: list[int] = []
        """Where the model's own tensors, and what it reads beside them, began when they were last
        seen not to overlap."""

    def difference(
        self, tensors: Sequence[torch.Tensor], beside: Sequence[torch.Tensor] = ()
    ) -> str | None:
        """What is tied in a call and must not be, as a sentence; None where nothing is. `beside`
        are tensors that the forward reads and that are none of the call."""
        owners = {id(tensors[at]): at for at in self.parameters}
        if len(owners) < len(self.parameters):
            return self._tied_since(tensors, owners)
        if self.given:
            sentence = self._one_gradient(tensors, owners)
            if sentence is not None:
                return sentence
        if not self.writing:
            return None
        strided = [one for one in beside if one.layout == torch.strided]
        seen = [*(tensors[at] for at in self.own), *strided]
        try:
            starts = [tensor.data_ptr() for tensor in seen]
            return self._written_own(starts, seen) or self._written_input(starts, tensors)
        except RuntimeError:
            return (
                "a tensor of the call has no bytes of its own, as within a transform of functions"
            )

    def _tied_since(self, tensors: Sequence[torch.Tensor], last: dict[int, int]) -> str:
        one = next(at for at in self.parameters if last[id(tensors[at])] != at)
        other = last[id(tensors[one])]
        return (
            f"{self.names[one]} is the same tensor as {self.names[other]}, which it was not when "
            f"the plan was made; plan again with it"
        )

    def _one_gradient(self, tensors: Sequence[torch.Tensor], owners: dict[int, int]) -> str | None:
        for at in self.given:
            tensor = tensors[at]
            edge = (
                id(tensor) if tensor.grad_fn is None else hash((tensor.grad_fn, tensor.output_nr))
            )
            for key in (id(tensor), edge):
                if owners.get(key, at) != at:
                    return (
                        f"{self.names[at]} is the same tensor as {self.names[owners[key]]}, whose "
                        f"gradients eager adds up in another order; give it a clone"
                    )
                owners[key] = at
        return None

    def _written_own(self, starts: list[int], seen: Sequence[torch.Tensor]) -> str | None:
        """A written buffer that shares bytes with another of the model's tensors."""
        if starts == self.apart:
            return None
        spans = sorted(
            (start, start + _extent_bytes(tensor), number)
            for number, (start, tensor) in enumerate(zip(starts, seen, strict=True))
            if tensor.numel()
        )
        reaching: list[tuple[int, int]] = []
        for start, end, number in spans:
            reaching = [one for one in reaching if one[0] > start]
            for _, other in reaching:
                if number in self.writing or other in self.writing:
                    return (
                        f"{self._named(number)} shares its bytes with {self._named(other)}, which "
                        f"it did not when the plan was made, and the step writes there; give it a "
                        f"clone"
                    )
            reaching.append((end, number))
        self.apart = starts
        return None

    def _named(self, number: int) -> str:
        inside = number < len(self.own)
        return self.names[self.own[number]] if inside else "a tensor that the forward reads"

    def _written_input(self, starts: list[int], tensors: Sequence[torch.Tensor]) -> str | None:
        for at in self.inputs:
            storage = tensors[at].untyped_storage()
            first = storage.data_ptr()
            last = first + storage.nbytes()
            for number in self.writing:
                if first <= starts[number] < last:
                    return (
                        f"{self.names[at]} shares its bytes with the buffer "
                        f"{self.names[self.own[number]]}, which the step writes; give it a clone"
                    )
        return None


def _extent_bytes(tensor: torch.Tensor) -> int:
    """The bytes from a tensor's first element to the end of its last one."""
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
