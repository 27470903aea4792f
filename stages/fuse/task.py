"""Fuses the groups of a graph that is in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ConfigError
from tightfit.util.progress import StageProgress

if TYPE_CHECKING:
    from tightfit.schemas.graph.training_graph import Graph


@dataclass(frozen=True)
class FuseTask:
    """A graph to fuse for a device, with at most `jobs` groups compiled at a time, and the file to
    write. A group that does not compile stays ATen; `warn` takes the sentence that says so."""

    stage: ClassVar[str] = "fuse"
    graph: Path
    device: str
    jobs: int
    out: Path
    warn: Callable[[str], None]

    def run(self, progress: StageProgress) -> tuple[Graph, Graph]:
        """Compiles each distinct group and writes the fused graph; returns the graph and the fused
        one. Raises ModelError where there is no compiler, ConfigError for a device that the graph
        was not traced for."""
        import torch

        from tightfit.schemas.graph.training_graph import read_graph, write_graph
        from tightfit.stages.fuse.compile_groups import fuse_and_compile
        from tightfit.stages.runtime.call_context import default_torch_state
        from tightfit.stages.torch_utils.devices import enter_device, parse_device, require_device
        from tightfit.stages.torch_utils.graph_check import check_graph_program

        require_device(self.device)
        graph = read_graph(self.graph)
        if torch.device(self.device).type != graph.device:
            raise ConfigError(f"--device {self.device}: the graph was traced for {graph.device}")
        check_graph_program(graph, str(self.graph))
        place = parse_device(self.device)
        progress.begin(graph.model, "groups")
        with enter_device(place), default_torch_state():
            fused = fuse_and_compile(
                graph, torch.device(place.type), self.warn, progress.report, self.jobs
            )
        check_graph_program(fused, str(self.out))
        write_graph(self.out, fused, fused=True)
        return graph, fused

    def lineage_entries(self) -> list[LineageEntry]:
        """What `run` made of what."""
        return [LineageEntry([self.out], [self.graph], {"device": self.device})]
