"""Models of which a part is planned already when the whole is planned."""

from __future__ import annotations

import tempfile
from pathlib import Path

from torch import nn

from tests.battery.case import SEED, Case
from tests.battery.cases import rows
from tests.battery.models import Heads, Inside, Mlp
from tests.stages.generate.plans import generated, recompute
from tightfit.stages.trace.trace import trace


def planned_part() -> nn.Module:
    """A model that holds a planned module, of the numbers that the plain one has."""
    whole = Inside(Mlp())
    part = Case("part", Mlp, rows)
    graph = trace(part.built(), "part")
    place = Path(tempfile.mkdtemp()) / "module"
    load = generated(graph, place, recompute(graph, SEED, 0.5)).load
    whole.part = load(whole.part)
    return whole


class Pair(nn.Module):
    """One part that two others share."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Mlp()
        self.two = Heads()
        self.again = self.one

    def forward(self, x: object) -> object:
        return self.two(self.again(self.one(x)))


COMPOSED = (
    Case("planned inside", lambda: Inside(Mlp()), rows, planned=planned_part),
    Case("a part twice", Pair, rows),
)
