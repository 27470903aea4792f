"""All cases of the battery."""

from __future__ import annotations

from tests.battery import composed, models, records

CASES = (*models.CASES, *records.RECORDS, *composed.COMPOSED)
