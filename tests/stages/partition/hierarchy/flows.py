"""Forwards to cluster: random ones, and three families of any length."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from tightfit.stages.partition.hierarchy.arrays import Array, ForwardGraph

Node = tuple[str, list[int], list[int]]
"""A node's label, the values that it reads, and the bytes of those that it makes; values are
numbered as they are made, from the number of given ones on."""


def flow_of(
    nodes: Sequence[Node], given: Sequence[int] = (), results: Sequence[int] = ()
) -> ForwardGraph:
    """The forward of a list of nodes, with the values that outlive it."""
    labels = sorted({label for label, _, _ in nodes})
    number = {label: index for index, label in enumerate(labels)}
    sizes = [*given, *(size for _, _, made in nodes for size in made)]
    read = [value for _, inputs, _ in nodes for value in inputs]
    result = np.zeros(len(sizes), np.bool_)
    result[list(results)] = True
    return ForwardGraph(
        labels=labels,
        kind=np.array([number[label] for label, _, _ in nodes], np.int64),
        input_start=_starts([len(inputs) for _, inputs, _ in nodes]),
        input_item=np.array(read, np.int64),
        output_start=_starts([len(made) for _, _, made in nodes]),
        output_item=np.arange(len(given), len(sizes)),
        bytes=np.array(sizes, np.int64),
        result=result,
    )


def relabeled(flow: ForwardGraph, order: Array) -> ForwardGraph:
    """The same forward, its node `order[i]` numbered i."""
    inputs = _taken(flow.input_start, flow.input_item, order)
    outputs = _taken(flow.output_start, flow.output_item, order)
    return replace(
        flow,
        kind=flow.kind[order],
        input_start=inputs[0],
        input_item=inputs[1],
        output_start=outputs[0],
        output_item=outputs[1],
    )


@st.composite
def random_flows(draw: st.DrawFn, most: int = 40, distinct: bool = False) -> ForwardGraph:
    """Nodes of several outputs or none, values given, empty, unread or read twice by a node, and
    results that are given; with `distinct` sizes, no two nodes are alike."""
    given = draw(st.lists(st.integers(0, 9), max_size=2))
    count = draw(st.integers(1, most))
    reach = draw(st.integers(1, 8))
    made = len(given)
    nodes: list[Node] = []
    for _ in range(count):
        known = st.integers(max(0, made - reach), made - 1)
        inputs = draw(st.lists(known, max_size=3)) if made else []
        sizes = draw(st.lists(st.integers(0, 9), max_size=3 if draw(st.booleans()) else 1))
        nodes.append((draw(st.sampled_from("abc")), inputs, sizes))
        made += len(sizes)
    results = draw(st.lists(st.integers(0, made - 1), max_size=2)) if made else []
    flow = flow_of(nodes, given, results)
    if not distinct:
        return flow
    return replace(
        flow,
        labels=[f"{i}" for i in range(count)],
        kind=np.arange(count),
        bytes=flow.bytes * 1000 + np.array([2**i % 1009 for i in range(made)], np.int64),
    )


def layered(count: int, width: int = 8, seed: int = 0) -> ForwardGraph:
    """Layers of `width` nodes of random sizes; each node reads one to three of the layer before,
    one in twenty also something older."""
    draw = random.Random(seed)
    nodes: list[Node] = []
    for index in range(count):
        layer = index // width * width
        inputs = []
        if layer:
            inputs = [draw.randrange(layer - width, layer) for _ in range(draw.randint(1, 3))]
            if draw.random() < 0.05:
                inputs.append(draw.randrange(max(0, layer - 40 * width), layer))
        nodes.append((draw.choice("abcdef"), inputs, [draw.randrange(1, 10**6)]))
    return flow_of(nodes, results=[count - 1])


def transformer(count: int) -> ForwardGraph:
    """Equal layers of 16 nodes with residual connections between an embedding and a head, all of
    which read one mask."""
    nodes: list[Node] = [("embed", [], [64]), ("mask", [], [16])]
    stream, values = 0, 2

    def add(label: str, *inputs: int, sizes: Sequence[int] = (64,)) -> int:
        nonlocal values
        nodes.append((label, list(inputs), list(sizes)))
        values += len(sizes)
        return values - len(sizes)

    while len(nodes) + 17 <= count:
        norm = add("norm", stream, sizes=(64, 1, 1))
        query, key, value = (add("project", norm) for _ in range(3))
        scores = add("matmul", query, key, sizes=(256,))
        weights = add("softmax", add("masked", scores, 1, sizes=(256,)), sizes=(256,))
        mixed = add("matmul", weights, value)
        stream = add("add", stream, add("dropout", add("project", mixed), sizes=(64, 16)))
        norm = add("norm", stream, sizes=(64, 1, 1))
        up = add("gelu", add("up", norm, sizes=(256,)), sizes=(256,))
        stream = add("add", stream, add("dropout", add("down", up), sizes=(64, 16)))
    return flow_of(nodes, results=[add("head", stream, sizes=(500,))])


def unet(count: int) -> ForwardGraph:
    """A way down and one up, of levels of four nodes, each level read again on the way up."""
    nodes: list[Node] = [("stem", [], [64])]
    depth = max(1, (count - 1) // 9)
    skips = []
    for level in range(depth):
        for label in ("conv", "norm", "relu", "pool"):
            nodes.append((label, [len(nodes) - 1], [64 >> min(level % 8, 5)]))
        skips.append(len(nodes) - 2)
    for level in reversed(range(depth)):
        size = 64 >> min(level % 8, 5)
        nodes.append(("up", [len(nodes) - 1], [size]))
        nodes.append(("cat", [len(nodes) - 1, skips[level]], [2 * size]))
        for label in ("conv", "norm", "relu"):
            nodes.append((label, [len(nodes) - 1], [size]))
    return flow_of(nodes, results=[len(nodes) - 1])


FAMILIES: dict[str, Callable[[int], ForwardGraph]] = {
    "layered": layered,
    "transformer": transformer,
    "unet": unet,
}


def _starts(sizes: Sequence[int]) -> Array:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)


def _taken(start: Array, item: Array, order: Array) -> tuple[Array, Array]:
    lists = [item[start[node] : start[node + 1]] for node in order]
    return _starts([len(found) for found in lists]), np.concatenate([*lists, item[:0]])
