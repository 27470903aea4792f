"""The graph of one model's step with a batch and with twice as many samples, traced with few layers
if the model has many."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tightfit.util.child_process import call_in_parallel
from tightfit.util.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from torch import nn

    from tightfit.schemas.graph.training_graph import Graph
    from tightfit.stages.torch_utils.model_factory import BuiltModel
    from tightfit.stages.trace.layer_list import LayerList

PROBE_BYTES = 1 << 20
"""Operators on more bytes are not run in a trace of a model for a card."""
MIN_PAIR_BATCH = 2
"""The fewest samples that tell how sizes grow: models run other ops with a single one."""


class FitModel(Protocol):
    """Where a model comes from. It is made by a process that has PyTorch."""

    @property
    def name(self) -> str:
        """What it is called."""

    def varies_batch(self) -> bool:
        """Whether it can be made for any batch."""

    def build(self, batch: int) -> BuiltModel:
        """The model with inputs of a batch; raises ConfigError or ModelError."""


@dataclass(frozen=True)
class ConfiguredModel:
    """A model of transformers, by its configuration."""

    name: str
    config: Mapping[str, Any]
    tokens: int
    dtype: str = ""

    def varies_batch(self) -> bool:
        """It can."""
        return True

    def build(self, batch: int) -> BuiltModel:
        """The model with inputs of a batch; raises ConfigError or ModelError."""
        from tightfit.stages.torch_utils.configured_model import build_configured_model

        kind = self.name.partition(":")[2]
        return build_configured_model(kind, dict(self.config), batch, self.tokens, self.dtype)


@dataclass(frozen=True)
class FactoryModel:
    """A model of a factory "module:function", which may take the batch as the argument `batch`, and
    takes the `tokens` unless these are None."""

    name: str
    arguments: Mapping[str, Any]
    search_path: tuple[Path, ...] = ()
    tokens: int | None = None

    def varies_batch(self) -> bool:
        """Whether the factory takes a batch that its arguments do not name."""
        return "batch" in self._parameters() and "batch" not in self.arguments

    def build(self, batch: int) -> BuiltModel:
        """The model with inputs of a batch; raises ConfigError or ModelError."""
        from tightfit.stages.torch_utils.model_factory import build_from_factory

        own: dict[str, Any] = {"batch": batch} if self.varies_batch() else {}
        if self.tokens is not None:
            if "tokens" not in self._parameters():
                raise ConfigError(f"--tokens: the factory {self.name!r} takes no tokens")
            own["tokens"] = self.tokens
        path = [str(path) for path in self.search_path]
        built = build_from_factory(self.name, {**self.arguments, **own}, True, path)
        if built.fake_mode is not None:
            _register_tensor_attributes(built.model)
        return built

    def _parameters(self) -> set[str]:
        """The names of the arguments that the factory takes."""
        from tightfit.stages.torch_utils.model_factory import load_factory

        factory = load_factory(self.name, self.search_path)
        try:
            return set(inspect.signature(factory).parameters)
        except (TypeError, ValueError):
            return set()


def _register_tensor_attributes(model: nn.Module) -> None:
    """Makes buffers of the tensors without memory that modules have as plain attributes, since
    these can be no constants of a graph."""
    from torch._subclasses.fake_tensor import FakeTensor

    for module in model.modules():
        plain = [name for name, each in vars(module).items() if isinstance(each, FakeTensor)]
        for name in plain:
            if not hasattr(type(module), name):
                module.register_buffer(name, vars(module).pop(name), persistent=False)


@dataclass(frozen=True)
class StepGraphs:
    """The graph of a step, and that with `pair_batch` samples with the one of twice as many, None
    if that is not known. If the model has equal `layers`, 0 for none, it was traced with
    `traced_layers` of them."""

    graph: Graph
    pair: tuple[Graph, Graph] | None
    pair_batch: int
    layer_path: str
    layers: int
    traced_layers: list[int]
    assumptions: Mapping[str, str] = field(default_factory=dict)
    """By "file:line" what was assumed where the forward asks for the data of a tensor."""


@dataclass(frozen=True)
class _Trace:
    """A graph with its assumptions."""

    graph: Graph
    assumptions: Mapping[str, str]


def trace_step(source: FitModel, batch: int, workers: int) -> StepGraphs:
    """Traces the step of a model, at most so many `workers` at a time.

    Raises:
        ConfigError: The configuration is wrong.
        ModelError: The model cannot be made or traced.
    """
    from tightfit.stages.trace.command import CAPTURE_MODULES
    from tightfit.stages.trace.layer_extrapolation import FEW_LAYERS, MORE_LAYERS
    from tightfit.stages.trace.layer_list import find_layer_list

    built = source.build(batch)
    for module in CAPTURE_MODULES:
        import_module(module)
    layers = find_layer_list(built.model)
    single = max(batch, MIN_PAIR_BATCH)
    batches = list(dict.fromkeys([batch, single, 2 * single])) if source.varies_batch() else [batch]
    traces: list[_Trace | None] = []
    if layers is not None:
        calls = [partial(_trace_layers, source, each, layers, each == batch) for each in batches]
        traces = call_in_parallel(calls, workers)
    numbers = [FEW_LAYERS, MORE_LAYERS] if traces and traces[0] else []
    if not numbers:
        whole = [partial(_trace_whole, source, each, each == batch) for each in batches]
        traces = call_in_parallel(whole, workers)
    known = dict(zip(batches, traces, strict=True))
    traced, one, two = (known.get(each) for each in (batch, single, 2 * single))
    assert traced is not None
    pair = None if one is None or two is None else (one.graph, two.graph)
    count = layers.layers if layers and numbers else 0
    path = layers.path if layers else ""
    return StepGraphs(traced.graph, pair, single, path, count, numbers, traced.assumptions)


def _trace_layers(source: FitModel, batch: int, layers: LayerList, profiled: bool) -> _Trace | None:
    """The trace of all layers by those with few of them, None if there is none."""
    from tightfit.stages.trace.layer_extrapolation import (
        FEW_LAYERS,
        MORE_LAYERS,
        IrregularLayersError,
        extrapolate_layers,
    )
    from tightfit.stages.trace.layer_list import keep_layers

    traces: list[_Trace] = []
    with contextlib.suppress(IrregularLayersError, ModelError):
        for count in (FEW_LAYERS, MORE_LAYERS):

            def build(count: int = count) -> BuiltModel:
                built = source.build(batch)
                keep_layers(built.model, layers.path, count)
                return built

            traces.append(_trace(build, source, profiled and not traces))
        few, more = traces
        graph = extrapolate_layers(few.graph, more.graph, layers.layers)
        return _Trace(graph, more.assumptions)
    return None


def _trace_whole(source: FitModel, batch: int, needed: bool) -> _Trace | None:
    """The trace with all layers; None if there is none and it is not `needed`."""
    try:
        return _trace(partial(source.build, batch), source, needed)
    except ModelError:
        if needed:
            raise
        return None


def _trace(build: Callable[[], BuiltModel], source: FitModel, profiled: bool) -> _Trace:
    """The trace of a model. Where the data of tensors decide what its forward runs, that is the
    path where all conditions hold, else that where none does."""
    from tightfit.stages.torch_utils.custom_operators import allow_all_operators
    from tightfit.stages.trace.assumed_data import AssumedData, depends_on_data
    from tightfit.stages.trace.trace import trace

    refusals: list[ModelError] = []
    for assumed in (None, AssumedData(truth=True), AssumedData(truth=False)):
        built = replace(build(), assumed=assumed)
        try:
            with allow_all_operators():
                graph = trace(
                    built, source.name, loss_room=None, probe_bytes=PROBE_BYTES, profiled=profiled
                )
        except ModelError as error:
            refusals.append(error)
            if not depends_on_data(refusals[0]):
                raise
        else:
            return _Trace(graph, {} if assumed is None else assumed.places)
    raise refusals[-1]
