"""All cases of the battery."""

from __future__ import annotations

from tests.battery import cases, nested_plans, output_types

CASES = (*cases.CASES, *output_types.RECORDS, *nested_plans.COMPOSED)
