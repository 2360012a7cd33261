"""Heartbeats that ranks share while they run, and the first error.

They write it into the store of the process group, which rank 0 or the launcher hosts.
"""

from __future__ import annotations

import os
import re
import time
from datetime import timedelta

import torch.distributed as dist

from ....instances import StagecutError
from .error_origin import first_line


class Heartbeats:
    """A rank's connection to the store of heartbeats and errors.

    Raises StagecutError if rank 0 does not start within `timeout_s`.
    """

    def __init__(self, rank: int, world: int, timeout_s: float) -> None:
        self.rank, self.world, self.timeout_s = rank, world, timeout_s
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        launched = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self.hosts = rank == 0 and not launched
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")

        def connect(*, hosts: bool) -> dist.Store:
            store = dist.TCPStore(
                address,
                port,
                is_master=hosts,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout_s),
            )
            return dist.PrefixStore(f"stagecut {attempt}", store)

        try:
            self.store = connect(hosts=self.hosts)
            self._mine = connect(hosts=False)  # the other one may be busy, waiting for a key
        except dist.DistError as error:
            raise StagecutError(
                f"rank {rank}: rank 0 did not start within {timeout_s:g} s ({first_line(error)})"
            ) from None

    def join(self, identity: dict[str, str]) -> None:
        """Wait until all ranks are here, and check that all have the same `identity`.

        Raises StagecutError if a rank does not come within the timeout, or runs something else.
        """
        text = "\n".join(f"{what}\t{value}" for what, value in identity.items())
        self.store.set(f"joined {self.rank}", text)
        keys = [f"joined {r}" for r in range(self.world)]
        until = time.monotonic() + self.timeout_s
        while not self.store.check(keys):
            if time.monotonic() > until:
                late = [str(r) for r, key in enumerate(keys) if not self.store.check([key])]
                raise StagecutError(
                    f"rank {', '.join(late)} of {self.world} did not start within "
                    f"{self.timeout_s:g} s; see why, or raise the timeout (--set timeout=S)"
                )
            time.sleep(0.02)
        for r, key in enumerate(keys):
            theirs = dict(line.split("\t") for line in self.store.get(key).decode().splitlines())
            for what, value in identity.items():
                if theirs.get(what) != value:
                    low, high = sorted(((self.rank, value), (r, str(theirs.get(what)))))
                    raise StagecutError(
                        f"rank {high[0]} runs another {what} than rank {low[0]} "
                        f"({_short(high[1])}, {_short(low[1])}); give all ranks the same"
                    )

    def publish(self, text: str, code: int) -> bool:
        """Make an error known, with the exit code that it means; return whether it is the first."""
        value = f"{self.rank}\t{code}\t{text}"
        return bool(self._mine.compare_set("error", "", value).decode() == value)

    def has_error(self) -> bool:
        """Whether an error is known."""
        return bool(self._mine.check(["error"]))

    def first_error(self) -> tuple[int, str]:
        """Return exit code and text of the first error; waits for one."""
        _, code, text = self._mine.get("error").decode().split("\t", 2)
        return int(code), text

    def live(self, beats: int) -> None:
        """Publish that this rank is alive; `beats` differs from call to call."""
        self._mine.set(f"alive {self.rank}", str(beats))

    def beat(self, rank: int) -> bytes:
        """Return the last sign of life of a rank; empty if it is not here yet or has left."""
        if self._mine.check([f"left {rank}"]) or not self._mine.check([f"alive {rank}"]):
            return b""
        return bytes(self._mine.get(f"alive {rank}"))

    def leave(self, patience_s: float) -> None:
        """Record the end of this rank; the host of the store waits for the others."""
        self._mine.set(f"left {self.rank}", "1")
        until = time.monotonic() + patience_s
        keys = [f"left {r}" for r in range(self.world)]
        while self.hosts and time.monotonic() < until and not self._mine.check(keys):
            time.sleep(0.02)


def _short(value: str) -> str:
    """Return the beginning of a hash; of others, of a length that tells folders apart."""
    return value[:12] if re.fullmatch("[0-9a-f]{40,}", value) else value[:60]
