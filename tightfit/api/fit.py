"""How a training step fits on cards that are only described: the stages in one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from tightfit.api.fit_graphs import FitModel, StepGraphs, trace_step
from tightfit.api.trainer_flags import closest_flags
from tightfit.schemas.card_fit import CardFit, ModelFit, WayFit, WayName
from tightfit.schemas.link import HOST, HostLink, read_host_link
from tightfit.schemas.machine import MachineDevice, read_machine
from tightfit.util.child_process import ChildProcess, call_in_parallel

if TYPE_CHECKING:
    from tightfit.schemas.graph.training_graph import Graph
    from tightfit.stages.combine.card_fit import CardStep
    from tightfit.stages.combine.card_offload import CardOffload

PLANNING_MODULES = (
    "tightfit.stages.combine.card_batches",
    "tightfit.stages.combine.card_offload",
    "tightfit.stages.partition.block_chain",
    "tightfit.stages.profile.roofline",
    "tightfit.stages.solve.search",
)
"""What planning loads while the model is traced, once for all processes that are forked."""
ON_CARD: tuple[WayName, ...] = ("eager", "checkpoint", "plan")
"""The ways that keep parameters and states on the card."""


@dataclass(frozen=True)
class HostComputer:
    """The computer around a card whose description does not say: bytes of memory, bytes a second of
    the link in each direction and those that its processor reads and writes."""

    memory: int
    link_bandwidth: float
    bandwidth: float


@dataclass(frozen=True)
class CardProblem:
    """A described card and the computer around it."""

    name: str
    path: Path
    host: HostComputer

    @cached_property
    def device(self) -> MachineDevice:
        """The card; raises ConfigError or ArtifactError where its description is amiss."""
        return read_machine(self.path).single_device(self.path)

    def offload(self, step: CardStep) -> CardOffload:
        """The step with the link of the description, else with the computer that was given."""
        from tightfit.stages.combine.card_offload import CardOffload

        machine, host = read_machine(self.path), self.host
        if not machine.memories:
            link = HostLink(
                host.link_bandwidth, shared=False, room=host.memory, memory=self.device.memory
            )
            return CardOffload(step, link, host.bandwidth)
        link = read_host_link(machine, self.path)
        own = next(memory for memory in machine.memories if memory.name == (link.to or HOST))
        return CardOffload(step, link, own.bandwidth or host.bandwidth)

    def step(self, graph: Graph, optimizer: str, layer_path: str) -> CardStep:
        """The step of a graph on the card, with the options of its blocks that take no solver."""
        from tightfit.stages.combine.card_fit import CardStep
        from tightfit.stages.partition.block_chain import get_partitioner
        from tightfit.stages.profile.roofline import roofline
        from tightfit.stages.solve.search import OptionGrid, search_block

        costs = roofline(graph, self.path)
        blocks = get_partitioner("cuts")(graph, costs)
        options = {
            digest: search_block(digest, problem, "none", OptionGrid()).options
            for digest, problem in blocks.problems.items()
        }
        return CardStep(graph, costs, blocks, options, self.device, optimizer, layer_path)

    def resized(self, step: CardStep, graph: Graph) -> CardStep:
        """The step of other samples, which runs the same ops, by its graph."""
        from tightfit.stages.profile.roofline import roofline

        return replace(step, graph=graph, costs=roofline(graph, self.path))


def fit_model(
    source: FitModel,
    batch: int,
    tokens: int | None,
    optimizer: str,
    cards: Sequence[CardProblem],
    workers: int,
    report: Callable[[str], None] = lambda doing: None,
) -> ModelFit:
    """How a model fits on cards.

    Args:
        source: Where the model comes from.
        batch: The samples of a step.
        tokens: The tokens of a sample, None where that is not known.
        optimizer: A name of `OPTIMIZER_STATE_COUNTS`.
        cards: The described cards.
        workers: How many processes work at a time.
        report: Is told what is done.

    Raises:
        ConfigError: A description or the configuration is wrong.
        ModelError: The model cannot be made or traced.
    """
    begun = perf_counter()
    for card in cards:
        _ = card.device
    report("tracing the step, without weights")
    with ChildProcess() as child:
        graphs = child.call(partial(trace_step, source, batch, workers), _load_planning)
    report("planning for each card")
    task = FitTask(optimizer, graphs, batch)
    fits = call_in_parallel([partial(task.fit, card) for card in cards], workers)
    return _model_fit(source.name, batch, tokens, optimizer, graphs, fits, begun)


def _load_planning() -> None:
    for module in PLANNING_MODULES:
        import_module(module)


def _model_fit(
    name: str,
    batch: int,
    tokens: int | None,
    optimizer: str,
    graphs: StepGraphs,
    fits: list[CardFit],
    begun: float,
) -> ModelFit:
    from tightfit.stages.combine.memory_budget import baseline_bytes
    from tightfit.stages.combine.optimizer_offload.optimizer_in_backward import (
        count_optimizer_states,
    )

    graph = graphs.graph
    fixed = baseline_bytes(graph)
    trained = {graph.values[gradient.value].storage for gradient in graph.gradients}
    trained_bytes = sum(graph.storages[storage] for storage in trained)
    numbers = {
        value.storage: math.prod(value.shape) for value in graph.values if value.kind == "parameter"
    }
    return ModelFit(
        model=name,
        batch=batch,
        tokens=tokens,
        optimizer=optimizer,
        parameters=sum(numbers.values()),
        parameter_bytes=fixed.parameters,
        gradient_bytes=fixed.gradients,
        state_bytes=trained_bytes * count_optimizer_states(optimizer, {}),
        layers=graphs.layers,
        traced_layers=graphs.traced_layers,
        assumptions=dict(graphs.assumptions),
        seconds=perf_counter() - begun,
        cards=fits,
    )


@dataclass(frozen=True)
class FitTask:
    """What is asked of each card: the optimizer, the graphs of the step, and the batch."""

    optimizer: str
    graphs: StepGraphs
    batch: int

    def fit(self, card: CardProblem) -> CardFit:
        """How the step fits on a card."""
        from tightfit.stages.simulate.simulate import pause_gc

        with pause_gc():
            return self._fit(card)

    def _fit(self, card: CardProblem) -> CardFit:
        step = card.step(self.graphs.graph, self.optimizer, self.graphs.layer_path)
        offload, memory = card.offload(step), card.device.memory
        ways = [*(step.fit(name, memory) for name in ON_CARD), offload.fit(memory)]
        layers = step.least_recomputed_layers(memory) if ways[1].fits else None
        found = CardFit(
            card=card.name,
            memory=memory,
            ways=self._with_batches(card, step, ways),
            least_bytes=step.least_bytes,
            least_offload_bytes=offload.least_bytes,
            frontier=step.frontier,
            recomputed_layers=layers,
            flags=[],
        )
        return replace(found, flags=closest_flags(found, step.layers))

    def _with_batches(
        self, card: CardProblem, step: CardStep, ways: Sequence[WayFit]
    ) -> list[WayFit]:
        """The ways with the largest batches of their plans of the fewest bytes; None for all if the
        sizes at other batches are not known."""
        from tightfit.stages.combine.card_batches import BatchLine, doubles_sizes, largest_batch

        graphs, memory = self.graphs, card.device.memory
        if graphs.pair is None or not doubles_sizes(*graphs.pair):
            return list(ways)
        one, two = graphs.pair
        if one is not graphs.graph:
            step = card.step(one, self.optimizer, graphs.layer_path)
        line = BatchLine(step, card.resized(step, two), graphs.pair_batch)
        found = {name: line.largest(step.smallest(name), memory) for name in ON_CARD}
        one_away, two_away = card.offload(step), card.offload(line.double)
        found["offload"] = max(
            largest_batch(one_away.requests(plan), two_away.requests(plan), line.batch, memory)
            for plan in step.smallest_plans
        )
        if one_away.host_bytes > one_away.link.room:
            found["offload"] = 0
        known = self.batch
        return [
            replace(way, largest_batch=max(found[way.way], known if way.fits else 0))
            for way in ways
        ]
