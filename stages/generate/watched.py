"""The file `watched.json` of a package: what the trace read of the model, for each call."""

from __future__ import annotations

import json
from typing import Any

from tightfit.schemas.graph import Graph
from tightfit.stages.device.form import check_form
from tightfit.stages.generate.check import guards_in, malformed


def watched_bytes(graph: Graph) -> bytes:
    """The content of the file; raises ArtifactError where the graph's guards are malformed."""
    watch = guards_in(graph).get("watch")
    try:
        check_form(watch)
    except ValueError as error:
        raise malformed(graph, f" ({error})") from None
    if watch is not None:
        watch = {**watch, "holders": [_without_forward(holder) for holder in watch["holders"]]}
    written = {graph.values[value].path for op in graph.ops for value in op.writes}
    document = {"watch": watch, "written": sorted(written)}
    return (json.dumps(document, separators=(",", ":")) + "\n").encode()


def _without_forward(holder: dict[str, Any]) -> dict[str, Any]:
    """A holder as it is watched: what replaces the whole model's forward on the instance runs
    around the planned one, as around the original."""
    if holder["place"] != [["module", ""]] or holder["kind"] != "fields":
        return holder
    reads = {name: read for name, read in holder["reads"].items() if name != "forward"}
    return {**holder, "reads": reads}
