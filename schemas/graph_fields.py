"""The Arrow fields of a graph."""

from __future__ import annotations

import pyarrow as pa

from tightfit.schemas.arrow import flag, integer, integers, records, text, texts

GRAPH_FIELDS = (
    text("model"),
    text("device"),
    text("torch"),
    flag("has_loss"),
    records(
        "ops",
        integer("id"),
        text("target"),
        text("phase"),
        text("arguments"),
        integers("inputs"),
        integers("outputs"),
        integers("writes"),
        integers("in_place"),
        flag("random"),
        flag("repeatable"),
        text("module"),
        text("source"),
    ),
    records(
        "values",
        integer("id"),
        text("kind"),
        integers("shape"),
        integers("strides"),
        integer("offset"),
        text("dtype"),
        integer("storage"),
        text("path"),
        texts("aliases"),
        flag("requires_grad"),
        pa.field("data", pa.binary(), nullable=False),
        text("device"),
    ),
    integers("storages"),
    integers("inputs"),
    texts("input_constants"),
    records(
        "outputs",
        integer("value"),
        integer("tangent"),
        text("constant"),
        flag("requires_grad"),
    ),
    records("gradients", integer("value"), integer("gradient")),
    text("input_tree"),
    text("output_tree"),
    text("guards"),
)
