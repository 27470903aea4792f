"""What is said of side effects of a forward that a plan cannot have."""

from __future__ import annotations

from typing import Any

from tightfit.stages.trace.code_inspection import short_path
from tightfit.util.errors import ModelError


def checkpointed_effect_error(label: str, changed: str) -> ModelError:
    """What is raised for side effects of a forward that checkpoints parts of itself."""
    return ModelError(
        f"{label}: the forward changes {changed} and checkpoints parts of itself, which eager runs "
        "a second time in the backward, with their changes: plan it without its own checkpointing, "
        "in whose place the plan comes"
    )


def repeated_effect_error(label: str, changed: str) -> ModelError:
    """What is raised for side effects of a layer that a function of autograd runs again."""
    return ModelError(
        f"{label}: the forward changes {changed}, and a function of autograd runs that layer again "
        "in the backward, which changes it once more: plan the model without this function if it "
        "only saves memory, or return what the layer stores"
    )


def carried_state_message(sentence: str, of_list: bool) -> str:
    """The sentence on a change with what is said where the forward reads what it changes."""
    what = sentence.removesuffix(sentence[sentence.index(", which a plan would not do") :])
    if of_list:
        return (
            f"{what} and reads it, with what earlier steps have left there, which a plan does not "
            "carry from step to step; let each call make a list of its own"
        )
    return (
        f"{what} and reads there what an earlier step has left, which a plan does not carry from "
        "step to step; keep it in a buffer (register_buffer), or give it as an argument"
    )


def closure_change_message(name: str, function: Any) -> str:
    """A variable around a function that the forward sets."""
    code = function.__code__
    return (
        f"the forward sets {name}, which {function.__qualname__} at "
        f"{short_path(code.co_filename)}:{code.co_firstlineno} has from around it (nonlocal), and "
        "a plan would not do so; keep it in an attribute of the model"
    )
