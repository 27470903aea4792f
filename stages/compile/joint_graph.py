"""A joint graph of AOTAutograd as arrays for the simulator."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from tightfit.stages.compile.input_mutations import written_nodes
from tightfit.stages.compile.node_costs import estimate_seconds, hinted_bytes, workspace_bytes
from tightfit.stages.compile.partition_memory import JointArrays, backward_nodes

_RANDOM = torch.Tag.nondeterministic_seeded
_PURE_NAMESPACES = ("aten", "prims", "inductor_prims")
"""Those whose operators tell by tags and schemas whether they are random or change something."""
_TANGENTS_STAY = not hasattr(torch.autograd.Function, "boxed_grads_call")
"""Before PyTorch 2.13, autograd holds the gradients that it gives a compiled backward."""


class JointNodes:
    """The nodes of a joint graph, numbered, and their arrays.

    Args:
        graph: The joint graph.
        node_info: What AOTAutograd's partitioner knows of its nodes (`NodeInfo`).
        fuses: Whether the backend fuses pointwise operators, as inductor does.
    """

    def __init__(self, graph: fx.Graph, node_info: Any, fuses: bool) -> None:
        *self.nodes, output = graph.nodes
        self.index = {node: number for number, node in enumerate(self.nodes)}
        self.parameters = set(node_info.static_lifetime_input_nodes)
        forward, backward = _split_outputs(output, node_info)
        self.forward_outputs = [n for n in forward if isinstance(n, fx.Node)]
        self._storages: list[list[int]] = []
        self._keys: list[list[int]] = []
        self._bytes: list[int] = []
        self.input_bytes: dict[fx.Node, int] = {}
        for node in self.nodes:
            self._add_storages(node)
        depends = set(node_info.tangents_closure)
        self.is_forward = np.array([node not in depends for node in self.nodes])
        self._reads_written = self._readers(written_nodes(graph))
        self.arrays = self._arrays(node_info, backward, fuses)
        self._owners = {self._storages[at][0]: at for at in self._candidates()}
        self.candidates = np.array(sorted(self._owners.values()), np.int64)
        self.tangents = [node for node in self.nodes if _is_tangent(node)]
        self.tensor_outputs = [n for n in self.forward_outputs if _is_tensor(n)]
        self.gradient_bytes = sum(hinted_bytes(n.meta["val"]) for n in backward if _is_tensor(n))

    def mask_of(self, saved: list[fx.Node]) -> NDArray[np.bool_]:
        """Which nodes are saved: of a view that is saved, that which it is a view of, and all sizes
        that are symbols, which are free."""
        mask = np.array([is_symbolic(node) for node in self.nodes]) & self.is_forward
        for node in saved:
            number = self.index[node]
            base = self._storages[number]
            mask[self._owners.get(base[0], number) if len(base) == 1 else number] = True
        return mask

    def bytes_beside_kernels(self, saved: NDArray[np.bool_]) -> tuple[int, int]:
        """What there is at most beside what inductor's kernels read and make in the forward and in
        the backward of a saved set: what operators take inside, and what the caller holds of
        outputs."""
        in_backward, kept, _ = backward_nodes(self.arrays, saved)
        inside = self.arrays.workspace
        numbers = [self.index[node] for node in self.tensor_outputs]
        numbers += [self.index[node] for node in self.tangents if _TANGENTS_STAY]
        outputs = {storage for number in numbers for storage in self._storages[number]}
        read = (self._storages[number] for number in np.flatnonzero(kept))
        held = sum(self._bytes[each] for each in outputs.difference(*read))
        most = int(inside[in_backward].max(initial=0))
        return int(inside[self.is_forward].max(initial=0)), most + held

    def with_readers(self, saved: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """A saved set with what reads memory that is written later (of tuples, their items)."""
        mask = saved.copy()
        for number in np.flatnonzero(self._reads_written):
            node = self.nodes[number]
            items = [self.index[user] for user in node.users if user.target is operator.getitem]
            mask[items or number] = True
        return mask

    def _readers(self, written: set[fx.Node]) -> NDArray[np.bool_]:
        """Which nodes of the forward read the memory of `written` nodes and are no views of it:
        what they give cannot be had again."""
        changed = {storage for node in written for storage in self._storages[self.index[node]]}

        def reads(number: int, node: fx.Node) -> bool:
            given = (self._storages[self.index[each]] for each in node.all_input_nodes)
            return (
                not changed.issuperset(self._storages[number])
                and not changed.isdisjoint(storage for row in given for storage in row)
                and not (is_symbolic(node) or must_recompute(node))
            )

        return self.is_forward & [reads(*each) for each in enumerate(self.nodes)]

    def _add_storages(self, node: fx.Node) -> None:
        """Numbers the storages of a node's value: those of a view are its base's."""
        row = self._item_of_tuple(node)
        if row is None:
            known = self._argument_storages(node)
            leaves = pytree.tree_leaves(node.meta.get("val"))
            row = [self._storage_of(node, place, each, known) for place, each in enumerate(leaves)]
        self._storages.append([storage for storage, _ in row])
        self._keys.append([key for _, key in row])

    def _item_of_tuple(self, node: fx.Node) -> list[tuple[int, int]] | None:
        """The storage of an item of a tuple, with its key; None if it cannot be told so."""
        if node.target is not operator.getitem or not isinstance(node.args[1], int):
            return None
        owner = self.index[node.args[0]]
        value = self.nodes[owner].meta.get("val")
        if not isinstance(value, tuple | list) or len(value) != len(self._storages[owner]):
            return None
        place = node.args[1]
        return [(self._storages[owner][place], self._keys[owner][place])]

    def _storage_of(
        self, node: fx.Node, place: int, value: Any, known: dict[int, int]
    ) -> tuple[int, int]:
        """The number of the storage of a part of a node's value, and the key of its fake storage,
        0 for none; `known` are those of the arguments."""
        if not isinstance(value, Tensor):
            return self._new(0), 0
        key = value.untyped_storage()._cdata if _has_storage(value) else 0
        base = known.get(key) if key else None
        if base is None:
            base = self._alias_by_schema(node, place)
        if base is None:
            size = hinted_bytes(value)
            if node.op == "placeholder" and not _is_tangent(node):
                self.input_bytes[node] = size
            base = self._new(size if node.op == "call_function" or _is_tangent(node) else 0)
        return base, key

    def _new(self, size: int) -> int:
        self._bytes.append(size)
        return len(self._bytes) - 1

    def _argument_storages(self, node: fx.Node) -> dict[int, int]:
        """The storages of the arguments, by the fake storage that each lies in."""
        return {
            key: storage
            for argument in node.all_input_nodes
            for key, storage in zip(
                self._keys[self.index[argument]], self._storages[self.index[argument]], strict=True
            )
            if key
        }

    def _alias_by_schema(self, node: fx.Node, place: int) -> int | None:
        """The storage of the argument that an operator says it returns a view of."""
        schema = getattr(node.target, "_schema", None)
        if schema is None or place >= len(schema.returns):
            return None
        said = schema.returns[place].alias_info
        for argument, given in zip(schema.arguments, node.args, strict=False):
            alias = argument.alias_info
            if said is not None and alias is not None and said.before_set == alias.before_set:
                base = self._storages[self.index[given]] if isinstance(given, fx.Node) else []
                return base[0] if len(base) == 1 else None
        return None

    def _arrays(self, node_info: Any, backward: list[Any], fuses: bool) -> JointArrays:
        def numbers(nodes: list[Any]) -> Any:
            found = [self.index[node] for node in nodes if isinstance(node, fx.Node)]
            return np.array(found, np.int64)

        readers = [self.index[node] for node in self.nodes if _reads_tangent(node)]
        inputs = [[self.index[each] for each in node.all_input_nodes] for node in self.nodes]
        seconds = [estimate_seconds(node, fuses) for node in self.nodes]
        return JointArrays(
            *_rows(inputs),
            *_rows(self._storages),
            storage_bytes=np.array(self._bytes, np.int64),
            is_forward=self.is_forward,
            is_input=np.array([node.op in ("placeholder", "get_attr") for node in self.nodes]),
            is_item=np.array([node.target is operator.getitem for node in self.nodes]),
            never_again=self._reads_written | [must_run_once(node) for node in self.nodes],
            seconds=np.array(seconds, np.float64),
            workspace=np.array([workspace_bytes(node, fuses) for node in self.nodes], np.int64),
            forward_outputs=numbers(self.forward_outputs),
            backward_outputs=numbers(backward),
            tangents=numbers([n for n in self.nodes if _is_tangent(n)]),
            backward_start=min(readers, default=len(self.nodes)),
            tangents_stay=_TANGENTS_STAY,
        )

    def _candidates(self) -> Iterator[int]:
        """The nodes that may be saved: tensors of the forward that are no views."""
        seen: set[int] = set()
        for number, node in enumerate(self.nodes):
            storages = self._storages[number]
            owner = len(storages) == 1 and storages[0] not in seen
            if node.op != "call_function" or _is_tensor(node):
                seen.update(storages)
            if (
                owner
                and self.is_forward[number]
                and node.op == "call_function"
                and _is_tensor(node)
                and self._bytes[storages[0]]
                and not must_recompute(node)
            ):
                yield number


def must_recompute(node: fx.Node) -> bool:
    """Whether the user checkpointed a node."""
    return str(node.meta.get("recompute")) in (
        "CheckpointPolicy.MUST_RECOMPUTE",
        "CheckpointPolicy.PREFER_RECOMPUTE",
    )


def must_run_once(node: fx.Node) -> bool:
    """Whether a node gives something else, or does something, if it is run again."""
    if node.op != "call_function" or must_recompute(node):
        return False
    if str(node.meta.get("recompute")) == "CheckpointPolicy.MUST_SAVE":
        return True
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return not _is_plain(target)
    # Other operators (custom ones, collectives) may be random or have a state and not say so.
    pure = target.namespace in _PURE_NAMESPACES
    return not pure or _RANDOM in target.tags or target._schema.is_mutable


def _is_plain(target: Any) -> bool:
    """Whether a target that is no operator of a library may be run again."""
    return getattr(target, "__module__", "") in ("_operator", "math", "torch", "builtins") or (
        getattr(target, "__module__", "").startswith("torch.utils._sympy")
    )


def is_symbolic(node: fx.Node) -> bool:
    """Whether a node's value is a size that is a symbol."""
    return isinstance(node.meta.get("val"), torch.SymInt)


