"""Small blocks: random ones, and one whose options are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from hypothesis import strategies as st

from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.graph.planning_graph import (
    InPlaceVariant,
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
    RecomputeVariant,
)
from tightfit.schemas.link import HostLink
from tightfit.stages.simulate.block import (
    BlockCost,
    BlockSchedule,
    check_execution_order,
    simulate_block,
)
from tightfit.stages.simulate.unroll import UnrolledStage
from tightfit.stages.solve.heuristics import remove_unneeded_recomputes
from tightfit.stages.solve.search import OptionGrid, search_block
from tightfit.util.solver_engines import BlockSolver


def node(
    position: int,
    phase: str,
    seconds: float,
    inputs: list[int],
    outputs: list[int],
    peak: int,
    repeatable: bool = True,
    random: bool = False,
) -> PlanningNode:
    return PlanningNode(
        op=position,
        phase=phase,  # type: ignore[arg-type]
        seconds=seconds,
        peak=peak,
        inputs=inputs,
        outputs=outputs,
        reuses=[],
        random=random,
        repeatable=repeatable,
    )


def perceptron(state_bytes: int = 0, random: bool = False) -> PlanningGraph:
    """input 0 -> a (10 bytes, 1 s) -> b (10 bytes, 5 s) -> output (4 bytes, 3 s); the backward
    reads b, then a. The gradients of weights have 2 bytes, that of the input 4."""
    storages = [
        PlanningStorage(0, -1, False, False),  # 0: the input
        PlanningStorage(10, 0, False, False),  # 1: a
        PlanningStorage(10, 1, False, False),  # 2: b
        PlanningStorage(4, 2, False, False),  # 3: output
        PlanningStorage(4, 3, False, False),  # 4: gradient of the output
        PlanningStorage(10, 4, False, False),  # 5: gradient of b
        PlanningStorage(2, 4, False, True),  # 6: a weight's gradient
        PlanningStorage(10, 5, False, False),  # 7: gradient of a
        PlanningStorage(2, 6, False, True),  # 8: a weight's gradient
        PlanningStorage(4, 6, True, False),  # 9: gradient of the input
    ]
    nodes = [
        node(0, "forward", 1.0, [0], [1], 10, random=random),
        node(1, "forward", 5.0, [1], [2], 10),
        node(2, "forward", 3.0, [2], [3], 4),
        node(3, "loss", 0.0, [3], [4], 4, repeatable=False),
        node(4, "backward", 2.0, [4, 2], [5, 6], 12),
        node(5, "backward", 2.0, [5, 1], [7], 10),
        node(6, "backward", 2.0, [7, 0], [8, 9], 6),
    ]
    return PlanningGraph(nodes, storages, state_bytes)


@st.composite
def tiny_blocks(draw: st.DrawFn, forward: int = 3) -> PlanningGraph:
    """At most 2 * forward + 1 nodes; sizes and seconds are small integers, so that ties and exact
    fits occur; some nodes cannot run again, some of two outputs make only the first when they do,
    some storages stay. Some nodes overwrite an input, which takes as long and needs as many bytes
    less, or takes longer."""
    small = st.integers(0, 5)
    times = small.map(float)
    count = draw(st.integers(1, forward))
    nodes: list[PlanningNode] = []
    storages: list[PlanningStorage] = [PlanningStorage(0, -1, False, False)]

    def add(phase: str, inputs: list[int], stays: bool) -> list[int]:
        sizes = draw(st.lists(small, min_size=1, max_size=2))
        first = len(storages)
        for index, size in enumerate(sizes):
            kind = draw(st.sampled_from(["none", "held", "gradient"])) if stays and index else ""
            storages.append(PlanningStorage(size, len(nodes), kind == "held", kind == "gradient"))
        made = list(range(first, len(storages)))
        peak = sum(sizes) + draw(small)
        again = phase != "loss" and draw(st.integers(0, 5)) > 0
        seconds = float(draw(st.integers(0, 5))) if phase != "loss" else 0.0
        nodes.append(node(len(nodes), phase, seconds, sorted(set(inputs)), made, peak, again))
        if phase == "forward" and len(made) == 2 and again and draw(st.booleans()):
            shorter = RecomputeVariant(
                [*nodes[-1].inputs, made[1]], made[:1], draw(times), sizes[0]
            )
            nodes[-1] = replace(nodes[-1], repeat=shorter)
        if phase != "loss" and draw(st.booleans()):
            nodes[-1] = replace(nodes[-1], reuses=overwriting(nodes[-1]))
        return made

    def overwriting(node: PlanningNode) -> list[InPlaceVariant]:
        taken = [s for s in node.inputs if storages[s].bytes == storages[node.outputs[0]].bytes]
        slower = draw(st.booleans())
        return [
            InPlaceVariant(s, node.seconds + slower, max(node.peak - storages[s].bytes, 0))
            for s in taken
            if storages[s].producer >= 0
        ]

    made: list[int] = [0]
    for _ in range(count):
        more = draw(st.lists(st.sampled_from(made), max_size=2))
        made += add("forward", [made[-1], *more], stays=False)
    saved = list(made)
    gradient = add("loss", [made[-1]], stays=False)
    for _ in range(draw(st.integers(1, count))):
        more = draw(st.lists(st.sampled_from(saved), max_size=2))
        gradient = add("backward", [gradient[0], *more], stays=True)
    return PlanningGraph(nodes, storages, 0)


def every_run(
    problem: PlanningGraph, stages: list[UnrolledStage]
) -> Iterator[tuple[BlockSchedule, BlockCost]]:
    """All runs of a class of stages that are possible, with what they cost."""
    choices = [(t, k) for t, stage in enumerate(stages) for k in stage.candidates]
    for chosen in product((False, True), repeat=len(choices)):
        again = {choice for choice, taken in zip(choices, chosen, strict=True) if taken}
        order: list[int] = []
        for t, stage in enumerate(stages):
            order += [k for k in stage.candidates if (t, k) in again]
            order += stage.tail
        loss = order.index(problem.loss)
        run = remove_unneeded_recomputes(
            problem, BlockSchedule(tuple(order[:loss]), tuple(order[loss + 1 :]))
        )
        try:
            check_execution_order(problem, [*run.forward, problem.loss, *run.backward])
        except ValueError:
            continue
        yield run, simulate_block(problem, run)


def solve_block(
    digest: str,
    problem: PlanningGraph,
    engine: BlockSolver,
    grid: OptionGrid,
    link: HostLink | None = None,
) -> list[BlockOption]:
    """All options of a block worth having, by number: 0 saves nothing, the others from the most
    saved to the least. For a link they say what of it may
    leave; one without a bandwidth changes nothing."""
    return search_block(digest, problem, engine, grid, link).options
