"""Data parallelism over a planned module is exact."""

from __future__ import annotations

import pytest
import torch.multiprocessing

from tests.stages.conftest import Planned
from tests.stages.runtime.data_parallel import work


@pytest.mark.long
def test_two_processes_agree_with_the_original(small: Planned) -> None:
    (small.directory.parent / "meet").unlink(missing_ok=True)
    torch.multiprocessing.spawn(work, args=(str(small.directory),), nprocs=2, join=True)
