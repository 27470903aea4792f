"""Chains for pipelines: the known cases, random ones, and every allocation of a short one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tightfit.schemas.chain import Chain, ChainPosition
from tightfit.schemas.pipeline_devices import PipelineLink
from tightfit.stages.combine.pipeline.allocation import Allocation, Stage
from tightfit.stages.combine.pipeline.layers import NO_LIMIT, PipelineLayers, layers_of_chain

CASES = Path(__file__).parents[3] / "cases"
ENOUGH = NO_LIMIT - 1


def cases(family: str) -> list[dict[str, Any]]:
    return json.loads((CASES / f"{family}.json").read_text())["cases"]


def chain_of_case(case: dict[str, Any]) -> Chain:
    """The chain of a case, in which a backward reads nothing but inputs."""
    nothing = [0] * (case["L"] + 1)
    outputs, weights = case.get("a", nothing), case.get("w", nothing)
    rows = [
        ChainPosition(l, case["u_f"][l], case["u_b"][l], outputs[l], outputs[l], outputs[l], 0, 0,
                 weights[l], 0, "")
        for l in range(1, case["L"] + 1)  # noqa: E741
    ]  # fmt: skip
    return Chain(rows, outputs[0], outputs[0])


def wire_of_case(case: dict[str, Any]) -> PipelineLink:
    return PipelineLink(case.get("bandwidth") or math.inf)


def layers_of_case(case: dict[str, Any]) -> PipelineLayers:
    copies, buffers = case.get("weight_copies", 3), case.get("buffers", True)
    return layers_of_chain(chain_of_case(case), wire_of_case(case), copies, buffers)


def names_of(count: int) -> tuple[str, ...]:
    return tuple(f"cuda:{number}" for number in range(count))


TIMES = st.integers(0, 12).map(lambda quarters: quarters / 4)
BYTES = st.integers(0, 5)


@st.composite
def chains(draw: st.DrawFn, longest: int = 5, temporary: bool = True) -> Chain:
    """Chains whose backwards read more than inputs, some layers of which take no time."""
    count = draw(st.integers(1, longest))
    rows = []
    for number in range(1, count + 1):
        output = draw(BYTES)
        work = BYTES if temporary else st.just(0)
        rows.append(
            ChainPosition(
                number, draw(TIMES), draw(TIMES), output, output + draw(BYTES), draw(BYTES),
                draw(work), draw(work), draw(BYTES), 0, "",
            )
        )  # fmt: skip
    return Chain(rows, draw(BYTES), draw(BYTES))


@st.composite
def pipelines(draw: st.DrawFn, longest: int = 5, most: int = 3) -> tuple[PipelineLayers, int, int]:
    """Layers, a number of devices, and bytes for each that may or may not be enough."""
    chain = draw(chains(longest))
    wire = PipelineLink(draw(st.sampled_from([1.0, 2.0, 4.0, math.inf])))
    layers = layers_of_chain(chain, wire, draw(st.integers(1, 3)), draw(st.booleans()))
    return layers, draw(st.integers(1, most)), draw(st.integers(5, 70))


def partitions(count: int, most: int) -> Iterator[list[tuple[int, int]]]:
    """All ways to cut layers 1..count into at most `most` stages."""
    for pieces in range(1, min(count, most) + 1):
        for cuts in combinations(range(1, count), pieces - 1):
            ends = [*cuts, count]
            yield [(first + 1, last) for first, last in zip([0, *cuts], ends, strict=True)]


def contiguous(layers: PipelineLayers, names: tuple[str, ...]) -> Iterator[Allocation]:
    """All contiguous allocations, devices in order."""
    for stages in partitions(layers.count, len(names)):
        made = tuple(Stage(*stage, device) for device, stage in enumerate(stages))
        yield Allocation(layers, made, names)


def allocations(layers: PipelineLayers, names: tuple[str, ...]) -> Iterator[Allocation]:
    """All allocations, the devices numbered as they come, a stage for every layer."""
    for devices in product(range(len(names)), repeat=layers.count):
        seen: list[int] = []
        for device in devices:
            if device not in seen:
                seen.append(device)
        if seen == sorted(seen) and seen == list(range(len(seen))):
            made = tuple(Stage(l, l, d) for l, d in enumerate(devices, start=1))  # noqa: E741
            yield Allocation(layers, made, names)
