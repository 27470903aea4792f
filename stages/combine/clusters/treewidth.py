"""Options of a cluster by the heuristic for any graph (Z 3.2.2, H-TWREMAT)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tightfit.schemas.problem import Problem
from tightfit.stages.combine.bounds import least_peak
from tightfit.stages.combine.clusters.ways import Option
from tightfit.stages.combine.treewidth.decomposition import decomposed
from tightfit.stages.combine.treewidth.schedule import scheduled
from tightfit.stages.replay.line import FASTEST, executions

LARGEST = 600
"""Nodes of the largest cluster that is decomposed."""


def by_treewidth(problem: Problem, count: int) -> Iterator[Option]:
    """The schedules of a tree decomposition for so many peaks, from below what keeping everything
    takes down to the least, of a cluster that is a problem by itself."""
    if len(problem.nodes) > LARGEST:
        return
    whole = _forward_first(problem)
    decomposition = decomposed(whole)
    everything = range(len(problem.nodes))
    played = executions(problem, everything, in_place=True, ceiling=FASTEST)
    highest, least = max(run.peak for run in played), least_peak(problem)
    for number in range(1, count + 1):
        sequence = scheduled(whole, decomposition, highest - (highest - least) * number // count)
        if sequence is not None:
            yield Option.of(problem, sequence)


def _forward_first(problem: Problem) -> Problem:
    """The problem with a loss that reads what the forward ends in, so that all of the forward runs
    ahead of it."""
    loss = problem.loss
    read = {storage for node in problem.nodes[:loss] for storage in node.inputs}
    ends = [s for node in problem.nodes[:loss] for s in node.outputs if s not in read]
    nodes = list(problem.nodes)
    nodes[loss] = replace(nodes[loss], inputs=ends)
    return replace(problem, nodes=nodes)
