"""Where the unplanned step's time and memory go, as the tree of the model's modules."""

from __future__ import annotations

from dataclasses import dataclass, field

from tightfit.schemas.costs import Costs
from tightfit.schemas.graph import NONE, Graph


@dataclass
class ModuleShare:
    """One module with all below it: seconds of its forward and backward ops, bytes that its
    forward makes and its backward reads (`kept`), bytes of its parameters."""

    name: str
    path: str
    forward: float = 0.0
    backward: float = 0.0
    kept: int = 0
    parameters: int = 0
    children: list[ModuleShare] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Forward and backward together."""
        return self.forward + self.backward


def module_tree(graph: Graph, costs: Costs) -> ModuleShare:
    """The tree of modules that ops or parameters come from; children in the order of the run.

    A tied parameter counts where it is named first.
    """
    tree = _Tree(graph.model)
    for op in graph.ops:
        seconds = costs.of(graph, op).seconds
        for module in tree.line(op.module):
            if op.phase == "forward":
                module.forward += seconds
            else:
                module.backward += seconds
    for storage, path in _kept(graph).items():
        for module in tree.line(path):
            module.kept += graph.storages[storage]
    for path, size in _parameters(graph):
        for module in tree.line(path):
            module.parameters += size
    return tree.root


class _Tree:
    def __init__(self, name: str) -> None:
        self.root = ModuleShare(name, "")
        self.known = {"": self.root}

    def line(self, path: str) -> list[ModuleShare]:
        """The modules from the root down to a path, made where they are new."""
        line = [self.root]
        names = path.split(".") if path else []
        for depth, name in enumerate(names, start=1):
            prefix = ".".join(names[:depth])
            if prefix not in self.known:
                self.known[prefix] = ModuleShare(name, prefix)
                line[-1].children.append(self.known[prefix])
            line.append(self.known[prefix])
        return line


def _kept(graph: Graph) -> dict[int, str]:
    """Storages that the forward makes and the backward reads, with the module that makes them."""
    fixed = graph.fixed_storages()
    made: dict[int, str] = {}
    kept: dict[int, str] = {}
    for op in graph.ops:
        if op.phase == "forward":
            for value in op.outputs:
                if value != NONE:
                    made.setdefault(graph.values[value].storage, op.module)
        elif op.phase == "backward":
            read = {graph.values[value].storage for value in op.inputs}
            kept.update({storage: made[storage] for storage in read & made.keys()})
    return {storage: path for storage, path in kept.items() if storage not in fixed}


def _parameters(graph: Graph) -> list[tuple[str, int]]:
    """The module path and the bytes of each parameter's storage, each storage once."""
    seen: set[int] = set()
    rows = []
    for value in graph.values:
        if value.kind == "parameter" and value.storage not in seen:
            seen.add(value.storage)
            rows.append((value.path.rpartition(".")[0], graph.storages[value.storage]))
    return rows
