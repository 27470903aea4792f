"""Which inputs a group may write over: those where its kernel in place has the bits of the other
one and takes fewer bytes, as measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tightfit.schemas.graph import NONE, Graph, Op
from tightfit.schemas.groups import Body, body_of, is_group, overwritten_output
from tightfit.stages.device.devices import kept_random_states
from tightfit.stages.device.groups import filled, forms_of, kernel
from tightfit.stages.device.kernels import Form, Kernel, Over
from tightfit.stages.device.meter import measure

Judge = Callable[[Body, Over], bool]
"""Whether a group may write an output over an input."""
Report = Callable[[int, int], None]

WORTH = 0.01
"""What is overwritten is at least so much of the largest storage that the step makes: it takes time
to compile a kernel."""


def distinct_forms(graph: Graph) -> list[tuple[Body, Over]]:
    """What `with_forms_in_place` judges: each form in place of each distinct group, once."""
    return [(body_of(op), over) for (_, over), op in _distinct(graph, _worth(graph)).items()]


def with_forms_in_place(graph: Graph, judge: Judge, report: Report | None = None) -> Graph:
    """The graph whose groups say which of their inputs they may overwrite; each form of each
    distinct group that is `WORTH` it is judged once, and `report` is told how many are, of how
    many."""
    forms = _worth(graph)
    distinct = _distinct(graph, forms)
    taken = set()
    for number, ((target, over), op) in enumerate(distinct.items()):
        if report is not None:
            report(number, len(distinct))
        if judge(body_of(op), over):
            taken.add((target, over))
    return replace(graph, ops=[_told(op, forms.get(op.id, {}), taken) for op in graph.ops])


def _worth(graph: Graph) -> dict[int, dict[int, Over]]:
    """The forms in place of each group that may be worth it, by its id and the value that is
    overwritten."""
    made = set(range(len(graph.storages))) - graph.fixed_storages()
    least = WORTH * max((graph.storages[storage] for storage in made), default=0)
    return {op.id: _forms(graph, op, least) for op in graph.ops if is_group(op.target)}


def _distinct(graph: Graph, forms: dict[int, dict[int, Over]]) -> dict[tuple[str, Over], Op]:
    """The forms in place of distinct groups, each with a group that has it."""
    return {
        (graph.ops[at].target, over): graph.ops[at]
        for at, found in forms.items()
        for over in found.values()
    }


def _forms(graph: Graph, op: Op, least: float) -> dict[int, Over]:
    """The forms in place that a group may have, by the value that is overwritten, of at least so
    many bytes."""
    large = [v for v in op.inputs if graph.storages[graph.values[v].storage] >= least]
    placed = {value: overwritten_output(graph, op, value) for value in large}
    return {
        value: Over(op.inputs.index(value), output)
        for value, output in placed.items()
        if output is not None and op.outputs[output] != NONE
    }


def _told(op: Op, forms: dict[int, Over], taken: set[tuple[str, Over]]) -> Op:
    values = [value for value, over in forms.items() if (op.target, over) in taken]
    return replace(op, in_place=values) if is_group(op.target) else op


def exact_and_smaller(body: Body, over: Over, device: torch.device) -> bool:
    """Whether the kernel in place compiles, has the bits of the other kernel, leaves what else it
    reads as it is, and takes fewer bytes; it runs on a few contents."""
    try:
        plain, written = kernel(body, device), kernel(body, device, over)
        with kept_random_states():
            return _compared(plain, written, forms_of(body.inputs), over.input, device)
    except RuntimeError:
        return False


def _compared(
    plain: Kernel, written: Kernel, forms: list[Form], position: int, device: torch.device
) -> bool:
    for fill in (torch.Tensor.normal_, positive):
        given = [filled(form, fill, device) for form in forms]
        before = [tensor.clone() for tensor in given]
        usage, expected = measure(device, lambda given=given: plain(given))  # type: ignore[misc]
        less, found = measure(device, lambda given=given: written(given))  # type: ignore[misc]
        rest = [at for at in range(len(given)) if at != position]
        same = same_bits(found, expected) and same_bits(
            [given[at] for at in rest], [before[at] for at in rest]
        )
        if not (same and less.peak < usage.peak):
            return False
    return True


def positive(tensor: Tensor) -> Tensor:
    """Fills a tensor with numbers above zero."""
    return tensor.uniform_(0.5, 1.5)


def same_bits(mine: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether tensors have the same bits, or both no number."""
    return all(map(_alike, mine, others))


def _alike(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    odd = one.isnan() & other.isnan()
    signs = (one.signbit() == other.signbit()) | odd
    return bool((((one == other) & signs) | odd).all())
