"""Which inputs a group may write over: those where its kernel in place has the bits of the other
one and takes fewer bytes, as measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tightfit.schemas.graph.fused_groups import (
    GroupBody,
    in_place_output,
    is_fused_group,
    read_group_body,
)
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, Op
from tightfit.stages.runtime.kernels.compile import InPlaceKernel, Kernel, TensorForm
from tightfit.stages.torch_utils.devices import preserve_random_states
from tightfit.stages.torch_utils.fused_group_operators import fill_form, group_kernel, tensor_forms
from tightfit.stages.torch_utils.memory_meter import measure_call_memory
from tightfit.util.progress import ProgressCallback

InplaceKernelJudge = Callable[[GroupBody, InPlaceKernel], bool]
"""Whether a group may write an output over an input."""

MIN_STORAGE_SHARE = 0.01
"""What is overwritten is at least so much of the largest storage that the step makes: it takes time
to compile a kernel."""


def distinct_inplace_kernels(graph: Graph) -> list[tuple[GroupBody, InPlaceKernel]]:
    """What `add_inplace_kernels` judges: each form in place of each distinct group, once."""
    return [
        (read_group_body(op), over)
        for (_, over), op in _distinct_candidates(graph, _candidates(graph)).items()
    ]


def add_inplace_kernels(
    graph: Graph, judge: InplaceKernelJudge, report: ProgressCallback | None = None
) -> Graph:
    """The graph whose groups say which of their inputs they may overwrite; each form of each
    distinct group that is `MIN_STORAGE_SHARE` it is judged once, and `report` is told how many are,
    of how many."""
    forms = _candidates(graph)
    distinct = _distinct_candidates(graph, forms)
    taken = set()
    for number, ((target, over), op) in enumerate(distinct.items()):
        if report is not None:
            report(number, len(distinct), "")
        if judge(read_group_body(op), over):
            taken.add((target, over))
    return replace(
        graph, ops=[_set_inplace_inputs(op, forms.get(op.id, {}), taken) for op in graph.ops]
    )


def _candidates(graph: Graph) -> dict[int, dict[int, InPlaceKernel]]:
    """The forms in place of each group that may be worth it, by its id and the value that is
    overwritten."""
    made = set(range(len(graph.storages))) - graph.baseline_storages()
    least = MIN_STORAGE_SHARE * max((graph.storages[storage] for storage in made), default=0)
    return {
        op.id: _candidates_of_group(graph, op, least)
        for op in graph.ops
        if is_fused_group(op.target)
    }


def _distinct_candidates(
    graph: Graph, forms: dict[int, dict[int, InPlaceKernel]]
) -> dict[tuple[str, InPlaceKernel], Op]:
    """The forms in place of distinct groups, each with a group that has it."""
    return {
        (graph.ops[at].target, over): graph.ops[at]
        for at, found in forms.items()
        for over in found.values()
    }


def _candidates_of_group(graph: Graph, op: Op, least: float) -> dict[int, InPlaceKernel]:
    """The forms in place that a group may have, by the value that is overwritten, of at least so
    many bytes."""
    large = [v for v in op.inputs if graph.storages[graph.values[v].storage] >= least]
    placed = {value: in_place_output(graph, op, value) for value in large}
    return {
        value: InPlaceKernel(op.inputs.index(value), output)
        for value, output in placed.items()
        if output is not None and op.outputs[output] != NO_VALUE
    }


def _set_inplace_inputs(
    op: Op, forms: dict[int, InPlaceKernel], taken: set[tuple[str, InPlaceKernel]]
) -> Op:
    values = [value for value, over in forms.items() if (op.target, over) in taken]
    return replace(op, in_place=values) if is_fused_group(op.target) else op


def is_exact_and_smaller(body: GroupBody, over: InPlaceKernel, device: torch.device) -> bool:
    """Whether the kernel in place compiles, has the bits of the other kernel, leaves what else it
    reads as it is, and takes fewer bytes; it runs on a few contents."""
    try:
        plain, written = group_kernel(body, device), group_kernel(body, device, over)
        with preserve_random_states():
            return _is_better_kernel(plain, written, tensor_forms(body.inputs), over.input, device)
    except RuntimeError:
        return False


def _is_better_kernel(
    plain: Kernel, written: Kernel, forms: list[TensorForm], position: int, device: torch.device
) -> bool:
    for fill in (torch.Tensor.normal_, fill_positive):
        given = [fill_form(form, fill, device) for form in forms]
        before = [tensor.clone() for tensor in given]
        usage, expected = measure_call_memory(device, lambda given=given: plain(given))  # type: ignore[misc]
        less, found = measure_call_memory(device, lambda given=given: written(given))  # type: ignore[misc]
        rest = [at for at in range(len(given)) if at != position]
        same = same_bits(found, expected) and same_bits(
            [given[at] for at in rest], [before[at] for at in rest]
        )
        if not (same and less.peak < usage.peak):
            return False
    return True


def fill_positive(tensor: Tensor) -> Tensor:
    """Fills a tensor with numbers above zero."""
    return tensor.uniform_(0.5, 1.5)


def same_bits(mine: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether tensors have the same bits, or both no number."""
    return all(map(_has_same_bits, mine, others))


def _has_same_bits(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    odd = one.isnan() & other.isnan()
    signs = (one.signbit() == other.signbit()) | odd
    return bool((((one == other) & signs) | odd).all())
