"""The runs of a part of a step by itself: storages numbered as they appear, and bytes of what the
part counts alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tightfit.schemas.problem import Node, Problem, Repeat, Reuse


class StepPart:
    """Numbers the storages of a part of a problem, and writes its nodes; `bytes_of` says what the
    part counts of a storage. `numbers` are by storage."""

    def __init__(self, problem: Problem, bytes_of: Callable[[int], int]) -> None:
        self.problem = problem
        self.bytes_of = bytes_of
        self.numbers: dict[int, int] = {}

    def number(self, storages: Iterable[int]) -> list[int]:
        """The numbers of storages, of new ones the next."""
        return [self.numbers.setdefault(storage, len(self.numbers)) for storage in storages]

    def node(self, position: int, op: int, repeatable: bool, repeats: bool) -> Node:
        """The node at a position of the problem, as the op of another number; it has the form of a
        further run where it `repeats`."""
        node = self.problem.nodes[position]
        return Node(
            op=op,
            phase=node.phase,
            seconds=node.seconds,
            peak=self._peak(node),
            inputs=self.number(node.inputs),
            outputs=self.number(node.outputs),
            reuses=self._reuses(node),
            random=node.random,
            repeatable=repeatable,
            repeat=self._repeat(node.repeat) if node.repeat and repeats else None,
        )

    def _repeat(self, form: Repeat) -> Repeat:
        inputs, outputs = self.number(form.inputs), self.number(form.outputs)
        return Repeat(inputs, outputs, form.seconds, self._peak(form))

    def _reuses(self, node: Node) -> list[Reuse]:
        """The forms in place that take no longer, of storages that the part counts."""
        if not node.outputs or not self.bytes_of(node.outputs[0]):
            return []
        spared = self._uncounted(node)
        return [
            Reuse(self.numbers[reuse.storage], reuse.seconds, reuse.peak - spared)
            for reuse in node.reuses
            if reuse.seconds <= node.seconds and self.bytes_of(reuse.storage)
        ]

    def _peak(self, form: Node | Repeat) -> int:
        return form.peak - self._uncounted(form)

    def _uncounted(self, form: Node | Repeat) -> int:
        """The bytes of what a run makes that the part does not count."""
        storages = self.problem.storages
        return sum(storages[s].bytes - self.bytes_of(s) for s in form.outputs)
