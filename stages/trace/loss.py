"""Which outputs a loss function sends gradients to, found on tensors without memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils import _pytree as pytree

from schemas.errors import ModelError
from stages.device.factory import Built
from stages.trace.capture import Leaf


def output_gradients(
    built: Built, outputs: Sequence[torch.Tensor], leaves: list[Leaf], tree: pytree.TreeSpec
) -> list[torch.Tensor | None]:
    """The gradient of each output, None where the loss sends none, as fake tensors.

    Raises ModelError when the loss fails or is not a scalar that depends on an output.
    """
    assert built.loss is not None
    mode = outputs[0].fake_mode  # type: ignore[attr-defined]
    allowed, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        with mode, torch.enable_grad():
            grown = [_leaf(output) for output in outputs]
            flat = [leaf.constant if leaf.tensor is None else grown[leaf.tensor] for leaf in leaves]
            loss = built.loss(pytree.tree_unflatten(flat, tree))
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise ModelError(
                    f"{built.label}: the loss is no scalar tensor that depends on an output"
                )
            wanted = [tensor for tensor in grown if tensor.requires_grad]
            found = iter(torch.autograd.grad(loss.reshape(()), wanted, allow_unused=True))
            return [next(found) if tensor.requires_grad else None for tensor in grown]
    except ModelError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise ModelError(
            f"{built.label}: the loss raises {type(error).__name__}: {first}"
        ) from error
    finally:
        mode.allow_non_fake_inputs = allowed


def _leaf(output: torch.Tensor) -> torch.Tensor:
    differentiable = output.is_floating_point() or output.is_complex()
    return output.detach().requires_grad_(differentiable)
