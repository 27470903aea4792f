"""From a graph and its costs to the planning view: nodes and storages."""

from __future__ import annotations

from dataclasses import replace

from tightfit.schemas.costs import RECOMPUTE_VARIANT, Costs
from tightfit.schemas.graph.ownership import caller_owned_storages, previous_partial_gradients
from tightfit.schemas.graph.planning_graph import (
    InPlaceVariant,
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
    RecomputeAlternative,
    RecomputeVariant,
)
from tightfit.schemas.graph.recompute_variants import find_recompute_values
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph, Op
from tightfit.util.errors import ArtifactError


def build_planning_graph(graph: Graph, costs: Costs, ordered: bool = True) -> PlanningGraph:
    """The planning view of a whole step.

    Nodes are the ops that make storages or write, and the loss, in graph order; views are left
    out, their uses counting as uses of the storage. Storages keep the ids they have in the graph;
    those of parameters, buffers, inputs and constants are there but no node names them. The loss
    reads all outputs, also those that it does nothing with: the caller has them from there on. What
    it leaves allocated beyond the tangents is one more storage, held, after these. Makers of
    contributions to one gradient run once; where they are `ordered`, each further one reads a
    storage without bytes that the one before it makes, which ties blocks together that are only
    met by it. Alternatives are those of nodes that may run again as they ran first. Raises
    ArtifactError where the graph makes contributions in another order, or the costs of the loss are
    of one that makes less.
    """
    fixed = graph.baseline_storages()
    kept = [op for op in graph.ops if not graph.is_view(op)]
    producer = {
        storage: position for position, op in enumerate(kept) for storage in graph.made_by(op)
    }
    held = caller_owned_storages(graph) - fixed
    further = previous_partial_gradients(graph)
    gradients = {
        graph.values[gradient.gradient].storage
        for gradient in graph.gradients
        if gradient.gradient not in further
    }
    nodes = [_node(graph, costs, op, fixed) for op in kept]
    _add_outputs_to_loss(graph, nodes, fixed)
    storages = [
        PlanningStorage(
            size, producer.get(storage, NO_VALUE), storage in held, storage in gradients
        )
        for storage, size in enumerate(graph.storages)
    ]
    _append_loss_remainder(graph, costs, nodes, storages)
    readers = _readers(nodes, {graph.values[before].storage for before in further.values()})
    for value, before in further.items():
        made, after = (graph.values[each].storage for each in (before, value))
        _order_partial_gradients(nodes, storages, made, after, ordered, readers[made])
    _forbid_overwrites(nodes, {graph.values[value].storage for value in further})
    alternatives = _alternatives(graph, costs, nodes, storages, fixed)
    return PlanningGraph(nodes, storages, costs.random_state().net, alternatives)


def _node(graph: Graph, costs: Costs, op: Op, fixed: set[int]) -> PlanningNode:
    cost = costs.of(graph, op)
    reads = dict.fromkeys(graph.values[value].storage for value in op.inputs)
    reuses = []
    for value in op.in_place:
        form = costs.of(graph, op, value)
        reuses.append(InPlaceVariant(graph.values[value].storage, form.seconds, form.peak))
    return PlanningNode(
        op=op.id,
        phase=op.phase,
        seconds=cost.seconds,
        peak=cost.peak,
        inputs=[storage for storage in reads if storage not in fixed],
        outputs=graph.made_by(op),
        reuses=reuses,
        random=op.random,
        repeatable=op.repeatable and op.target != LOSS_TARGET,
        repeat=_repeat(graph, costs, op, fixed),
    )


def _repeat(graph: Graph, costs: Costs, op: Op, fixed: set[int]) -> RecomputeVariant | None:
    form = find_recompute_values(graph, op)
    if form is None:
        return None
    cost = costs.of(graph, op, RECOMPUTE_VARIANT)
    reads = dict.fromkeys(graph.values[value].storage for value in form.reads)
    made = graph.values[form.makes].storage
    inputs = [storage for storage in reads if storage not in fixed]
    return RecomputeVariant(inputs, [made], cost.seconds, cost.peak)


