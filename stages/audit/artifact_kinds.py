"""The kinds of files that a run leaves: which schema each has, and what reads it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tightfit.schemas import store
from tightfit.schemas.block_options import BLOCK_OPTIONS, read_block_options
from tightfit.schemas.blocks import BLOCKS, read_blocks
from tightfit.schemas.chain import CHAIN, read_chain
from tightfit.schemas.costs import COSTS, read_costs
from tightfit.schemas.frontier import FRONTIER, read_frontier
from tightfit.schemas.graph.fused_groups import is_fused_group, read_group_body
from tightfit.schemas.graph.training_graph import GRAPH, Graph, read_graph
from tightfit.schemas.hierarchy import HIERARCHY, read_hierarchy
from tightfit.schemas.lineage import LINEAGE_FOLDER, LineageRecord, read_lineage, recorded_file
from tightfit.schemas.machine import MACHINE_ARTIFACT, read_machine
from tightfit.schemas.measured_link import LINK_ARTIFACT, read_measured_link
from tightfit.schemas.measurement import (
    MEASUREMENT,
    MEMORY_TIMELINE,
    read_measurement,
    read_memory_timeline,
)
from tightfit.schemas.operation_timeline import OPERATION_TIMELINE, read_operation_timeline
from tightfit.schemas.optimizer_plan import OPTIMIZER_COSTS_ARTIFACT, read_optimizer_costs
from tightfit.schemas.package_manifest import MANIFEST_NAME, PackageManifest, read_manifest
from tightfit.schemas.pipeline import PIPELINE_ARTIFACT, read_pipeline
from tightfit.schemas.pipeline_measurement import (
    PIPELINE_MEASUREMENT_ARTIFACT,
    read_pipeline_measurement,
)
from tightfit.schemas.pipeline_pattern import PIPELINE_PATTERN, read_pipeline_pattern
from tightfit.schemas.pipeline_plan import PipelinePlan, read_pipeline_plan
from tightfit.schemas.plan import OPTIONAL_KEYS, Plan, read_plan
from tightfit.schemas.reference import REFERENCE, read_reference
from tightfit.schemas.schedule import SCHEDULE, read_schedule
from tightfit.schemas.sequence import SEQUENCE, read_sequence
from tightfit.util.errors import ArtifactError

Reader = Callable[[Path], object]


def read_graph_with_groups(path: Path) -> Graph:
    """A graph whose groups have the bodies that their targets name; raises ArtifactError where one
    has another."""
    graph = read_graph(path)
    for op in graph.all_ops:
        if is_fused_group(op.target):
            try:
                read_group_body(op)
            except ArtifactError as error:
                raise ArtifactError(f"{path}: {error}") from error
    return graph


_ARROW_KINDS: tuple[tuple[store.ArtifactType, Reader], ...] = (
    (BLOCKS, read_blocks),
    (CHAIN, read_chain),
    (COSTS, read_costs),
    (FRONTIER, read_frontier),
    (GRAPH, read_graph_with_groups),
    (HIERARCHY, read_hierarchy),
    (OPERATION_TIMELINE, read_operation_timeline),
    (MEMORY_TIMELINE, read_memory_timeline),
    (MEASUREMENT, read_measurement),
    (BLOCK_OPTIONS, read_block_options),
    (PIPELINE_PATTERN, read_pipeline_pattern),
    (REFERENCE, read_reference),
    (SCHEDULE, read_schedule),
    (SEQUENCE, read_sequence),
)

ARTIFACT_TYPES = {kind.name: kind for kind, _ in _ARROW_KINDS}
"""The schema of each kind of Arrow file, by name."""

ARTIFACT_READERS: dict[str, Reader] = {kind.name: read for kind, read in _ARROW_KINDS}
"""The reader of each kind of Arrow file, which checks all that can be checked of it alone."""


@dataclass(frozen=True)
class JsonKind:
    """A kind of JSON document: what it is called, its reader, and how it is recognized: by what its
    key `artifact` has (`names_itself`), or by the `keys` that it shares with no other kind."""

    name: str
    read: Reader
    keys: Collection[str] = ()

    def matches(self, document: dict[str, Any]) -> bool:
        """Whether a document is of this kind, sound or not."""
        if not self.keys:
            own = str(document.get("artifact", "")).partition("/")[0]
            return own == self.name.partition("/")[0]
        return 2 * len(set(self.keys) & set(document)) > len(self.keys)


def _read_manifest_file(path: Path) -> PackageManifest:
    if path.name != MANIFEST_NAME:
        raise ArtifactError(f"{path}: is the manifest of a package, whose name is {MANIFEST_NAME}")
    return read_manifest(path.parent)


def _read_lineage_file(path: Path) -> LineageRecord:
    if path.parent.name != LINEAGE_FOLDER:
        raise ArtifactError(f"{path}: is a lineage record outside of a folder {LINEAGE_FOLDER!r}")
    return read_lineage(recorded_file(path))


def _field_names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


_PIPELINE_PLAN_KEYS = sorted({*_field_names(PipelinePlan)} - {*_field_names(Plan)})
_PLAN_KEYS = sorted({*_field_names(Plan)} - {*_field_names(PipelinePlan), *OPTIONAL_KEYS})
_TRACE_KEYS = ("traceEvents", "displayTimeUnit", "otherData")
_GUARD_KEYS = ("guards", "written")
_PACKAGE_PIPELINE_KEYS = ("tensors", "needed", "programs", "layouts", "offsets", "results")

JSON_KINDS = (
    JsonKind(PIPELINE_ARTIFACT, read_pipeline),
    JsonKind(PIPELINE_MEASUREMENT_ARTIFACT, read_pipeline_measurement),
    JsonKind(OPTIMIZER_COSTS_ARTIFACT, read_optimizer_costs),
    JsonKind(MACHINE_ARTIFACT, read_machine),
    JsonKind(LINK_ARTIFACT, read_measured_link),
    JsonKind("plan", read_plan, _PLAN_KEYS),
    JsonKind("plan of a pipeline", read_pipeline_plan, _PIPELINE_PLAN_KEYS),
    JsonKind("manifest of a package", _read_manifest_file, _field_names(PackageManifest)),
    JsonKind("trace for ui.perfetto.dev", store.read_json, _TRACE_KEYS),
    JsonKind("guards of a package", store.read_json, _GUARD_KEYS),
    JsonKind("pipeline of a package", store.read_json, _PACKAGE_PIPELINE_KEYS),
    JsonKind("lineage record", _read_lineage_file, _field_names(LineageRecord)),
)
"""The JSON documents that a run writes or reads."""


def find_json_kind(path: Path, document: dict[str, Any]) -> JsonKind:
    """The kind of a JSON document; raises ArtifactError where it is of none."""
    kinds = [kind for kind in JSON_KINDS if kind.matches(document)]
    if not kinds:
        raise ArtifactError(f"{path}: is JSON of no kind that tightfit writes")
    return kinds[0]
