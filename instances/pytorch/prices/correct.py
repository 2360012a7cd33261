"""The sum of parts against the whole: what is missing is added where it arises."""

from __future__ import annotations

from ...common.arrays import Floats

#: The most that torch plausibly needs around one kernel: dispatch, autograd, Python.
OVERHEAD_MS = 0.02


#: Factors beyond this, or below its inverse, say that parts and whole were not measured alike.
PLAUSIBLE = 1.5


def corrected(ms: Floats, kernels: Floats, whole_ms: float) -> tuple[Floats, float, str]:
    """Return times of parts that add up to the whole, the common factor, and what was done.

    A whole that takes longer is explained first by a constant overhead for each kernel, up to
    20 µs, as small models show; the rest by a common factor.

    Parameters
    ----------
    ms, kernels
        Shape (parts,): time of each part alone, and the kernels that it launches.
    whole_ms
        Time of the whole, above 0.
    """
    total = float(ms.sum())
    text = f"parts {total:.4g} ms, whole {whole_ms:.4g} ms"
    if not total:
        return ms, 1.0, text
    overhead = min(max(0.0, (whole_ms - total) / float(kernels.sum())), OVERHEAD_MS)
    ms = ms + overhead * kernels
    factor = whole_ms / float(ms.sum())
    text += f": corrected by {1e3 * overhead:.3g} µs per kernel" if overhead else ": corrected"
    if abs(factor - 1) > 1e-9:
        text += (
            f" by a factor of {factor:.4g}" if not overhead else f" and a factor of {factor:.4g}"
        )
    return ms * factor, factor, text
