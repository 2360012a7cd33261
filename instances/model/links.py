"""Links: of a device to host memory, and between two devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np

from ..common.arrays import Floats, Ints, frozen
from ..common.errors import InputError, quote
from ..common.units import LARGEST, SMALLEST

#: Devices of a cluster with links between them: the table of pairs grows with the square.
MAX_LINKED_DEVICES = 2_000


@dataclass(frozen=True)
class Link:
    """A link by the postal model: sending b bytes takes latency + b / bandwidth.

    Parameters
    ----------
    latency_s
        Seconds until the first byte arrives.
    bytes_per_s
        Bandwidth.

    Raises
    ------
    InputError
        If the latency is negative, or the bandwidth is not above 0.

    Examples
    --------
    >>> Link(latency_s=1e-6, bytes_per_s=1e9).seconds(1000)
    2e-06
    """

    latency_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        for key in ("latency_s", "bytes_per_s"):
            object.__setattr__(self, key, number(getattr(self, key), f"link: {key}"))
        if not (self.latency_s >= 0 and math.isfinite(self.latency_s)):
            raise InputError(f"link: latency_s is {self.latency_s:g}; it must be at least 0")
        if not self.bytes_per_s >= SMALLEST:
            raise InputError(f"link: bytes_per_s is {self.bytes_per_s:g}; it must be above 0")

    def seconds(self, size_bytes: float) -> float:
        """Seconds that a message of `size_bytes` takes; nothing takes nothing."""
        return self.latency_s + size_bytes / self.bytes_per_s if size_bytes > 0 else 0.0

    def seconds_of(self, size_bytes: Floats) -> Floats:
        """Seconds of a message of each size, 0 where nothing is sent; shape of `size_bytes`."""
        times: Floats = np.where(
            size_bytes > 0, self.latency_s + size_bytes / self.bytes_per_s, 0.0
        )
        return times


@dataclass(frozen=True)
class PairLink:
    """A link between two devices, both ways: their data does not go through host memory.

    Parameters
    ----------
    ends
        Names of two devices, or of kinds: then each device of the one is linked with each of the
        other; a kind with itself links its devices with each other.
    link
        Latency and bandwidth of a message.

    Examples
    --------
    >>> import stagecut
    >>> from stagecut.instances import PairLink
    >>> nvlink = PairLink(("accelerator", "accelerator"), stagecut.Link(1e-6, 1e11))
    >>> kinds = (stagecut.DeviceKind("accelerator", 2),)
    >>> stagecut.Cluster(kinds, (nvlink,)).link_of.tolist()
    [[-1, 0], [0, -1]]
    """

    ends: tuple[str, str]
    link: Link

    def __post_init__(self) -> None:
        ends = tuple(self.ends)
        if len(ends) != 2 or not all(isinstance(end, str) for end in ends):
            raise InputError(f"cluster: a link between {quote(self.ends)}; name two ends")
        object.__setattr__(self, "ends", ends)
        if not isinstance(self.link, Link):
            raise InputError(f"link {self}: {quote(self.link)} is not a Link")

    def __str__(self) -> str:
        return " – ".join(quote(end).strip('"') for end in self.ends)


def link_table(links: Sequence[PairLink], named: Mapping[str, Sequence[int]], size: int) -> Ints:
    """Return which link joins each pair of `size` devices; shape (D, D), −1 for none.

    Of several links that name a pair the last one counts; a name stands for the devices in `named`.
    InputError if an end does not exist, a link joins a device with itself only, a pair of ends is
    given twice, or there are more than `MAX_LINKED_DEVICES` devices.
    """
    if size > MAX_LINKED_DEVICES:
        raise InputError(
            f"cluster: links between {size} devices; at most {MAX_LINKED_DEVICES} can be linked"
        )
    table = np.full((size, size), -1)
    seen: set[frozenset[str]] = set()
    for i, pair in enumerate(links):
        if not isinstance(pair, PairLink):
            raise InputError(f"cluster: {quote(pair)} is not a PairLink")
        for end in pair.ends:
            if end not in named:
                raise InputError(f"cluster: link {pair}: no accelerator or kind {quote(end)}")
        if frozenset(pair.ends) in seen:
            raise InputError(f"cluster: link {pair} is given twice; remove one")
        seen.add(frozenset(pair.ends))
        a, b = (np.asarray(named[end], np.int64) for end in pair.ends)
        if len(a) == len(b) == 1 and a[0] == b[0]:
            raise InputError(f"cluster: link {pair} joins a device with itself; name two devices")
        table[np.ix_(a, b)] = i
        table[np.ix_(b, a)] = i
    np.fill_diagonal(table, -1)
    return frozen(table, np.int64)


def number(value: object, what: str) -> float:
    """Return `value` as a float; raises InputError if it is no number, or finite and too large."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{what} is {quote(value)}; it must be a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.nan
    if math.isnan(found) or LARGEST < abs(found) < math.inf:
        raise InputError(f"{what} is {quote(value)}; it must be a number up to {LARGEST:g}")
    return found
