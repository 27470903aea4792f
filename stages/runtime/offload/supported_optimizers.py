"""Which optimizers can step in the backward."""

from __future__ import annotations

import torch

from ..backward_tracker import backward_optimizer_of
from .parameter_pieces import is_dense, overlapping_pairs
from .piecewise_optimizer import KNOWN_OPTIMIZERS, check_reproducible, check_single_process


def check_supported_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raises RuntimeError where an optimizer cannot step in the backward."""
    kind = type(optimizer)
    if hasattr(optimizer, "keep_gradients"):
        raise RuntimeError(
            "this optimizer steps in the backward of a plan already: take its state_dict(), "
            "close() it, and give a new one that loads that"
        )
    if kind not in KNOWN_OPTIMIZERS:
        known = ", ".join(each.__name__ for each in KNOWN_OPTIMIZERS)
        raise RuntimeError(
            f"{kind.__module__}.{kind.__name__} is not known to update parameters element by "
            f"element: {known} of torch.optim are"
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise RuntimeError("the optimizer has hooks on its step: register them on the new one")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not parameters:
        raise RuntimeError("the optimizer has no parameters")
    for group in optimizer.param_groups:
        for name in ("differentiable", "capturable"):
            if group.get(name):
                raise RuntimeError(f"an optimizer with {name}=True cannot step in the backward")
        check_reproducible(kind, group)
    if len({p.device for p in parameters}) != 1:
        raise RuntimeError("the parameters of the optimizer are on several devices")
    if parameters[0].device.type not in ("cpu", "cuda"):
        raise RuntimeError(f"parameters on {parameters[0].device} have no offload target")
    for parameter in parameters:
        shape = tuple(parameter.shape)
        if not is_dense(parameter):
            raise RuntimeError(f"the elements of a parameter of shape {shape} are not dense")
        if backward_optimizer_of(parameter) is not None:
            raise RuntimeError(
                f"a parameter of shape {shape} is updated in its backward by another optimizer: "
                f"close() that one"
            )
    for one, other in overlapping_pairs(parameters):
        shapes = [tuple(parameters[number].shape) for number in (one, other)]
        raise RuntimeError(
            f"two parameters of the optimizer, of shapes {shapes[0]} and {shapes[1]}, share memory"
        )
    check_single_process()
