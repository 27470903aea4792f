"""Recognizes a join: parts of a step that know nothing of each other until the loss (S ch. 1, J).

A join has branches, each with a forward and a backward of its own, and a head: what comes between
all forwards and all backwards, the loss among it. Weights may be shared, values may not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode
from tightfit.schemas.graph.training_graph import NO_VALUE
from tightfit.stages.partition.gradient_flow import GradientFlow

MAX_BRANCHES = 4
MIN_BRANCH_OPS = 4
"""Ops that a part must run to be a branch; smaller ones belong to what they flow into."""
MAX_HEAD_SHARE = 0.35
"""Of the seconds of the forward, at most, are the head's in what is worth planning as a join."""
_HEAD = -1


@dataclass(frozen=True)
class StepBranch:
    """Positions of the nodes of one branch in the whole step's problem, in captured order."""

    forward: list[int]
    backward: list[int]


def find_branches(facts: GradientFlow) -> list[StepBranch]:
    """The branches of a step, in the order in which their forwards begin; none where the step is no
    join: where fewer than two parts, or more than `MAX_BRANCHES`, meet in a small head."""
    problem = facts.problem
    ahead = _forward_labels(facts)
    labels = sorted(set(ahead.values()) - {_HEAD})
    seconds = {
        label: sum(problem.nodes[p].seconds for p, own in ahead.items() if own == label)
        for label in (*labels, _HEAD)
    }
    if not 2 <= len(labels) <= MAX_BRANCHES:
        return []
    if seconds[_HEAD] > MAX_HEAD_SHARE * sum(seconds.values()):
        return []
    back = _backward_labels(facts, ahead)
    branches = [
        StepBranch(
            [position for position, own in ahead.items() if own == label],
            [position for position, own in back.items() if own == label],
        )
        for label in labels
    ]
    return branches if all(branch.backward for branch in branches) else []


def branch_problem(problem: PlanningGraph, branch: StepBranch) -> PlanningGraph:
    """A branch as a step of its own: its loss is all that happens between its forward and its
    backward. Storages keep their numbers; those of others are made outside."""
    kept = [*branch.forward, problem.loss, *branch.backward]
    places = {position: place for place, position in enumerate(kept)}
    made = {s for p in branch.forward for s in problem.nodes[p].outputs}
    own = made | {s for p in branch.backward for s in problem.nodes[p].outputs}
    read = dict.fromkeys(s for p in branch.backward for s in problem.nodes[p].inputs)
    given = [s for s in read if s not in own and problem.storages[s].producer >= problem.loss]
    outside = set(range(len(problem.nodes))) - set(kept)
    shown = sorted(s for s in made if outside.intersection(problem.readers[s]))
    loss = _loss_between(problem.nodes[problem.loss], shown, given)
    nodes = [loss if p == problem.loss else problem.nodes[p] for p in kept]
    loss_place = places[problem.loss]
    met = {s for node in nodes for s in (*node.inputs, *node.outputs)}
    storages = [
        replace(
            storage,
            producer=loss_place if s in given else places.get(storage.producer, NO_VALUE),
            bytes=storage.bytes if s in met else 0,
        )
        for s, storage in enumerate(problem.storages)
    ]
    return PlanningGraph(nodes, storages, problem.state_bytes)


def _loss_between(loss: PlanningNode, inputs: list[int], outputs: list[int]) -> PlanningNode:
    return replace(loss, seconds=0.0, peak=0, inputs=inputs, outputs=outputs)


