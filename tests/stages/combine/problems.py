"""Small random problems, and a plain reading of what a sequence of executions costs."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from schemas.graph import Phase
from schemas.problem import Node, Problem, Reuse, Storage
from stages.combine.schedule.lifetimes import lifetimes


@st.composite
def problems(draw: st.DrawFn, forward: int = 6) -> Problem:
    """A step whose backward mirrors its forward: node i's backward reads what node i read or made,
    and the gradients of what it made."""
    size = st.integers(1, 9)
    seconds = st.integers(1, 9).map(float)
    count = draw(st.integers(1, forward))
    nodes: list[Node] = []
    storages: list[Storage] = []
    made: list[list[int]] = []
    read: list[list[int]] = []

    def add(phase: Phase, inputs: list[int], sizes: list[int], **extra: object) -> list[int]:
        outputs = list(range(len(storages), len(storages) + len(sizes)))
        marks = {"held": False, "gradient": False, **extra}
        storages.extend(
            Storage(n, len(nodes), bool(marks["held"]), bool(marks["gradient"])) for n in sizes
        )
        reuses = [
            Reuse(source, draw(seconds), draw(st.integers(0, 3)))
            for source in inputs
            if phase != "loss" and storages[source].bytes == sizes[0] and draw(st.booleans())
        ]
        peak = sum(sizes) + (draw(st.integers(0, 4)) if phase != "loss" else 0)
        random = phase == "forward" and draw(st.integers(0, 4)) == 0
        nodes.append(
            Node(
                len(nodes),
                phase,
                draw(seconds),
                peak,
                inputs,
                outputs,
                [] if random else reuses,
                random,
                phase != "loss",
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
    gradient_of = {
        made[-1][0]: add("loss", [made[-1][0]], [storages[made[-1][0]].bytes], held=True)[0]
    }
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
    return Problem(nodes, storages, state)


def plain_line(
    problem: Problem, sequence: Sequence[int], in_place: bool
) -> tuple[list[int], float]:
    """The peak within each execution and the seconds of all, straight from the definitions."""
    ends = lifetimes(problem, sequence, in_place)
    live: set[int] = set()
    states: set[int] = set()
    line, seconds = [], 0.0
    for position, index in enumerate(sequence):
        node = problem.nodes[index]
        assert set(node.inputs) <= live
        again = index in sequence[:position]
        if node.random and not again and index in sequence[position + 1 :]:
            states.add(index)
        extra = problem.state_bytes * (len(states) + (node.random and again))
        held = sum(problem.storages[storage].bytes for storage in live) + extra
        reuse = next((r for r in node.reuses if r.storage == ends.overwrites[position]), None)
        seconds += reuse.seconds if reuse else node.seconds
        if reuse:
            live.remove(reuse.storage)
        live.update(node.outputs)
        after = sum(problem.storages[storage].bytes for storage in live) + (
            problem.state_bytes * len(states)
        )
        line.append(max(held + (reuse.peak if reuse else node.peak), after))
        live -= set(ends.dying[position]) | set(ends.unused[position])
        if index not in sequence[position + 1 :]:
            states.discard(index)
    return line, seconds


def two_layers(random: bool = False) -> Problem:
    """Two layers of 4 bytes each; the first's backward makes a gradient and reads what the first
    made. The first draws random numbers on demand."""
    return Problem(
        [
            Node(0, "forward", 1.0, 4, [], [0], [], random, True),
            Node(1, "forward", 1.0, 4, [0], [1], [], False, True),
            Node(2, "loss", 0.0, 4, [1], [2], [], False, False),
            Node(3, "backward", 1.0, 4, [0, 2], [3], [], False, True),
        ],
        [
            Storage(4, 0, False, False),
            Storage(4, 1, True, False),
            Storage(4, 2, True, False),
            Storage(4, 3, False, True),
        ],
        2,
    )
