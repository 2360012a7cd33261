"""How functions are compiled that work on named tuples of arrays and allocate none."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from ....instances.common.kernel import Kernel

#: Each use of a field of a named tuple counts a reference to its array, atomically; that took six
#: sevenths of the time of annealing. These options leave the counting out.
UNCOUNTED = {"_nrt": False, "error_model": "numpy"}


def uncounted(function: Callable[..., Any]) -> Kernel:
    """Make a function a kernel that kernels alone call, without that counting."""
    assert isinstance(function, FunctionType)
    return Kernel(function, inner=True, options=UNCOUNTED)
