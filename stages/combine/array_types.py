"""The arrays of programs and tables, by what their elements are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
SecondsArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
PositionArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]
