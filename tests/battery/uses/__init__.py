"""Ways to use a planned module: a use is a function of a `Run`, entered by `use` or `fast`."""

from tests.battery.registry import USES, Use
from tests.battery.uses import (
    attributes,
    composition,
    concurrent_forwards,
    gradients,
    hooks,
    inputs,
    layers,
    modes,
    optimizers,
    outputs,
    state,
    transforms,
)

__all__ = ["USES", "Use"]

_THEMES = (
    *(gradients, optimizers, concurrent_forwards, inputs, outputs, hooks, state, layers, modes),
    *(attributes, composition, transforms),
)
