"""Roofline model: seconds of an operator on a named device, from its specification sheet.

An operator that computes F floating-point operations and moves B bytes between memory and chip
takes, on a device with peak P and memory bandwidth W,

    time = max(F / P, B / W) + launch                                   (1)

B counts every operand once: inputs, weights and output. Equation (1) is the roofline of Williams,
Waterman and Patterson ("Roofline: an insightful visual performance model", CACM 52(4), 2009) plus
the pause between two kernels of one stream. It is a floor: real kernels reach some 40 to 80 % of
the peak, so measured times are longer by that factor, nearly the same one for all large operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ..common.arrays import Floats
from ..costs.clusters import accelerator, accelerators
from ..costs.hardware import NumberFormat
from ..model.links import Link


@dataclass(frozen=True)
class Machine:
    """Peak rates and memory of a device, from its specification sheet."""

    name: str  # as the catalogue calls it
    # peak rate of dense matrix products on 16-bit floats, accumulating in 32 bits; for a CPU core,
    # of 32-bit floats
    flops_per_s: float
    bytes_per_s: float  # memory bandwidth
    # device memory, in the sheet's decimal gigabytes. Where the chips hold binary ones (80 GiB on a
    # card sold as 80 GB), the difference is left for the driver and for scratch space.
    memory_bytes: float
    launch_s: float  # pause between two kernels
    # link to the other accelerators of the machine, one direction: NVLink through its switches, or
    # one link of a TPU's torus
    peer: Link
    host: Link  # link to host memory
    source: str  # where the numbers are from

    def seconds(self, flops: Floats, size_bytes: Floats, launches: Floats) -> Floats:
        """Return equation (1) for arrays of one shape; nothing to do takes nothing."""
        work = np.maximum(flops / self.flops_per_s, size_bytes / self.bytes_per_s)
        return np.asarray(work + launches * self.launch_s, dtype=np.float64)


#: Kernels of 2.9 µs come every 3.8 µs: NVIDIA, "Getting Started with CUDA Graphs", 2019.
_PAUSE_S = 0.9e-6

#: Until the first byte of a transfer arrives: the order of what point-to-point messages between
#: GPUs of one machine, and copies to and from the host, take. Ours; no sheet says it.
_LATENCY_S = 10e-6


def _peer(gigabytes_per_s: float) -> Link:
    return Link(_LATENCY_S, gigabytes_per_s * 1e9)


def _pcie(generation: int) -> Link:
    """16 lanes of PCIe: 16, 32, 64 GB/s nominal for generations 3, 4, 5.

    Copies between host and device memory reach about four fifths of that (ours).
    """
    return Link(_LATENCY_S, 12.5e9 * 2 ** (generation - 3))


#: The accelerators that workloads can be generated for, by name.
MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        machine.name: machine
        for machine in (
            Machine(
                name="a100-80gb",
                flops_per_s=312e12,
                bytes_per_s=2039e9,
                memory_bytes=80e9,
                launch_s=_PAUSE_S,
                peer=_peer(300),
                host=_pcie(4),
                source="NVIDIA A100 80GB SXM data sheet (2021)",
            ),
            Machine(
                name="h100-sxm",
                flops_per_s=989.4e12,
                bytes_per_s=3350e9,
                memory_bytes=80e9,
                launch_s=_PAUSE_S,
                peer=_peer(450),
                host=_pcie(5),
                source="NVIDIA H100 SXM5 data sheet (2023), dense",
            ),
            Machine(
                name="v100-32gb",
                flops_per_s=125e12,
                bytes_per_s=900e9,
                memory_bytes=32e9,
                launch_s=_PAUSE_S,
                peer=_peer(150),
                host=_pcie(3),
                source="NVIDIA V100 SXM2 32GB data sheet (2018)",
            ),
            Machine(
                name="tpu-v3",
                flops_per_s=123e12,
                bytes_per_s=900e9,
                memory_bytes=32e9,
                launch_s=0.0,
                peer=_peer(82),
                host=_pcie(3),
                source="Google Cloud TPU v3 documentation, one chip of two cores; no launches: "
                "a program is compiled as a whole",
            ),
        )
    }
)

#: One core of an Intel Xeon Platinum 8380: 2.3 GHz × 64 operations of AVX-512, and its 40th part
#: of eight channels of DDR4-3200.
CPU_CORE = Machine(
    name="xeon-8380-core",
    flops_per_s=147.2e9,
    bytes_per_s=5.12e9,
    memory_bytes=float("inf"),
    launch_s=0.0,
    peer=Link(0.0, float("inf")),
    host=Link(0.0, float("inf")),
    source="Intel Xeon Platinum 8380 specifications (2021)",
)


def machine(name: str) -> Machine:
    """Return the accelerator with this name, or with this unique beginning of a name.

    One that no shipped workload is generated for is that of the table of training jobs, by its
    peak on 16-bit floats. InputError if there is none.

    Examples
    --------
    >>> machine("h100").name, machine("MI300X").name
    ('h100-sxm', 'mi300x')
    """
    begun = [known for known in MACHINES if known == name or known.startswith(f"{name}-")]
    if len(begun) == 1:
        return MACHINES[begun[0]]
    device = accelerator(name)
    return Machine(
        name=device.name,
        flops_per_s=device.peak.get(NumberFormat.BF16) or device.peak[NumberFormat.FP16],
        bytes_per_s=device.bandwidth,
        memory_bytes=device.memory_bytes,
        launch_s=0.0 if device.family == "tpu" else _PAUSE_S,
        peer=Link(_LATENCY_S, device.peer_bandwidth),
        host=Link(_LATENCY_S, device.host_bandwidth),
        source=device.source,
    )


def machine_names() -> tuple[str, ...]:
    """Return the names of all accelerators that `machine` knows."""
    return tuple(dict.fromkeys([*MACHINES, *(device.name for device in accelerators())]))