def _split_outputs(output: fx.Node, node_info: Any) -> tuple[list[Any], list[Any]]:
    """The outputs of the forward, and those of the backward: one for each input, and what comes
    behind them."""
    outputs = pytree.arg_tree_leaves(*output.args)
    forms = pytree.arg_tree_leaves(output.meta.get("desc", []))
    backward = next(
        (place for place, form in enumerate(forms) if "Grad" in type(form).__name__),
        len(outputs) - len(node_info.inputs),
    )
    count = min(backward, len(outputs) - len(node_info.inputs))
    return outputs[:count], outputs[count:]


def _is_tensor(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), Tensor)


def _has_storage(value: Tensor) -> bool:
    try:
        value.untyped_storage()
    except (NotImplementedError, RuntimeError):  # a sparse tensor has none
        return False
    return True


def _is_tangent(node: fx.Node) -> bool:
    return node.op == "placeholder" and "tangents" in str(node.target)


def _reads_tangent(node: fx.Node) -> bool:
    found: list[bool] = []
    map_arg((node.args, node.kwargs), lambda each: found.append(_is_tangent(each)))
    return any(found)


def _rows(rows: list[list[int]]) -> tuple[Any, Any]:
    """Lists of numbers as starts and numbers."""
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return starts, np.array([each for row in rows for each in row], np.int64)
