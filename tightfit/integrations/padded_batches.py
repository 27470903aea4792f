"""The sizes that the batches of a trainer have if its collator pads their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.api.plan_arguments import Sample

CaptureCall = Callable[[Any], "Sample"]
"""Gives the call of a model for a collated batch."""
MAX_ROWS = 100_000
"""Rows of a dataset whose lengths are looked at, at most."""
MIN_DYNAMIC_SIZE = 2
"""The smallest size that a plan with dynamic shapes takes."""


@dataclass(frozen=True)
class PaddedBatches:
    """A batch of the longest rows, and the sizes of others as `torch.export` takes them."""

    sample: Sample
    dynamic_shapes: Mapping[str, Mapping[int, Any]]


def find_padded_batches(
    loader: Any, column: str, batch_size: int, last_rows: int, capture: CaptureCall
) -> PaddedBatches | None:
    """What a data loader pads, None if nothing is padded or nobody can tell.

    The rows with the longest and the shortest entries of a column are collated, as many as a batch
    has and as the smaller last batch of an epoch has: a size that differs between these calls is a
    dynamic one, and sizes that are equal in all of them are one dimension.

    Args:
        loader: The trainer's loader of training data.
        column: Name of the input whose rows have several lengths, such as "input_ids".
        batch_size: Rows of a batch.
        last_rows: Rows of the last batch of an epoch, 0 if it is as large as the others.
        capture: Gives the call of the model for a batch.
    """
    rows = loader.dataset
    lengths = _row_lengths(rows, column)
    if not lengths or min(lengths) == max(lengths) or len(lengths) < batch_size:
        return None
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    groups = [order[:batch_size], order[-batch_size:]]
    groups += [order[:last_rows], order[-last_rows:]] if last_rows else []
    calls = [capture(loader.collate_fn([rows[number] for number in group])) for group in groups]
    sizes = [each for each in map(_named_sizes, calls) if each is not None]
    if len(sizes) < len(calls) or any(each.keys() != sizes[0].keys() for each in sizes):
        return None
    return _padded_batches(calls[0], sizes)


def _padded_batches(
    sample: Sample, sizes: Sequence[Mapping[tuple[str, int], int]]
) -> PaddedBatches | None:
    from torch.export import Dim

    dimensions: dict[tuple[int, ...], Any] = {}
    found: dict[str, dict[int, Any]] = {}
    for (name, axis), largest in sizes[0].items():
        each = tuple(size[name, axis] for size in sizes)
        if len({*each}) == 1:
            continue
        if max(each) != largest:
            return None
        if each not in dimensions:
            label = f"size{len(dimensions)}"
            least = max(min(each), MIN_DYNAMIC_SIZE)
            dimensions[each] = Dim(label, min=least, max=largest) if least < largest else largest
        if not isinstance(dimensions[each], int):
            found.setdefault(name, {})[axis] = dimensions[each]
    return PaddedBatches(sample, found) if found else None


def _row_lengths(dataset: Any, column: str) -> list[int]:
    """The length of a column in each row; none where rows have no such column, or one of several
    dimensions, or are too many."""
    from torch.utils.data import IterableDataset

    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        return []
    rows: Any = dataset
    if len(rows) > MAX_ROWS:
        return []
    try:
        first = rows[0][column]
        if len(getattr(first, "shape", (1,))) != 1 or isinstance(first[0], list | tuple):
            return []  # an image, or a list of lists
        return [len(rows[number][column]) for number in range(len(rows))]
    except Exception:  # a dataset of any kind may fail where it is read otherwise than in training
        return []


def _named_sizes(call: Sample) -> dict[tuple[str, int], int] | None:
    """The sizes of the tensors in a call by argument and axis, None if they are not all arguments
    by name."""
    import torch

    from tightfit.stages.runtime.pytree import flatten

    args, kwargs = call
    own = {name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
    others = [value for name, value in kwargs.items() if name not in own]
    if any(isinstance(leaf, torch.Tensor) for leaf in flatten((args, others))[0]):
        return None
    return {
        (name, axis): size for name, value in own.items() for axis, size in enumerate(value.shape)
    }
