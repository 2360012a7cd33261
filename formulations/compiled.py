"""How functions are compiled that only compiled functions call."""

from __future__ import annotations

from numba import njit

#: Like `njit(cache=True, nogil=True)`, without the ways in from Python: with many arrays as
#: arguments they take longer to compile than the function itself.
inner = njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

#: Options of functions on named tuples of arrays that allocate none. Each use of a field counts a
#: reference to its array, atomically; in the annealing of mappings that took six sevenths of the
#: time.
UNCOUNTED = {"_nrt": False, "error_model": "numpy"}

#: Like `inner`, for such functions.
uncounted = njit(
    cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **UNCOUNTED
)
