"""Roofline model: seconds of an operator on a named device, from its specification sheet.

An operator that computes F floating-point operations and moves B bytes between memory and chip
takes, on a device with peak P and memory bandwidth W,

    time = max(F / P, B / W) + launch                                   (1)

B counts every operand once: inputs, weights and output. Equation (1) is the roofline of Williams,
Waterman and Patterson ("Roofline: an insightful visual performance model", CACM 52(4), 2009) plus
the pause between two kernels of one stream. It is a lower bound: real kernels reach some 40 to 80 %
of the peak, so measured times are longer by nearly the same factor for all large operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from ..common.arrays import Floats
from ..costs.clusters import accelerator
from ..costs.hardware import NumberFormat
from ..model.cluster import Link

#: Accelerator of generated workloads by default.
USUAL = "a100-80gb"


@dataclass(frozen=True)
class Machine:
    """Device for the roofline: peak rates and memory, from its specification sheet."""

    name: str  # name in the table of accelerators
    # peak rate of dense matrix products on 16-bit floats, accumulating in 32 bits; for a CPU core,
    # of 32-bit floats
    flops_per_s: float
    bytes_per_s: float  # memory bandwidth
    # device memory: as many gigabytes of 10⁹ bytes as the driver reports of 2³⁰; the difference is
    # left for the driver and for scratch space
    memory_bytes: float
    launch_s: float  # pause between two kernels
    peer: Link  # to the other accelerators of the machine, one direction
    source: str  # where the numbers are from

    def seconds(self, flops: Floats, size_bytes: Floats, launches: Floats) -> Floats:
        """Return the seconds of operators by equation (1), for arrays of one shape."""
        work = np.maximum(flops / self.flops_per_s, size_bytes / self.bytes_per_s)
        return np.asarray(work + launches * self.launch_s, dtype=np.float64)


#: Pause between two kernels: those of 2.9 µs come every 3.8 µs (NVIDIA, "Getting Started with
#: CUDA Graphs", 2019).
_PAUSE_S = 0.9e-6

#: Time until the first byte of a transfer arrives: the order of point-to-point messages between
#: GPUs of one machine and of copies to and from the host. Our estimate; no sheet gives it.
_LATENCY_S = 10e-6

#: One core of an Intel Xeon Platinum 8380: 2.3 GHz × 64 operations of AVX-512, and its 40th part
#: of eight channels of DDR4-3200.
CPU_CORE = Machine(
    name="xeon-8380-core",
    flops_per_s=147.2e9,
    bytes_per_s=5.12e9,
    memory_bytes=float("inf"),
    launch_s=0.0,
    peer=Link(0.0, float("inf")),
    source="Intel Xeon Platinum 8380 specifications (2021)",
)


@cache
def machine(name: str = USUAL) -> Machine:
    """Return an accelerator of `costs/accelerators.csv` by its name, in any spelling.

    Its peak is that of 16-bit floats. InputError if the table has no such accelerator.

    Examples
    --------
    >>> machine("h100").name, machine("MI300X").name
    ('h100-sxm', 'mi300x')
    """
    device = accelerator(name)
    return Machine(
        name=device.name,
        flops_per_s=device.peak.get(NumberFormat.BF16) or device.peak[NumberFormat.FP16],
        bytes_per_s=device.bandwidth,
        memory_bytes=1e9 * round(device.memory_bytes / 2**30),
        launch_s=0.0 if device.family == "tpu" else _PAUSE_S,
        peer=Link(_LATENCY_S, device.peer_bandwidth),
        source=device.source,
    )