def _alternatives(
    graph: Graph,
    costs: Costs,
    nodes: list[PlanningNode],
    storages: list[PlanningStorage],
    fixed: set[int],
) -> list[RecomputeAlternative]:
    places = {node.op: position for position, node in enumerate(nodes)}
    found = []
    for op in graph.alternatives:
        cost, position = costs.of(graph, op), places[graph.alternative_origins[op.id]]
        reads = dict.fromkeys(graph.values[value].storage for value in op.inputs)
        inputs = [storage for storage in reads if storage not in fixed]
        form = RecomputeVariant(inputs, graph.made_by(op), cost.seconds, cost.peak)
        node = nodes[position]
        stays = any(storages[made].stays for made in node.outputs)
        if node.repeatable and node.repeat is None and not stays:
            found.append(RecomputeAlternative(position, op.id, form))
    return found


def _add_outputs_to_loss(graph: Graph, nodes: list[PlanningNode], fixed: set[int]) -> None:
    """Lets the loss read all outputs."""
    position = next(index for index, node in enumerate(nodes) if node.phase == "loss")
    given = [graph.values[value].storage for value in graph.output_values()]
    reads = dict.fromkeys([*nodes[position].inputs, *given])
    inputs = [storage for storage in reads if storage not in fixed]
    nodes[position] = replace(nodes[position], inputs=inputs)


def _append_loss_remainder(
    graph: Graph, costs: Costs, nodes: list[PlanningNode], storages: list[PlanningStorage]
) -> None:
    position = next(index for index, node in enumerate(nodes) if node.phase == "loss")
    loss = nodes[position]
    net = costs.of(graph, graph.ops[loss.op]).net
    made = sum(storages[storage].bytes for storage in loss.outputs)
    if net < made:
        raise ArtifactError(
            f"the costs say that the loss leaves {net:,} bytes, and the gradients that it makes "
            f"take {made:,}: make the costs of {graph.model} anew"
        )
    remainder = net - made
    if remainder > 0:
        loss.outputs.append(len(storages))
        storages.append(PlanningStorage(remainder, position, held=True, gradient=False))


def _readers(nodes: list[PlanningNode], storages: set[int]) -> dict[int, list[int]]:
    """The positions of the nodes that read each of some storages."""
    readers: dict[int, list[int]] = {storage: [] for storage in storages}
    for position, node in enumerate(nodes):
        for storage in storages.intersection(node.inputs):
            readers[storage].append(position)
    return readers


def _order_partial_gradients(
    nodes: list[PlanningNode],
    storages: list[PlanningStorage],
    before: int,
    after: int,
    ordered: bool,
    readers: list[int],
) -> None:
    """Lets the makers of two storages run once, and the `readers` of the first one, too. Where they
    are `ordered`, the second storage, which is added to the first one, is made last."""
    earlier, later = storages[before].producer, storages[after].producer
    if not NO_VALUE < earlier <= later:
        raise ArtifactError("the contributions to a gradient are not made in their order")
    if earlier < later:
        first = [earlier, *(position for position in readers if position < later)]
        for position in (*first, later):
            nodes[position] = replace(nodes[position], repeatable=False)
        for position in first if ordered else ():
            _add_order_edge(nodes, storages, position, later)


def _forbid_overwrites(nodes: list[PlanningNode], storages: set[int]) -> None:
    """Lets nobody overwrite some storages."""
    for position, node in enumerate(nodes):
        reuses = [reuse for reuse in node.reuses if reuse.storage not in storages]
        if len(reuses) != len(node.reuses):
            nodes[position] = replace(node, reuses=reuses)


def _add_order_edge(
    nodes: list[PlanningNode], storages: list[PlanningStorage], earlier: int, later: int
) -> None:
    token = len(storages)
    storages.append(PlanningStorage(0, earlier, held=False, gradient=False))
    nodes[earlier] = replace(nodes[earlier], outputs=[*nodes[earlier].outputs, token])
    nodes[later] = replace(nodes[later], inputs=[*nodes[later].inputs, token])
