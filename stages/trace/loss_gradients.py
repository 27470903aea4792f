"""Which outputs a loss function sends gradients to, found on tensors without memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tightfit.stages.runtime.pytree import read_tree
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.trace.canonicalize.layout import storage_key
from tightfit.stages.trace.capture_errors import has_data_dependent_shape, is_data_dependent
from tightfit.stages.trace.forward import CapturedLeaf
from tightfit.util.errors import ModelError


def output_gradients(
    built: BuiltModel, outputs: Sequence[torch.Tensor], leaves: list[CapturedLeaf], tree: str
) -> list[torch.Tensor | None]:
    """The gradient of each output, None where the loss sends none, as fake tensors.

    Raises ModelError when the loss fails, is not a scalar that depends on an output, or gives a
    gradient in memory that it has not made.
    """
    making = _FreshStorageMode()
    with _evaluate_loss(built, outputs, leaves, tree, making) as (grown, loss), making:
        found = _gradients(loss.reshape(()), grown)
    if any(each is not None and storage_key(each) not in making.made for each in found):
        raise ModelError(
            f"{built.label}: the loss gives a gradient of an output in memory that it has not made "
            "for it, as that of an output or of a tensor that it keeps: give a copy of it "
            "(clone), or plan without loss, and compute it from what the planned module gives"
        )
    return found


class _FreshStorageMode(TorchDispatchMode):
    """Notes the storages that operators make."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.made: set[Any] = set()
        self._known: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(self._fresh(func, result)):
            if isinstance(leaf, torch.Tensor):
                self.made.add(storage_key(leaf))
                self._known.append(leaf)
        return result

    def _fresh(self, func: Any, result: Any) -> Any:
        """Of what an operator gives, what is no view of what it is given, and not the same."""
        schema = getattr(func, "_schema", None)
        if schema is None or func is torch.ops.aten.lift_fresh.default:
            return result
        fresh = [returned.alias_info is None for returned in schema.returns]
        results = [result] if len(fresh) == 1 else result or ()
        return [each for each, own in zip(results, fresh, strict=True) if own]


def outputs_with_seed_gradient(
    built: BuiltModel, outputs: Sequence[torch.Tensor], leaves: list[CapturedLeaf], tree: str
) -> set[int]:
    """The numbers of the outputs whose gradient is the one that the loss itself is given, or a view
    of it, as where the model computes its loss: `backward` holds that one until it returns."""
    with _evaluate_loss(built, outputs, leaves, tree) as (grown, loss):
        given = torch.ones_like(loss)
        found = enumerate(_gradients(loss, grown, given))
        return {
            number
            for number, gradient in found
            if gradient is not None and storage_key(gradient) == storage_key(given)
        }


def _gradients(
    loss: torch.Tensor, grown: list[torch.Tensor], given: torch.Tensor | None = None
) -> list[torch.Tensor | None]:
    wanted = [tensor for tensor in grown if tensor.requires_grad]
    found = iter(torch.autograd.grad(loss, wanted, given, allow_unused=True))
    return [next(found) if tensor.requires_grad else None for tensor in grown]


@contextlib.contextmanager
def _evaluate_loss(
    built: BuiltModel,
    outputs: Sequence[torch.Tensor],
    leaves: list[CapturedLeaf],
    tree: str,
    making: _FreshStorageMode | None = None,
) -> Iterator[tuple[list[torch.Tensor], torch.Tensor]]:
    """Leaves that stand for the outputs, and the loss that is made of them, without memory."""
    assert built.loss is not None
    mode = outputs[0].fake_mode  # type: ignore[attr-defined]
    allowed, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        with mode, torch.enable_grad():
            grown = [_loss_input(output) for output in outputs]
            flat = [leaf.constant if leaf.tensor is None else grown[leaf.tensor] for leaf in leaves]
            with making or contextlib.nullcontext():
                loss = built.loss(read_tree(tree).unflatten(flat))
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise ModelError(
                    f"{built.label}: the loss is no scalar tensor that depends on an output"
                )
            yield grown, loss
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{built.label}: the loss {_loss_error_message(error)}") from error
    finally:
        mode.allow_non_fake_inputs = allowed


def _loss_error_message(error: Exception) -> str:
    """Why a loss cannot be planned, and what helps."""
    first = (str(error).strip().splitlines() or [""])[0]
    if is_data_dependent(error) or has_data_dependent_shape(error):
        return (
            f"asks for the data of a tensor, or has shapes that depend on it ({first}): plan "
            "without loss, and compute it from what the planned module gives"
        )
    return f"raises {type(error).__name__}: {first}"


def _loss_input(output: torch.Tensor) -> torch.Tensor:
    differentiable = output.is_floating_point() or output.is_complex()
    return output.detach().requires_grad_(differentiable)
