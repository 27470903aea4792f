"""How a training step fits on cards that are only described: the stages in one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from tightfit.api.fit_graphs import ModelSource, StepGraphs
from tightfit.api.trainer_flags import closest_flags
from tightfit.schemas.card_fit import CardFit, ModelFit, WayFit, WayName
from tightfit.schemas.link import HOST, HostLink, read_host_link
from tightfit.schemas.machine import MachineDevice, read_machine
from tightfit.util.child_process import call_in_parallel

if TYPE_CHECKING:
    from tightfit.schemas.graph.training_graph import Graph
    from tightfit.stages.combine.card_fit import CardStep
    from tightfit.stages.combine.card_offload import CardOffload

MAX_BATCH = 1 << 20
MAX_ROUNDS = 4
"""How often batches are traced to find the largest ones."""
PLANNING_MODULES = (
    "tightfit.stages.combine.card_offload",
    "tightfit.stages.partition.block_chain",
    "tightfit.stages.profile.roofline",
    "tightfit.stages.solve.search",
)
"""What planning loads, once for all processes that are forked."""
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


def fit_model(
    source: ModelSource,
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
    report("making the model without weights")
    graphs = StepGraphs.of_model(source, batch, workers)
    report("tracing the step")
    graph = graphs.first(batch)
    report("planning for each card")
    for module in PLANNING_MODULES:
        import_module(module)
    task = FitTask(optimizer, graphs.layer_path, batch)
    fits = call_in_parallel([partial(task.fit, graph, card) for card in cards], workers)
    if source.varies_batch:
        report("tracing the largest batches")
        fits = _check_batches(graphs, task, cards, fits)
    else:
        fits = [_with_batches(fit, {}) for fit in fits]
    return _model_fit(source.name, batch, tokens, optimizer, graphs, graph, fits, begun)


def _model_fit(
    name: str,
    batch: int,
    tokens: int | None,
    optimizer: str,
    graphs: StepGraphs,
    graph: Graph,
    fits: list[CardFit],
    begun: float,
) -> ModelFit:
    from tightfit.stages.combine.memory_budget import baseline_bytes
    from tightfit.stages.combine.optimizer_offload.optimizer_in_backward import (
        count_optimizer_states,
    )

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
        seconds=perf_counter() - begun,
        cards=fits,
    )


@dataclass(frozen=True)
class FitTask:
    """What is asked of each card: the optimizer, where the model's layers are, and the batch."""

    optimizer: str
    layer_path: str
    batch: int

    def fit(self, graph: Graph, card: CardProblem) -> CardFit:
        """How the step of a graph fits on a card; the largest batches are guesses."""
        step = card.step(graph, self.optimizer, self.layer_path)
        offload, memory = card.offload(step), card.device.memory
        ways = [*(step.fit(name, memory) for name in ON_CARD), offload.fit(memory)]
        layers = step.least_recomputed_layers(memory) if ways[1].fits else None
        found = CardFit(
            card=card.name,
            memory=memory,
            ways=self._with_guesses(card, step, ways),
            least_bytes=step.least_bytes,
            least_offload_bytes=offload.least_bytes,
            frontier=step.frontier,
            recomputed_layers=layers,
            flags=[],
        )
        return replace(found, flags=closest_flags(found, step.layers))

    def _with_guesses(
        self, card: CardProblem, step: CardStep, ways: Sequence[WayFit]
    ) -> list[WayFit]:
        """Ways with the largest batch by a straight line through the step and one of twice the
        samples, which was not traced."""
        twice, memory = step.scaled(2.0), card.device.memory
        found = []
        for way in ways:
            plan = step.least(way.way)
            one, two = (
                card.offload(each).requested(plan) if way.way == "offload" else each.requested(plan)
                for each in (step, twice)
            )
            more = (memory - one) / max(two - one, 1)
            guess = min(math.floor(self.batch * (1 + more)), MAX_BATCH)
            found.append(replace(way, largest_batch=max(guess, 0)))
        return found

    def taken(self, graph: Graph, card: CardProblem, ways: Sequence[WayName]) -> list[int]:
        """The fewest bytes of a card that ways are known for, by the graph of a batch."""
        step = card.step(graph, self.optimizer, self.layer_path)
        return [
            card.offload(step).requested(step.least_plan)
            if way == "offload"
            else step.taken(step.least(way), card.device.memory)
            for way in ways
        ]


def _check_batches(
    graphs: StepGraphs, task: FitTask, cards: Sequence[CardProblem], fits: Sequence[CardFit]
) -> list[CardFit]:
    """Cards with the largest batches that were guessed, each traced and planned; where one does not
    fit, the next smaller one is looked at, and so on, and none is said after `MAX_ROUNDS`."""
    open_ways = {
        (place, way.way): way.largest_batch
        for place, fit in enumerate(fits)
        for way in fit.ways
        if way.largest_batch is not None
    }
    fitting: dict[tuple[int, WayName], int] = {}
    for _ in range(MAX_ROUNDS):
        fitting |= {key: 0 for key, batch in open_ways.items() if not batch}
        open_ways = {key: batch for key, batch in open_ways.items() if batch}
        asked: dict[tuple[int, int], list[WayName]] = {}
        for (place, way), batch in open_ways.items():
            asked.setdefault((batch, place), []).append(way)
        graphs.prepare([batch for batch, _ in asked])
        calls = [
            partial(task.taken, graphs.graph(batch), cards[place], ways)
            for (batch, place), ways in asked.items()
        ]
        for ((batch, place), ways), sizes in zip(
            asked.items(), call_in_parallel(calls, graphs.workers), strict=True
        ):
            for way, size in zip(ways, sizes, strict=True):
                if size <= fits[place].memory:
                    fitting[place, way] = batch
                    del open_ways[place, way]
                else:
                    smaller = batch * fits[place].memory // size
                    open_ways[place, way] = min(batch - 1, smaller)
    return [
        _with_batches(fit, {way: batch for (at, way), batch in fitting.items() if at == place})
        for place, fit in enumerate(fits)
    ]


def _with_batches(fit: CardFit, batches: Mapping[WayName, int]) -> CardFit:
    ways = [replace(way, largest_batch=batches.get(way.way)) for way in fit.ways]
    return replace(fit, ways=ways)
