"""Splits a training step over the ranks of a pipeline."""

from __future__ import annotations
