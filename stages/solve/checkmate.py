"""RK-Checkmate (Z 2.3-2.19): one block's fastest run within a peak and a save limit, as an ILP.

The order of nodes is unrolled into stages. A stage recomputes some of its candidates, in order, and
then runs its tail, the nodes that run for the first time. The variables are R[t,k] (node k is
recomputed in stage t) and S[t,i] (storage i is there when stage t begins).

Every storage has one producer here, since sums of gradients are nodes of their own. Therefore what
Z keeps apart coincides. S and P are one: a storage is created where it is not there and its
producer runs. The deletion after the last use that R and P leave, (2.16), needs no variables. With
need[t,i,k] >= R[t,k'] for each user k' >= k and >= S[t+1,i], the storage is live before step k
exactly where it is needed at or after it. Phantoms are outputs that the forward does not read, so
running a forward node without saving them is to delete them at once (their bytes are in the node's
own peak either way).

A node that may overwrite an input has two rows of memory: in the one it needs the least, in the
other an input that ends with it is not there any more (`stages.simulate.liveness.memory_limits`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import pulp

from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode, RecomputeVariant
from tightfit.stages.simulate.block import BlockSchedule
from tightfit.stages.simulate.liveness import memory_limits
from tightfit.stages.simulate.unroll import UnrolledStage, stages_after_loss, stages_per_node
from tightfit.stages.solve.heuristics import remove_unneeded_recomputes

PulpTerm: TypeAlias = int | pulp.LpVariable
"""A 0/1 quantity: a constant where the class of runs decides it, a variable otherwise."""


def full_stages(problem: PlanningGraph) -> list[UnrolledStage]:
    """One stage a node, everything earlier a candidate: Z's formulation as it stands."""
    return stages_per_node([problem.can_recompute(node) for node in problem.nodes])


def block_stages(problem: PlanningGraph, backward: bool = False) -> list[UnrolledStage]:
    """The stages of a block whose nodes run straight through until the loss.

    The first stage is the forward and the loss; a new stage begins at each backward node that
    reads what could have been dropped. Candidates are the nodes that this or a later stage could
    need, with `backward` those of the backward too. As far as only these run again, and only
    after the loss, nothing is lost against `full_stages`.
    """
    repeatable = {
        k
        for k, node in enumerate(problem.nodes)
        if problem.can_recompute(node) and (k < problem.loss or backward)
    }
    remade = {s for k in repeatable for s in problem.nodes[k].form(True).outputs}

    def begins(k: int) -> bool:
        return not remade.isdisjoint(problem.nodes[k].inputs)

    def makers(nodes: Iterable[int]) -> set[int]:
        read = [storage for k in nodes for storage in problem.nodes[k].inputs]
        return problem.ancestors(read, among=repeatable)

    return stages_after_loss(len(problem.nodes), problem.loss, begins, makers)


def choose_stages(problem: PlanningGraph, variables: int) -> tuple[str, list[UnrolledStage]]:
    """The largest class of runs whose program has at most `variables` binary ones, by name.

    "any node": as Z has it; "after the loss": any node, but none before the loss; "forward nodes":
    only these, after the loss. The last is taken however large it is.
    """
    for name, stages in (
        ("any node", full_stages(problem)),
        ("after the loss", block_stages(problem, backward=True)),
    ):
        if count_variables(stages) <= variables:
            return name, stages
    return "forward nodes", block_stages(problem)


def count_variables(stages: Sequence[UnrolledStage]) -> int:
    """The number of binary variables of a program with these stages."""
    return sum(len(stage.candidates) for stage in stages)


