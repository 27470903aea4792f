"""Inputs that are tied to one another or to the model's own tensors where eager's sums differ."""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch

from .facts import Tensor


class Ties:
    """Which tensors of a call must not be the same, or share bytes.

    `written` are the paths of the buffers that the step writes, `tied` the inputs that are another
    one, as they were when planned.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        names: Sequence[str],
        written: list[str],
        tied: Container[int] = (),
    ) -> None:
        self.names = names
        positions = list(enumerate(tensors))
        self.inputs = [at for at, tensor in positions if tensor.kind == "input"]
        self.given = [at for at in self.inputs if tensors[at].requires_grad and at not in tied]
        self.parameters = [at for at, tensor in positions if tensor.kind == "parameter"]
        self.written = [at for at, tensor in positions if tensor.path in set(written)]
        self.written = [at for at in self.written if tensors[at].kind == "buffer"]

    def difference(self, tensors: Sequence[torch.Tensor]) -> str | None:
        """What is tied in a call and must not be, as a sentence; None where nothing is."""
        owners = {id(tensors[at]): at for at in self.parameters}
        if len(owners) < len(self.parameters):
            return self._tied_since(tensors, owners)
        if self.given:
            sentence = self._one_gradient(tensors, owners)
            if sentence is not None:
                return sentence
        if self.written and self.inputs:
            return self._written_input(tensors)
        return None

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

    def _written_input(self, tensors: Sequence[torch.Tensor]) -> str | None:
        try:
            starts = [tensors[at].data_ptr() for at in self.written]
            for at in self.inputs:
                storage = tensors[at].untyped_storage()
                first = storage.data_ptr()
                last = first + storage.nbytes()
                for start, buffer in zip(starts, self.written, strict=True):
                    if first <= start < last:
                        return (
                            f"{self.names[at]} shares its bytes with the buffer "
                            f"{self.names[buffer]}, which the step writes; give it a clone"
                        )
        except RuntimeError:
            return (
                "a tensor of the call has no bytes of its own, as within a transform of functions"
            )
        return None
