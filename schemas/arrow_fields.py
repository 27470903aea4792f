"""Short names for the Arrow fields that the artifact schemas are made of; nothing is nullable
unless it says so."""

from __future__ import annotations

import pyarrow as pa


def text_field(name: str) -> pa.Field:
    """A string field."""
    return pa.field(name, pa.string(), nullable=False)


def integer_field(name: str) -> pa.Field:
    """A 64-bit integer field: an index or a number of bytes."""
    return pa.field(name, pa.int64(), nullable=False)


def number_field(name: str, nullable: bool = False) -> pa.Field:
    """A double-precision field: seconds or a ratio."""
    return pa.field(name, pa.float64(), nullable=nullable)


def boolean_field(name: str) -> pa.Field:
    """A boolean field."""
    return pa.field(name, pa.bool_(), nullable=False)


def integer_list_field(name: str) -> pa.Field:
    """A list of 64-bit integers."""
    return pa.field(name, pa.list_(pa.field("item", pa.int64(), nullable=False)), nullable=False)


def text_list_field(name: str) -> pa.Field:
    """A list of strings."""
    return pa.field(name, pa.list_(pa.field("item", pa.string(), nullable=False)), nullable=False)


def record_list_field(name: str, *fields: pa.Field) -> pa.Field:
    """A list of structs with the given fields."""
    item = pa.field("item", pa.struct(list(fields)), nullable=False)
    return pa.field(name, pa.list_(item), nullable=False)
