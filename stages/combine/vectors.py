"""The arrays of programs and tables, by what their elements are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Seconds = NDArray[np.float64]
Flags = NDArray[np.bool_]
