"""Read-only arrays, so that a value which was valid when it was made stays valid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def frozen(values: Iterable[Any] | NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return `values` as a new read-only array of type `dtype`."""
    items = values if isinstance(values, np.ndarray) else list(values)
    array = np.array(items, dtype=dtype)
    array.setflags(write=False)
    return array