def _forward_labels(facts: GradientFlow) -> dict[int, int]:
    """The part of each forward node that is not pure: the first node of a branch, or `_HEAD`.

    Parts are told by what gradients reach; what else a node reads, as a statistic that another part
    has counted, decides where it reads nothing of that kind."""
    problem = facts.problem
    parent: dict[int, int] = {}
    count: dict[int, int] = {}
    label: dict[int, int] = {}

    def root(position: int) -> int:
        while parent[position] != position:
            position = parent[position]
        return position

    for position in range(problem.loss):
        if position in facts.pure:
            continue
        parent[position], count[position] = position, 1
        read = problem.nodes[position].inputs
        makers = {s: problem.storages[s].producer for s in read}
        found = {s: maker for s, maker in makers.items() if maker in label}
        followed = facts.differentiable_storages.intersection(found) or found
        sources = {_HEAD if label[found[s]] == _HEAD else root(found[s]) for s in followed}
        large = {
            source for source in sources if source != _HEAD and count[source] >= MIN_BRANCH_OPS
        }
        if _HEAD in sources or len(large) > 1:
            label[position] = _HEAD
            continue
        label[position] = position
        target = min(large or sources or {position})
        for source in {*sources, position} - {target}:
            parent[source] = target
            count[target] += count[source]
    parts = {position: own if own == _HEAD else root(position) for position, own in label.items()}
    return _without_small(facts, parts, {own for own in count if count[own] >= MIN_BRANCH_OPS})


def _without_small(
    facts: GradientFlow, parts: dict[int, int], large: Collection[int]
) -> dict[int, int]:
    """Of the parts that gradients reach only large ones are branches, the others are the head's;
    what they do not reach, as counters of steps, belongs to what runs before it."""
    nodes = facts.problem.nodes
    reached = {
        own
        for p, own in parts.items()
        if not facts.differentiable_storages.isdisjoint(nodes[p].outputs)
    }
    branches = [own for own in parts.values() if own in reached and own in large]
    before = branches[0] if branches else _HEAD
    found: dict[int, int] = {}
    for position, own in parts.items():
        if own == _HEAD or own in branches:
            found[position] = before = own
        else:
            found[position] = _HEAD if own in reached else before
    return found


def _backward_labels(facts: GradientFlow, ahead: dict[int, int]) -> dict[int, int]:
    """The branch of each backward node that belongs to one; what waits for several branches, or
    comes before all of them, belongs to none. Nothing at all where the backward of one branch
    waits for that of another."""
    problem = facts.problem
    places = range(problem.loss + 1, len(problem.nodes))
    inner = {position: _branches_read(facts, ahead, position) for position in places}
    above: dict[int, frozenset[int]] = {}
    for position in places:
        makers = (problem.storages[s].producer for s in problem.nodes[position].inputs)
        found = [above[maker] for maker in makers if maker in above]
        above[position] = frozenset(inner[position]).union(*found)
    below: dict[int, frozenset[int]] = {}
    head: set[int] = set()
    for position in reversed(places):
        after = {r for s in problem.nodes[position].outputs for r in problem.readers[s]}
        below[position] = frozenset(inner[position]).union(*(below[r] for r in after if r in below))
        foreign = _reads_other_branches(facts, ahead, position, below[position])
        if not above[position] and (
            len(below[position]) != 1 or foreign or not head.isdisjoint(after)
        ):
            head.add(position)
    if any(len(inner[p]) == 1 and len(above[p]) > 1 for p in places):
        return {}
    return {
        position: next(iter(above[position] or below[position]))
        for position in places
        if position not in head and len(above[position]) <= 1
    }


def _branches_read(facts: GradientFlow, ahead: dict[int, int], position: int) -> set[int]:
    """The branches of which a backward node reads what their forward made for themselves."""
    problem = facts.problem
    found = set()
    for storage in problem.nodes[position].inputs:
        own = ahead.get(problem.storages[storage].producer, _HEAD)
        if own != _HEAD and not _leaves_branch(problem, ahead, storage, own):
            found.add(own)
    return found


def _leaves_branch(problem: PlanningGraph, ahead: dict[int, int], storage: int, own: int) -> bool:
    """Whether the head's forward or the loss reads what a branch made."""
    return any(
        reader == problem.loss or (reader < problem.loss and ahead.get(reader, own) != own)
        for reader in problem.readers[storage]
    )


def _reads_other_branches(
    facts: GradientFlow, ahead: dict[int, int], position: int, below: Collection[int]
) -> bool:
    """Whether a backward node reads what the head's forward made, or branches other than those that
    wait for it."""
    problem = facts.problem
    makers = (problem.storages[s].producer for s in problem.nodes[position].inputs)
    return any(ahead[maker] not in below for maker in makers if maker in ahead)
