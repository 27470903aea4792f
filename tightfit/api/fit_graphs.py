"""The graphs of one model at several batches, each traced with few layers where it has many."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tightfit.util.child_process import call_in_parallel
from tightfit.util.errors import ModelError

if TYPE_CHECKING:
    from tightfit.schemas.graph.training_graph import Graph
    from tightfit.stages.torch_utils.model_factory import BuiltModel

PROBE_BYTES = 1 << 20
"""Operators on more bytes are not run in a trace of a model for a card."""


class ModelSource(Protocol):
    """Where a model comes from."""

    @property
    def varies_batch(self) -> bool:
        """Whether it can be made for any batch."""

    @property
    def name(self) -> str:
        """What it is called."""

    def build(self, batch: int) -> BuiltModel:
        """The model with inputs of a batch."""


@dataclass(frozen=True)
class ConfiguredModel:
    """A model of transformers, by its configuration."""

    name: str
    config: Mapping[str, Any]
    tokens: int
    dtype: str = ""
    varies_batch: bool = True

    def build(self, batch: int) -> BuiltModel:
        """The model with inputs of a batch; raises ConfigError or ModelError."""
        from tightfit.stages.torch_utils.configured_model import build_configured_model

        kind = self.name.partition(":")[2]
        return build_configured_model(kind, dict(self.config), batch, self.tokens, self.dtype)


@dataclass(frozen=True)
class FactoryModel:
    """A model of a factory "module:function", which may take the batch as the argument `batch`."""

    name: str
    arguments: Mapping[str, Any]
    search_path: tuple[Path, ...] = ()

    @property
    def varies_batch(self) -> bool:
        """Whether the factory takes a batch."""
        return "batch" in factory_parameters(self.name, self.search_path)

    def build(self, batch: int) -> BuiltModel:
        """The model with inputs of a batch; raises ModelError."""
        from tightfit.stages.torch_utils.model_factory import build_from_factory

        own = {"batch": batch} if self.varies_batch else {}
        return build_from_factory(
            self.name, {**self.arguments, **own}, True, [str(path) for path in self.search_path]
        )


def factory_parameters(spec: str, search_path: tuple[Path, ...]) -> set[str]:
    """The names of the arguments that a factory takes."""
    from tightfit.stages.torch_utils.model_factory import load_factory

    try:
        return set(inspect.signature(load_factory(spec, search_path)).parameters)
    except (TypeError, ValueError):
        return set()


@dataclass
class StepGraphs:
    """Traces a model's step. Where it has a list of equal layers, it is traced with two and three
    of them, and the graph of all is found from these; else, and where that fails, it is traced
    whole. At most so many `workers` trace at a time."""

    source: ModelSource
    workers: int
    layer_path: str = ""
    layers: int = 0
    known: dict[int, Graph] = field(default_factory=dict)

    @classmethod
    def of_model(cls, source: ModelSource, batch: int, workers: int) -> StepGraphs:
        """The graphs of a model that is built for a `batch` to look at; raises ConfigError or
        ModelError where that fails."""
        from tightfit.stages.trace.command import CAPTURE_MODULES
        from tightfit.stages.trace.layer_list import find_layer_list

        built = source.build(batch)
        for module in CAPTURE_MODULES:
            import_module(module)
        found = find_layer_list(built.model)
        if found is None:
            return cls(source, workers)
        return cls(source, workers, found.path, found.layers)

    @property
    def traced_layers(self) -> list[int]:
        """The numbers of layers of the traces; none for the whole model."""
        from tightfit.stages.trace.layer_extrapolation import FEW_LAYERS, MORE_LAYERS

        return [FEW_LAYERS, MORE_LAYERS] if self.layers else []

    def prepare(self, batches: list[int]) -> None:
        """Traces the steps of batches side by side."""
        missing = [batch for batch in dict.fromkeys(batches) if batch not in self.known]
        try:
            traced = self._trace_all(missing)
        except ModelError:
            if not self.layers:
                raise
            self.layers = 0
            traced = self._trace_all(missing)
        for batch in missing:
            self.known[batch] = self._whole(batch, traced)

    def first(self, batch: int) -> Graph:
        """The graph of the first batch, traced in this process: what that loads is then there for
        further traces."""
        workers, self.workers = self.workers, 1
        try:
            return self.graph(batch)
        finally:
            self.workers = workers

    def graph(self, batch: int) -> Graph:
        """The graph of the whole model at a batch."""
        self.prepare([batch])
        return self.known[batch]

    def _trace_all(self, batches: list[int]) -> dict[tuple[int, int], Graph]:
        """The traces of batches by batch and number of layers, 0 for all."""
        tasks = [(batch, layers) for batch in batches for layers in self.traced_layers or [0]]
        calls: list[Callable[[], Graph]] = [_TraceCall(self, *task) for task in tasks]
        return dict(zip(tasks, call_in_parallel(calls, self.workers), strict=True))

    def _whole(self, batch: int, traced: dict[tuple[int, int], Graph]) -> Graph:
        from tightfit.stages.trace.layer_extrapolation import (
            IrregularLayersError,
            extrapolate_layers,
        )

        if not self.layers:
            return traced.get((batch, 0)) or self.trace(batch, 0)
        few, more = (traced[batch, layers] for layers in self.traced_layers)
        try:
            return extrapolate_layers(few, more, self.layers)
        except IrregularLayersError:
            self.layers = 0
            return self.trace(batch, 0)

    def trace(self, batch: int, layers: int) -> Graph:
        """The trace of a batch with so many layers, 0 for all."""
        from tightfit.stages.trace.layer_list import keep_layers
        from tightfit.stages.trace.trace import trace

        built = self.source.build(batch)
        if layers:
            keep_layers(built.model, self.layer_path, layers)
        return trace(built, self.source.name, loss_room=None, probe_bytes=PROBE_BYTES)


@dataclass(frozen=True)
class _TraceCall:
    graphs: StepGraphs
    batch: int
    layers: int

    def __call__(self) -> Graph:
        return self.graphs.trace(self.batch, self.layers)
