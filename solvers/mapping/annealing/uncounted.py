"""How functions are compiled that work on named tuples of arrays and allocate none."""

from __future__ import annotations

from numba import njit

#: Each use of a field of a named tuple counts a reference to its array, atomically; that took six
#: sevenths of the time of annealing. These options leave the counting out.
UNCOUNTED = {"_nrt": False, "error_model": "numpy"}

#: For functions that only compiled functions call: without the ways in from Python, which take
#: longer to compile than the function itself.
uncounted = njit(
    cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **UNCOUNTED
)
