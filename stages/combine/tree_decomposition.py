"""A tree decomposition of a step, and the bags that halve a part of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
from networkx.algorithms.approximation import treewidth_min_degree

from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.simulate.liveness import subset_memory


@dataclass(frozen=True)
class TreeDecomposition:
    """Sets of nodes (`bags`) that form a tree: `parent` gives the place of each bag's parent, which
    stands before it (-1: the root). Two nodes of which one reads what the other makes share a bag,
    and the bags of a node are connected."""

    bags: Sequence[frozenset[int]]
    parent: Sequence[int]

    @cached_property
    def first_bag(self) -> dict[int, int]:
        """For each node the first of its bags."""
        found: dict[int, int] = {}
        for place, bag in enumerate(self.bags):
            for node in bag:
                found.setdefault(node, place)
        return found

    def halving_bag(self, part: Collection[int], weight: Sequence[float]) -> frozenset[int]:
        """The bag without which no rest of a part, cut by it, has more than half of its weight."""
        below = [0.0] * len(self.bags)
        for node in part:
            below[self.first_bag[node]] += weight[node]
        total = sum(below)
        largest = [0.0] * len(self.bags)
        for place in reversed(range(1, len(self.bags))):
            above = self.parent[place]
            below[above] += below[place]
            largest[above] = max(largest[above], below[place])
        worst = [max(rest, total - own) for rest, own in zip(largest, below, strict=True)]
        return self.bags[min(range(len(worst)), key=lambda place: (worst[place], place))]


def build_tree_decomposition(problem: PlanningGraph) -> TreeDecomposition:
    """The decomposition that the minimum degree heuristic finds; it need not be the narrowest."""
    graph = nx.Graph()
    graph.add_nodes_from(range(len(problem.nodes)))
    graph.add_edges_from(
        (problem.storages[storage].producer, position)
        for position, node in enumerate(problem.nodes)
        for storage in node.inputs
        if problem.storages[storage].producer >= 0
    )
    bags: list[frozenset[int]] = []
    parent: list[int] = []
    parts = sorted(nx.connected_components(graph), key=min)
    for part in parts:
        _, tree = treewidth_min_degree(graph.subgraph(part))
        root = min(tree.nodes, key=sorted)
        place = {root: len(bags)}
        bags.append(root)
        parent.append(-1 if len(bags) == 1 else 0)
        for above, bag in nx.bfs_edges(tree, root, sort_neighbors=lambda b: sorted(b, key=sorted)):
            place[bag] = len(bags)
            bags.append(bag)
            parent.append(place[above])
    return TreeDecomposition(bags, parent)


MAX_RUN_RATIO = 4
"""A schedule that runs more than this many times the nodes of a step is given up."""
MAX_DEPTH = 60
"""How often parts are halved at most."""


class ScheduleTooLongError(Exception):
    """A schedule runs too much again."""


class RecursiveSchedule:
    """One schedule of a step. `runs` are the positions of its nodes in order. A part that runs
    within `limit` bytes, beside what is kept, is not cut."""

    def __init__(
        self, problem: PlanningGraph, decomposition: TreeDecomposition, limit: int
    ) -> None:
        self.problem = problem
        self.decomposition = decomposition
        self.limit = limit
        self.runs: list[int] = []
        self.ran: set[int] = set()
        self.there: set[int] = set()
        self.weight = [
            float(sum(problem.storages[s].bytes for s in node.outputs)) for node in problem.nodes
        ]
        self.repeatable = [problem.can_recompute(node) for node in problem.nodes]
        self.in_turn = [
            position
            for position, node in enumerate(problem.nodes[: problem.loss + 1])
            if node.random or not node.repeatable
        ]

    def visit(self, part: Collection[int], depth: int = 0) -> None:
        """Runs all nodes of a part that have not run."""
        missing = {node for node in part if node not in self.ran}
        if not missing:
            return
        needed = missing | self._missing(missing)
        if depth == MAX_DEPTH or self._fits(needed):
            self._run_in_order(needed)
            return
        bag = self.decomposition.halving_bag(needed, self.weight) & needed
        kept = self._compute_bag(bag, depth)
        rests = self._connected_parts(needed - bag)
        if len(rests) == 1 and not bag:
            self._run_in_order(needed)
        else:
            for rest in rests:
                self.visit(rest, depth + 1)
        self._drop(kept)

    def compute(self, target: int, depth: int) -> None:
        """Runs a node, ahead of it what it needs, and keeps what it makes."""
        needed = self._missing([target])
        if depth < MAX_DEPTH and not self._fits(needed):
            bag = self.decomposition.halving_bag(needed, self.weight) & needed
            if bag and bag != needed:
                kept = self._compute_bag(bag, depth)
                self.compute(target, depth + 1)
                self._drop(kept - self._made(target))
                return
        self._run_in_order([*needed, target], kept=target)

    def _compute_bag(self, bag: Iterable[int], depth: int) -> set[int]:
        """Computes the nodes of a bag that are not there; returns the storages to drop later."""
        kept: set[int] = set()
        for node in sorted(bag):
            if node not in self.ran or not self.there.issuperset(self._made(node)):
                before = set(self.there)
                self.compute(node, depth + 1)
                kept |= self.there - before
        return kept

    def _made(self, node: int) -> set[int]:
        """What a node makes when it runs again."""
        return set(self.problem.nodes[node].form(True).outputs)

    def _missing(self, wanted: Iterable[int]) -> set[int]:
        """The nodes that have to run ahead of some that are wanted, these left out."""
        wanted = set(wanted)
        found: set[int] = set()
        pending = list(wanted)
        while pending:
            node = pending.pop()
            new = {maker for maker in self._makers(node) if maker not in found}
            found |= new
            pending += new
        return found - wanted

    def _makers(self, node: int) -> list[int]:
        """The nodes that make what a run of a node now reads and is not there."""
        form = self.problem.nodes[node].form(node in self.ran)
        makers = [
            self.problem.storages[storage].producer
            for storage in form.inputs
            if storage not in self.there and self.problem.storages[storage].producer >= 0
        ]
        if node not in self.ran:
            makers += self._before(node)
        return makers

    def _before(self, node: int) -> list[int]:
        """What has to have run when a node runs first, beside what makes its inputs: the loss ahead
        of the backward; ahead of that, and of one another, nodes that draw random numbers or run
        once."""
        loss = self.problem.loss
        if node > loss:
            return [] if loss in self.ran else [loss]
        if node != loss and node not in self.in_turn:
            return []
        return [earlier for earlier in self.in_turn if earlier < node and earlier not in self.ran]

    def _fits(self, part: Collection[int]) -> bool:
        """Whether a part runs within the limit, beside what is kept, when what nothing else reads
        is dropped after its last read."""
        if len(part) < 2:
            return True
        live = sum(self.problem.storages[s].bytes for s in self.there)
        return live + subset_memory(self.problem, part)[0] <= self.limit

    def _run_in_order(self, part: Iterable[int], kept: int = -1) -> None:
        """Runs nodes in captured order; but for what `kept` makes nothing is there afterwards."""
        before = set(self.there)
        for node in sorted(part):
            self._run(node)
        self._drop(self.there - before - (self._made(kept) if kept >= 0 else set()))

    def _run(self, node: int) -> None:
        if len(self.runs) > MAX_RUN_RATIO * len(self.problem.nodes):
            raise ScheduleTooLongError
        form = self.problem.nodes[node].form(node in self.ran)
        self.runs.append(node)
        self.ran.add(node)
        self.there.update(form.outputs)

    def _drop(self, storages: Iterable[int]) -> None:
        """Forgets what can be made again."""
        for storage in storages:
            maker = self.problem.storages[storage].producer
            if self.repeatable[maker] and storage in self._made(maker):
                self.there.discard(storage)

    def _connected_parts(self, nodes: set[int]) -> list[list[int]]:
        """The parts that reads connect, the one that begins first ahead."""
        storages = self.problem.storages
        near: dict[int, set[int]] = {node: set() for node in nodes}
        for node in nodes:
            for storage in self.problem.nodes[node].inputs:
                maker = storages[storage].producer
                if maker in nodes:
                    near[node].add(maker)
                    near[maker].add(node)
        found: list[list[int]] = []
        left = set(nodes)
        for node in sorted(nodes):
            if node not in left:
                continue
            left.discard(node)
            part, pending = [node], [node]
            while pending:
                new = near[pending.pop()] & left
                left -= new
                part += new
                pending += new
            found.append(part)
        return found


def build_recursive_schedule(
    problem: PlanningGraph, decomposition: TreeDecomposition, limit: int
) -> list[int] | None:
    """The positions of the nodes that a schedule runs, None where it is given up."""
    recursion = RecursiveSchedule(problem, decomposition, limit)
    try:
        recursion.visit(range(len(problem.nodes)))
    except ScheduleTooLongError:
        return None
    return recursion.runs
