"""Chains of the networks of M on a device of its days: traced under tensors without memory, with
times by roofline, and partitioned."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.__main__ import main as run_stage
from tightfit.schemas.block_options import read_block_options
from tightfit.schemas.blocks import read_blocks
from tightfit.schemas.chain import Chain, ChainPosition, read_chain, write_chain
from tightfit.stages.combine.chain.options import ChainProblem, build_model_chain_problem

BATCH, SIZE = 8, 1000
"""Images and pixels of a side (M 5.1)."""
IMAGES = BATCH * 3 * SIZE * SIZE * 4
"""Their bytes."""
DEVICE = {
    "artifact": "tightfit.machine/1",
    "name": "v100",
    "devices": [
        {
            "name": "cuda:0",
            "memory": 16_000_000_000,
            "flops": {"float32": 15.7e12},
            "bandwidth": 9e11,
            "latency": 4e-6,
        }
    ],
    "sources": {
        "memory": "NVIDIA Tesla V100 GPU Accelerator, datasheet: 16 GB HBM2",
        "flops.float32": "NVIDIA Tesla V100 GPU Accelerator, datasheet: 15.7 TFLOPS, NVLink",
        "bandwidth": "NVIDIA Tesla V100 GPU Accelerator, datasheet: 900 GB/s",
        "latency": "as that of schemas/machines/t4.json",
    },
}


@dataclass(frozen=True)
class Network:
    """A network: its title, a name, its factory with arguments, the bytes of its inputs, and the
    machine that it is planned for, DEVICE where none is named."""

    title: str
    name: str
    factory: str
    arguments: dict[str, Any]
    input_bytes: int
    machine: str = ""


def _of_images(title: str, family: str, name: str) -> Network:
    """A network of pytorchcv."""
    arguments = {"family": family, "name": name, "batch": BATCH, "size": SIZE}
    return Network(title, name, "data.zoo_vision:convnet", arguments, IMAGES)


NETWORKS = (
    _of_images("ResNet-50", "resnet", "resnet50"),
    _of_images("ResNet-101", "resnet", "resnet101"),
    _of_images("Inception-v3", "inceptionv3", "inceptionv3"),
    _of_images("DenseNet-121", "densenet", "densenet121"),
)
DEEP = Network("GPT-2 XL", "gpt2_xl", "data.large_models:gpt2_xl", {}, 8 * 1024 * 8, "h100")


def chain_of_network(network: Network, folder: Path) -> Chain:
    """The chain of a network, its blocks each a position; made once and kept in a folder."""
    place = folder / network.name
    if not (place / "chain.arrow").exists():
        place.mkdir(parents=True, exist_ok=True)
        (place / "device.json").write_text(json.dumps(DEVICE))
        for words in _stages(network, place):
            if run_stage(words):
                raise SystemExit(f"{words[0]} failed")
        blocks, options = (
            read_blocks(place / "blocks.arrow"),
            read_block_options(place / "options.arrow"),
        )
        ways = build_model_chain_problem(blocks, options, keep_all_only=True)
        chain = chain_of_links(ways, network.input_bytes, blocks.blocks[0].outgoing_bytes)
        write_chain(place / "chain.arrow", chain)
    return read_chain(place / "chain.arrow")


def _stages(network: Network, place: Path) -> list[list[str]]:
    graph, costs = str(place / "graph.arrow"), str(place / "costs.arrow")
    blocks, options = str(place / "blocks.arrow"), str(place / "options.arrow")
    made, device = ["--graph", graph], network.machine or str(place / "device.json")
    factory = ["--factory", network.factory, "--arguments", json.dumps(network.arguments)]
    solved = ["--store", str(place / "store"), "--solver", "none", "--out", options]
    return [
        ["trace", *factory, "--name", network.name, "--out", graph],
        ["profile", *made, "--source", "roofline", "--machine", device, "--out", costs],
        ["partition", *made, "--costs", costs, "--out", blocks],
        ["solve", "--blocks", blocks, *solved],
    ]


def chain_of_links(ways: ChainProblem, a_0: int, delta_0: int) -> Chain:
    """A chain in which every position keeps everything, parameters counted by their gradients, from
    the bytes of its input and of the gradient of this."""
    rows = []
    before = delta_0
    for number, one in enumerate(ways.positions, start=1):
        way = one.ways[0]
        there = way.save + one.delta + before + one.gradient
        rows.append(
            ChainPosition(
                position=number,
                u_f=way.forward_seconds,
                u_b=way.backward_seconds,
                a=one.output,
                abar=max(way.save, one.output),
                delta=one.delta,
                o_f=max(way.forward_peak - way.save, 0),
                o_b=max(way.backward_peak - there, 0),
                weight=max(one.gradient, 0),
                grad=0,
                label="",
            )
        )
        before = one.delta
    return Chain(rows, a_0, delta_0)
