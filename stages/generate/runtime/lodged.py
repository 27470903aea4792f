"""What a planned module has beside where its parameters live in another memory, in part."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .chain import Step
from .facts import Interface
from .home import Home
from .mismatch import PlanMismatch


@dataclass(frozen=True)
class Lodged:
    """The home of such parameters, and the `positions` of these among the tensors of a call; of
    several microbatches each but the last one runs the step `adding`, with its facts."""

    home: Home
    positions: tuple[int, ...]
    adding: tuple[Step, Interface] | None = None

    def program(self, step: Step, interface: Interface) -> tuple[Step, Interface]:
        """What a call runs, and its facts."""
        home = self.home
        optimizer = home.optimizer
        if self.adding is not None and optimizer is not None and optimizer.adding:
            step, interface = self.adding
        return functools.partial(step, home), interface

    def plain(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors of a call without these parameters; raises PlanMismatch where another one is
        in the place of such a parameter."""
        home = self.home
        for number, position in enumerate(self.positions):
            if tensors[position] is not home.parameters[number]:
                raise PlanMismatch(
                    f"{home.paths[number]} is another object than when its values were moved to "
                    f"another memory; undo it, or load the plan again"
                )
        remote = set(self.positions)
        return [tensor for position, tensor in enumerate(tensors) if position not in remote]

    def members(self, base: type) -> dict[str, Any]:
        """The methods of such a module, of a class derived from `base`."""
        home = self.home
        own: Any = base

        def state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
            """As that of the model, with copies of all tensors, those that stay on the device
            among them, until the optimiser is closed: what was saved is of one step, whatever is
            trained later."""
            with home.states():
                found = own.state_dict(self, *args, **kwargs)
            own_ones = kwargs.get("keep_vars") or home.left
            return found if own_ones else _copied(found, self, home)

        def load_state_dict(
            self: Any, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
        ) -> Any:
            """As that of the model; a parameter goes to where it lives."""
            if assign and not home.left:
                raise RuntimeError(
                    "load_state_dict(assign=True) would replace parameters that live in another "
                    "memory: leave assign out"
                )
            with home.states():
                return own.load_state_dict(self, state_dict, strict, assign)

        def gathered(self: Any) -> contextlib.AbstractContextManager[None]:
            """Within it all parameters are on the device; see the optimiser's `gathered`."""
            return home.gathered()

        return {"state_dict": state_dict, "load_state_dict": load_state_dict, "gathered": gathered}


def _copied(found: Any, module: torch.nn.Module, home: Home) -> Any:
    """A `state_dict` with copies in place of what the module has on the device."""
    own = (
        each for each in (*module.parameters(), *module.buffers()) if type(each) is not home.kind
    )
    shown = {each.untyped_storage().data_ptr() for each in own}
    for name, value in found.items():
        if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() in shown:
            found[name] = value.clone()
    return found
