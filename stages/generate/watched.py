"""The file `watched.json` of a package: what the trace read of the model, for each call."""

from __future__ import annotations

import json

from schemas.errors import ArtifactError
from schemas.graph import Graph
from stages.device.form import check_form


def watched_bytes(graph: Graph) -> bytes:
    """The content of the file; raises ArtifactError where the graph's guards are malformed."""
    try:
        watch = json.loads(graph.guards).get("watch")
        check_form(watch)
    except (AttributeError, ValueError) as error:
        reason = f" ({error})" if type(error) is ValueError else ""
        raise ArtifactError(
            f"{graph.model}: the guards are not JSON of the known form{reason}"
        ) from None
    written = {graph.values[value].path for op in graph.ops for value in op.writes}
    document = {"watch": watch, "written": sorted(written)}
    return (json.dumps(document, separators=(",", ":")) + "\n").encode()
