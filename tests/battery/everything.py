"""All cases of the battery."""

from __future__ import annotations

from tests.battery import cases, composed, records

CASES = (*cases.CASES, *records.RECORDS, *composed.COMPOSED)
