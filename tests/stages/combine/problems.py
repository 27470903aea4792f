"""Small random problems, and a plain reading of what a sequence of executions costs."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tightfit.schemas.graph.planning_graph import (
    InPlaceVariant,
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
    RecomputeAlternative,
    RecomputeVariant,
)
from tightfit.schemas.graph.training_graph import Phase
from tightfit.stages.simulate.liveness import simulate_executions


@st.composite
def problems(
    draw: st.DrawFn, forward: int = 6, repeats: bool = False, alternatives: bool = False
) -> PlanningGraph:
    """A step whose backward mirrors its forward: node i's backward reads what node i read or made,
    and the gradients of what it made. With `repeats`, some nodes of two outputs make only the first
    when they run again, of what they read and of the second. With `alternatives`, some have further
    forms, for any of what they made, from what they read and the rest."""
    size = st.integers(1, 9)
    seconds = st.integers(1, 9).map(float)
    count = draw(st.integers(1, forward))
    nodes: list[PlanningNode] = []
    storages: list[PlanningStorage] = []
    made: list[list[int]] = []
    read: list[list[int]] = []

    def add(phase: Phase, inputs: list[int], sizes: list[int], **extra: object) -> list[int]:
        outputs = list(range(len(storages), len(storages) + len(sizes)))
        marks = {"held": False, "gradient": False, **extra}
        storages.extend(
            PlanningStorage(n, len(nodes), bool(marks["held"]), bool(marks["gradient"]))
            for n in sizes
        )
        reuses = [
            InPlaceVariant(source, draw(seconds), draw(st.integers(0, 3)))
            for source in inputs
            if phase != "loss" and storages[source].bytes == sizes[0] and draw(st.booleans())
        ]
        peak = sum(sizes) + (draw(st.integers(0, 4)) if phase != "loss" else 0)
        random = phase == "forward" and draw(st.integers(0, 4)) == 0
        shorter = phase == "forward" and len(outputs) == 2 and not random and repeats
        repeat = (
            RecomputeVariant([*inputs, outputs[1]], outputs[:1], draw(seconds), sizes[0])
            if shorter and draw(st.booleans())
            else None
        )
        nodes.append(
            PlanningNode(
                len(nodes),
                phase,
                draw(seconds),
                peak,
                inputs,
                outputs,
                [] if random else reuses,
                random,
                phase != "loss",
                repeat,
            )
        )
        return outputs

    for index in range(count):
        earlier = [storage for group in made for storage in group]
        inputs = (
            draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True)) if earlier else []
        )
        if made and not set(inputs) & set(made[-1]):
            inputs = [*inputs, made[-1][0]]
        sizes = [draw(size) for _ in range(draw(st.integers(1, 2)))]
        made.append(add("forward", inputs, sizes, held=index == count - 1))
        read.append(inputs)
    gradient_of = {made[-1][0]: add("loss", made[-1], [storages[made[-1][0]].bytes], held=True)[0]}
    for index in range(count - 1, -1, -1):
        sources = [storage for storage in made[index] + read[index] if draw(st.booleans())]
        incoming = [gradient_of[storage] for storage in made[index] if storage in gradient_of]
        if not incoming:
            continue
        outputs = add("backward", list(dict.fromkeys(incoming + sources)), [draw(size)])
        for storage in read[index]:
            gradient_of.setdefault(storage, outputs[0])
        if draw(st.booleans()):
            add("backward", list(dict.fromkeys(incoming + sources)), [draw(size)], gradient=True)
    state = draw(st.integers(0, 2))
    others = draw(_alternatives(nodes, storages)) if alternatives else []
    return PlanningGraph(nodes, storages, state, others)


@st.composite
def _alternatives(
    draw: st.DrawFn, nodes: list[PlanningNode], storages: list[PlanningStorage]
) -> list[RecomputeAlternative]:
    found: list[RecomputeAlternative] = []
    for position, node in enumerate(nodes):
        stays = any(storages[storage].stays for storage in node.outputs)
        if node.phase != "forward" or node.random or node.repeat is not None or stays:
            continue
        for _ in range(draw(st.integers(0, 2))):
            made = draw(st.lists(st.sampled_from(node.outputs), min_size=1, unique=True))
            rest = [storage for storage in (*node.inputs, *node.outputs) if storage not in made]
            read = draw(st.lists(st.sampled_from(rest), unique=True)) if rest else []
            peak = sum(storages[storage].bytes for storage in made) + draw(st.integers(0, 2))
            form = RecomputeVariant(read, made, float(draw(st.integers(0, 9))), peak)
            found.append(RecomputeAlternative(position, len(nodes) + len(found), form))
    return found


def repeatable(problem: PlanningGraph) -> list[int]:
    """The nodes that may run again."""
    return [
        index
        for index, node in enumerate(problem.nodes)
        if node.repeatable and not any(problem.storages[s].stays for s in node.outputs)
    ]


@st.composite
def sequences(draw: st.DrawFn, problem: PlanningGraph) -> list[int]:
    """The captured order with some nodes run again somewhere after their first run."""
    sequence = list(range(len(problem.nodes)))
    if again := repeatable(problem):
        for node in draw(st.lists(st.sampled_from(again), max_size=4)):
            first = sequence.index(node)
            sequence.insert(draw(st.integers(first + 1, len(sequence))), node)
    if others := problem.positions[len(problem.nodes) :]:
        for other in draw(st.lists(st.sampled_from(others), max_size=4)):
            first = sequence.index(problem.node_at(other))
            sequence.insert(draw(st.integers(first + 1, len(sequence))), other)
    return sequence


def plain_line(
    problem: PlanningGraph, sequence: Sequence[int], in_place: bool, ceiling: int = 0
) -> tuple[list[int], float]:
    """The peak within each execution and the seconds of all."""
    played = simulate_executions(problem, sequence, in_place, ceiling)
    return [run.peak for run in played], sum(run.seconds for run in played)


def two_layers(random: bool = False) -> PlanningGraph:
    """Two layers of 4 bytes each; the first's backward makes a gradient and reads what the first
    made. The first draws random numbers on demand."""
    return PlanningGraph(
        [
            PlanningNode(0, "forward", 1.0, 4, [], [0], [], random, True),
            PlanningNode(1, "forward", 1.0, 4, [0], [1], [], False, True),
            PlanningNode(2, "loss", 0.0, 4, [1], [2], [], False, False),
            PlanningNode(3, "backward", 1.0, 4, [0, 2], [3], [], False, True),
        ],
        [
            PlanningStorage(4, 0, False, False),
            PlanningStorage(4, 1, True, False),
            PlanningStorage(4, 2, True, False),
            PlanningStorage(4, 3, False, True),
        ],
        2,
    )
