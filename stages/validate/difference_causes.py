"""Why a planned module differs from its original: causes that can be told by running the model."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.runtime.pytree import argument_name, flatten, read_tree
from tightfit.stages.torch_utils.input_masks import all_ones_leaves, replace_masks
from tightfit.stages.torch_utils.model_factory import BuiltModel, Sample
from tightfit.stages.validate.scenarios import (
    SCENARIO_SEEDS,
    STATEFUL_FORWARD_CAUSE,
    Scenario,
    seed_host_random,
)
from tightfit.stages.validate.step_results import compare_results, record_steps
from tightfit.stages.validate.training_step import StepRunner, clear_gradients, copy_sample

if TYPE_CHECKING:
    from tightfit.stages.validate.comparison import Comparer


HOST_RANDOM_CAUSE = (
    "the forward may draw from Python's or NumPy's random numbers, of which the plan has those "
    "that were drawn when it was made: draw from PyTorch's, or give them as an argument"
)
_NONDETERMINISM_CAUSE = (
    "the model differs from itself when its step is repeated, in {first} by up to {largest:g}, so "
    "that no plan can be equal: train within torch.use_deterministic_algorithms(True), and leave "
    "out what reads the clock or memory that nobody has written"
)
_ONES_MASK_CAUSE = (
    "where {names} holds only ones the model goes a shorter way: plan with "
    "assume_all_ones_masks=True (in a configuration ones: true), or leave out a mask that "
    "masks nothing"
)
_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))


def find_difference_cause(comparer: Comparer, one: Scenario, planned: nn.Module, seed: int) -> str:
    """Why a planned module differs in a round, and what to do, as a clause; "" where none of the
    causes that are looked for is found."""
    noted = json.loads(comparer.graph.guards).get("checkpoint_mismatch_causes", [])
    if noted:
        return "; ".join(noted)
    if not comparer.nondeterministic:
        again = compare_results(*(comparer.run(one, comparer.copy_original()) for _ in range(2)))
        if not again.bits_equal:
            return _NONDETERMINISM_CAUSE.format(first=again.first, largest=again.largest)
    given = (comparer.stepper, comparer.samples, seed)
    if depends_on_host_random(comparer.copy_original(), *given):
        return HOST_RANDOM_CAUSE
    names = "" if one.name else _find_ones_masks(comparer, one, planned, seed)
    if names:
        return _ONES_MASK_CAUSE.format(names=names)
    changed = _find_changed_state(comparer.copy_original(), comparer.stepper, comparer.samples[0])
    return f"{STATEFUL_FORWARD_CAUSE} ({', '.join(changed)} changes in a step)" if changed else ""


def depends_on_host_random(
    model: nn.Module, stepper: StepRunner, samples: list[Sample], seed: int
) -> bool:
    """Whether one step of a model depends on Python's and NumPy's random numbers, or would not run
    with others."""
    trails = []
    for other in (seed, *SCENARIO_SEEDS):
        with seed_host_random(other):
            try:
                trail = record_steps(copy.deepcopy(model), stepper, samples[:1], seed, steps=1)
            except Exception:  # whatever the model makes of numbers that it cannot take
                return True
            trails.append(trail)
    return any(not compare_results(trails[0], trail).bits_equal for trail in trails[1:])


def _find_ones_masks(comparer: Comparer, one: Scenario, planned: nn.Module, seed: int) -> str:
    """The names of the inputs of ones without which a planned module does not differ."""
    leaves = all_ones_leaves(BuiltModel(comparer.original, comparer.samples))
    if not leaves:
        return ""
    padded = [replace_masks(comparer.samples[0], leaves, ())]
    try:
        mine, theirs = (
            one.run(module, comparer.stepper, padded, seed)
            for module in (copy.deepcopy(planned), comparer.copy_original())
        )
    except Exception:  # what does not run on other masks does not show that these are the cause
        return ""
    paths = read_tree(flatten(padded[0])[1]).paths("input")
    names = " or ".join(argument_name(paths[leaf]) for leaf in leaves)
    return names if compare_results(mine, theirs).bits_equal else ""


def _find_changed_state(model: nn.Module, stepper: StepRunner, sample: Sample) -> list[str]:
    """The attributes and buffers of a model that one step changes."""
    before = dict(_plain_attributes(model))
    with seed_host_random(0):
        stepper.run(model, copy_sample(sample))
    after = dict(_plain_attributes(model))
    return [name for name in after if before.get(name) != after[name]]


def _plain_attributes(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The plain attributes of a model's modules, and how often each tensor was written, by name."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, _PLAIN_TYPES):
                yield f"{path}.{name}".lstrip("."), value
            elif isinstance(value, torch.Tensor):
                yield f"{path}.{name}".lstrip("."), (id(value), value._version)
    for name, tensor in (*model.named_buffers(), *model.named_parameters()):
        yield name, (id(tensor), tensor._version)


LIBRARY_KERNELS = {
    "aten.cudnn_batch_norm.default": (
        "aten.cudnn_batch_norm.default",
        "aten._batch_norm_with_update_functional.default",
    ),
    "aten._cudnn_rnn.default": (),
}
"""What eager calls of cuDNN, and the operators of a plan that run the same kernels."""


def find_missing_library_kernels(
    graph: Graph, module: nn.Module, stepper: StepRunner, sample: Sample
) -> list[str]:
    """The operators of a library that a step of the original runs more often than a step of the
    graph runs their kernels. The module's buffers change."""
    noting = _DispatchCounter()
    with noting:
        stepper.run(module, sample)
    clear_gradients(module, sample)
    planned = Counter(op.target for op in graph.ops if op.phase == "forward")
    return [
        name
        for name, same in LIBRARY_KERNELS.items()
        if noting.seen[name] > sum(planned[target] for target in same)
    ]


class _DispatchCounter(TorchDispatchMode):
    """Counts the operators that run below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))