class BlockCheckmate:
    """The ILP of one block: `program` minimizes the seconds of recomputation, in shares of
    `scale` seconds. `feasible` is False where constants alone break a limit. Saved random states
    are not counted: what it proves holds with them too, and `simulate` adds them to a solution."""

    def __init__(
        self, problem: PlanningGraph, stages: Sequence[UnrolledStage], peak: int, save: int
    ) -> None:
        """Builds the program for limits in bytes, counted as in `schemas.block_options`."""
        self.problem = problem
        self.stages = list(stages)
        self.stage_of = {k: t for t, stage in enumerate(stages) for k in stage.tail}
        self.forms = [
            {
                **{k: problem.nodes[k].form(True) for k in stage.candidates},
                **{k: problem.nodes[k].form(False) for k in stage.tail},
            }
            for stage in stages
        ]
        self.readers = [_readers(forms) for forms in self.forms]
        self.dropped = {
            storage
            for storage, stored in enumerate(problem.storages)
            if stored.bytes and stored.producer >= 0 and not stored.stays
        }
        self.scale = sum(node.seconds for node in problem.nodes[: problem.loss]) or 1.0
        self.unit = max(peak, 1) / 1000
        self.program = pulp.LpProblem("checkmate", pulp.LpMinimize)
        self.feasible = True
        self.runs: list[dict[int, PulpTerm]] = [
            {
                **{k: self._binary(f"r_{t}_{k}") for k in stage.candidates},
                **dict.fromkeys(stage.tail, 1),
            }
            for t, stage in enumerate(stages)
        ]
        self.kept: list[dict[int, PulpTerm]] = [
            {s: self._kept(t, s) for s in range(len(problem.storages))}
            for t in range(len(stages) + 1)
        ]
        self._objective()
        for t in range(len(stages)):
            self._dependencies(t)
            self._memory(t, peak, save)

    def solution(self) -> BlockSchedule:
        """The run that the solved program describes, without useless recomputations."""
        order: list[int] = []
        for t, stage in enumerate(self.stages):
            order += [k for k in stage.candidates if _term_value(self.runs[t][k]) > 0.5]
            order += stage.tail
        loss = order.index(self.problem.loss)
        return remove_unneeded_recomputes(
            self.problem, BlockSchedule(tuple(order[:loss]), tuple(order[loss + 1 :]))
        )

    def start_from(self, run: BlockSchedule) -> None:
        """Gives the variables the values of a known run, for solvers that take a start."""
        order = [*run.forward, self.problem.loss, *run.backward]
        first = {k: order.index(k) for k in set(order)}
        ends = [first[stage.tail[0]] for stage in self.stages] + [len(order)]
        begin = 0
        for t, stage in enumerate(self.stages):
            executed = set(order[begin : ends[t]])
            for k in stage.candidates:
                variable = self.runs[t][k]
                if isinstance(variable, pulp.LpVariable):
                    variable.setInitialValue(int(k in executed))
            begin = first[stage.tail[-1]] + 1

    def _binary(self, name: str) -> pulp.LpVariable:
        return self.program.add_variable(name, cat=pulp.LpBinary)

    def _kept(self, t: int, storage: int) -> PulpTerm:
        """S[t,i], fixed where it cannot be chosen."""
        stored = self.problem.storages[storage]
        if stored.producer < 0:
            return 1
        own_stage = self.stage_of[stored.producer]
        if t <= own_stage:
            return 0
        if stored.stays:
            return 1
        later = range(t, len(self.stages))
        if not any(storage in self.readers[stage] for stage in later):
            return 0
        for stage in later:
            if self._maker(stage, storage) is not None:
                break
            if not self.readers[stage].get(storage, set()).isdisjoint(self.stages[stage].tail):
                return 1
        return self._binary(f"s_{t}_{storage}")

    def _maker(self, t: int, storage: int) -> int | None:
        """The node that makes a storage in stage t, None where none does."""
        k = self.problem.storages[storage].producer
        return k if k in self.forms[t] and storage in self.forms[t][k].outputs else None

    def _objective(self) -> None:
        self.program.setObjective(
            pulp.LpAffineExpression(
                [
                    (self.runs[t][k], self.forms[t][k].least_seconds / self.scale)
                    for t, stage in enumerate(self.stages)
                    for k in stage.candidates
                ]
            )
        )

    def _at_most(
        self, terms: Iterable[tuple[int, PulpTerm]], limit: int, unit: float = 1.0
    ) -> None:
        """Adds the constraint that a weighted sum of terms is at most a limit, in `unit`s."""
        weights: dict[pulp.LpVariable, int] = {}
        for weight, term in terms:
            if isinstance(term, int):
                limit -= weight * term
            else:
                weights[term] = weights.get(term, 0) + weight
        if weights:
            shares = [(variable, weight / unit) for variable, weight in weights.items()]
            self.program.addConstraint(
                pulp.LpConstraint(
                    pulp.LpAffineExpression(shares), pulp.LpConstraintLE, rhs=limit / unit
                )
            )
        elif limit < 0:
            self.feasible = False

    def _dependencies(self, t: int) -> None:
        """(2.7) and (2.8): inputs are there, and only what was there or is made stays."""
        steps = self.stages[t].steps
        for storage, stored in enumerate(self.problem.storages):
            if stored.producer < 0:
                continue
            maker = self._maker(t, storage)
            made = 0 if maker is None else self.runs[t][maker]
            here = self.kept[t][storage]
            self._implied(self.kept[t + 1][storage], here, made)
            for k in steps:
                if k in self.readers[t].get(storage, ()):
                    self._implied(self.runs[t][k], here, made if stored.producer < k else 0)

    def _implied(self, claim: PulpTerm, *grounds: PulpTerm) -> None:
        """claim <= sum of grounds, left out where constants say so."""
        if (isinstance(claim, int) and claim == 0) or any(
            isinstance(ground, int) and ground == 1 for ground in grounds
        ):
            return
        self._at_most([(1, claim), *((-1, ground) for ground in grounds)], 0)

    def _memory(self, t: int, peak: int, save: int) -> None:
        """(2.18) for each step of stage t, and (2.19) at the loss, whose own peak is not the
        block's."""
        steps = self.stages[t].steps
        live: list[dict[int, PulpTerm]] = [{} for _ in range(len(steps) + 1)]
        for storage, stored in enumerate(self.problem.storages):
            if stored.bytes:
                for step, term in enumerate(self._live(t, storage)):
                    live[step][storage] = term
        for step, k in enumerate(steps):
            if k == self.problem.loss:
                self._at_most(self._sizes(live[step]), min(save, peak), self.unit)
                continue
            for own, ending in memory_limits(self.problem, self.forms[t][k], (), self.dropped):
                there = {**live[step], **{storage: live[step + 1][storage] for storage in ending}}
                need = (own, self.runs[t][k])
                self._at_most([*self._sizes(there), need], peak, self.unit)

    def _sizes(self, live: Mapping[int, PulpTerm]) -> list[tuple[int, PulpTerm]]:
        return [(self.problem.storages[storage].bytes, term) for storage, term in live.items()]

    def _live(self, t: int, storage: int) -> list[PulpTerm]:
        """Whether a storage is live before each step of stage t, and at its end."""
        steps = self.stages[t].steps
        maker = self._maker(t, storage)
        made = -1 if maker is None else steps.index(maker)
        here, after = self.kept[t][storage], self.kept[t + 1][storage]
        if made < 0 and isinstance(here, int) and here == 0:
            return [0] * (len(steps) + 1)
        terms: list[PulpTerm] = [after]
        need = after
        for step in reversed(range(len(steps))):
            if step <= made:
                terms.append(here)
                continue
            if steps[step] in self.readers[t].get(storage, ()):
                need = self._either(f"n_{t}_{storage}_{step}", need, self.runs[t][steps[step]])
            terms.append(need)
        return terms[::-1]

    def _either(self, name: str, first: PulpTerm, second: PulpTerm) -> PulpTerm:
        if isinstance(first, int):
            return first if first else second
        if isinstance(second, int):
            return second if second else first
        either = self.program.add_variable(name, 0, 1)
        self._at_most([(1, first), (-1, either)], 0)
        self._at_most([(1, second), (-1, either)], 0)
        return either


def _readers(forms: Mapping[int, PlanningNode | RecomputeVariant]) -> dict[int, set[int]]:
    """By storage the nodes that read it in these forms."""
    found: dict[int, set[int]] = {}
    for k, form in forms.items():
        for storage in form.inputs:
            found.setdefault(storage, set()).add(k)
    return found


def _term_value(term: PulpTerm) -> float:
    return term if isinstance(term, int) else (term.value() or 0.0)
