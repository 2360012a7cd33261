"""How functions are compiled that only compiled functions call."""

from __future__ import annotations

from numba import njit

#: Like `njit(cache=True, nogil=True)`, without the ways in from Python: with many arrays as
#: arguments they take longer to compile than the function itself.
inner = njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
