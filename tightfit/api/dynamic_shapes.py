"""`dynamic_shapes` of `plan`: whether a plan can have them, and samples of the largest sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tightfit.api.multi_shape_module import call_signature
from tightfit.util.errors import ConfigError
from tightfit.util.strategies import STRATEGIES

if TYPE_CHECKING:
    from tightfit.stages.torch_utils.model_factory import BuiltModel


def check_dynamic_shapes(
    dynamic_shapes: object, plans: object, strategy: str, others: Mapping[str, object]
) -> None:
    """Raises ConfigError where a plan with dynamic shapes, or two, cannot be made as it is asked
    for: `others` are options of `plan`, by name, which must not be given."""
    if isinstance(plans, bool) or plans not in (1, 2):
        raise ConfigError(f"plan: plans is {plans!r}, expected 1 or 2")
    if dynamic_shapes is None:
        if plans == 2:
            raise ConfigError(
                "plan: plans=2 needs dynamic_shapes, of which the second plan takes the small "
                "sizes: give them, or samples of several shapes, which have a plan each"
            )
        return
    for name, given in others.items():
        if given:
            raise ConfigError(
                f"plan: dynamic_shapes and {name} exclude each other for now: leave one of them "
                "out, or give samples of several shapes"
            )
    if STRATEGIES[strategy].links:
        raise ConfigError(
            f"plan: dynamic_shapes is not for the strategy {strategy}, which sends tensors away "
            'whose places do not change: take another one, as strategy="auto"'
        )


def with_dynamic_shapes(
    given: Sequence[BuiltModel], dynamic_shapes: Any, plans: int = 1
) -> list[BuiltModel]:
    """The samples, which are of one shape and apart where they have masks of other kinds, enlarged
    to the largest sizes of their dynamic dimensions, as `dynamic_axes` reads these; the calls of
    one kind have at most so many `plans`.

    Raises:
        ConfigError: They are of several shapes, or the dimensions are none that a plan can have.
    """
    from tightfit.stages.torch_utils.dynamic_axes import with_dynamic_axes
    from tightfit.stages.torch_utils.sample_sizes import resize_samples

    if len({call_signature(*built.samples[0]) for built in given}) > 1:
        raise ConfigError(
            "plan: dynamic_shapes takes samples of one shape, of which all other sizes are made, "
            "and is given several: leave samples out"
        )
    first = with_dynamic_axes(given[0], dynamic_shapes, plans=plans)
    assert first.dynamic is not None
    largest = first.dynamic.largest
    rest = [resize_samples(replace(one, dynamic=first.dynamic), largest) for one in given[1:]]
    return [first, *rest]
