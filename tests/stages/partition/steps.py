"""Steps to cut: random chains with branches, and traced models with made-up costs."""

from __future__ import annotations

from functools import cache
from math import prod

from hypothesis import strategies as st

from tightfit.schemas.costs import RECOMPUTE_VARIANT, Costs, OpCost, ProfileDevice
from tightfit.schemas.graph.planning_graph import (
    InPlaceVariant,
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
)
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.stages.partition.gradient_flow import GradientFlow, partial_gradients
from tightfit.stages.profile.cost_library import distinct_op_variants


@st.composite
def random_steps(draw: st.DrawFn, most: int = 12) -> GradientFlow:
    """A forward whose nodes read recent storages, and the backward that autograd would run:
    contributions to the gradients of what was read, summed up where there are several. Some nodes
    overwrite an input of the size of what they make."""
    count = draw(st.integers(2, most))
    nodes: list[PlanningNode] = []
    storages: list[PlanningStorage] = []

    def run(phase: str, inputs: list[int], sizes: list[int], gradient: bool = False) -> list[int]:
        held = phase == "loss"
        first = len(storages)
        storages.extend(PlanningStorage(size, len(nodes), held, gradient) for size in sizes)
        made = list(range(first, len(storages)))
        spare = draw(st.integers(0, 3)) if phase != "loss" else 0
        seconds = float(draw(st.integers(1, 9)))
        peak = sum(sizes) + spare
        alike = [s for s in sorted(set(inputs)) if storages[s].bytes == sizes[0]]
        in_place = phase != "loss" and draw(st.booleans())
        nodes.append(
            PlanningNode(
                op=len(nodes),
                phase=phase,  # type: ignore[arg-type]
                seconds=seconds,
                peak=peak,
                inputs=sorted(set(inputs)),
                outputs=made,
                reuses=[InPlaceVariant(s, seconds, peak - sizes[0]) for s in alike if in_place],
                random=False,
                repeatable=phase != "loss",
            )
        )
        return made

    size = st.integers(1, 9)
    forward: list[tuple[list[int], list[int]]] = []
    for index in range(count):
        recent = [made[0] for _, made in forward[-3:]]
        extra = draw(st.lists(st.sampled_from(recent), max_size=1)) if recent else []
        inputs = sorted({*recent[-1:], *extra})
        last = index == count - 1
        sizes = [draw(size), *([] if last else draw(st.lists(size, max_size=1)))]
        forward.append((inputs, run("forward", inputs, sizes)))
    output = forward[-1][1][0]
    storages[output] = PlanningStorage(
        storages[output].bytes, storages[output].producer, True, False
    )
    gradient = {output: run("loss", [output], [storages[output].bytes])[0]}
    uses: dict[int, list[int]] = {}
    additions: set[int] = set()
    for position in reversed(range(count)):
        inputs, made = forward[position]
        incoming = gradient[made[0]]
        saved = draw(st.lists(st.sampled_from([*inputs, *made]), max_size=2))
        if not inputs or draw(st.booleans()):
            [weight] = run("backward", [incoming, *saved], [draw(size)], gradient=True)
            uses[weight] = [position]
        for source in inputs:
            [part] = run("backward", [incoming, *saved], [storages[source].bytes])
            if source in gradient:
                additions.add(len(nodes))
                [part] = run("backward", [gradient[source], part], [storages[source].bytes])
            gradient[source] = part
    problem = PlanningGraph(nodes, storages, 0)
    return GradientFlow(
        problem=problem,
        connecting_storages=frozenset(s for _, made in forward for s in made),
        pure=frozenset(),
        parameter_uses=uses,
        partial=partial_gradients(problem, frozenset(additions)),
        modules=[()] * len(nodes),
        differentiable_storages=frozenset(s for _, made in forward for s in made),
    )


@cache
def traced(factory: str, **arguments: object) -> tuple[Graph, Costs]:
    """The graph of a factory "package.module:function" and made-up costs for it."""
    from tightfit.stages.torch_utils.model_factory import build_from_factory
    from tightfit.stages.trace.trace import trace

    graph = trace(build_from_factory(factory, arguments, fake=True), factory.split(":")[1])
    return graph, made_up_costs(graph)


def made_up_costs(graph: Graph) -> Costs:
    """Costs as of a device that moves 1e9 bytes a second and takes 1e-6 seconds a call."""
    rows = []
    for key, (op, in_place) in distinct_op_variants(graph).items():
        read = {graph.values[value].storage for value in op.inputs}
        made = {graph.values[value].storage for value in op.outputs if value != NO_VALUE} - read
        size = sum(graph.storages[storage] for storage in made)
        if in_place not in (NO_VALUE, RECOMPUTE_VARIANT):
            size -= graph.storages[graph.values[op.outputs[0]].storage]
        traffic = sum(4 * prod(graph.values[value].shape) for value in op.inputs)
        traffic = traffic // 4 if in_place == RECOMPUTE_VARIANT else traffic
        position = (
            in_place if in_place in (NO_VALUE, RECOMPUTE_VARIANT) else op.inputs.index(in_place)
        )
        rows.append(OpCost(key, op.target, position, 1e-6 + traffic / 1e9, 0.0, size, size))
    return Costs(rows, ProfileDevice("cpu", "made up", "", 1, "file"))
