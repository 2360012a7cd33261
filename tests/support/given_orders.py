"""Random schedules that can be executed: passes in the order of a random execution."""

from __future__ import annotations

import numpy as np


def random_rows(
    rng: np.random.Generator, device: tuple[int, ...], microbatches: int, trains: bool
) -> tuple[str, ...]:
    """Return what each device of a chain does, as rows of CSV.

    Some backward passes are split. A device that is slow to draw makes long warm-ups.

    Parameters
    ----------
    device
        For each stage its device.
    """
    last = len(device) - 1
    split = rng.random(2) < (0.3, 0.5)  # of all, and then of each
    todo = {(s, "F", j) for s in range(last + 1) for j in range(microbatches)}
    halves = set()
    if trains:
        for s in range(last + 1):
            for j in range(microbatches):
                if split[0] and (split[1] or rng.random() < 0.5):
                    todo |= {(s, "I", j), (s, "W", j)}
                    halves.add((s, j))
                else:
                    todo.add((s, "B", j))
    done: set[tuple[int, str, int]] = set()
    rows: list[list[str]] = [[] for _ in range(max(device) + 1)]
    likes = rng.random((last + 1, 4)) ** 3 + 1e-3

    def can(action: tuple[int, str, int]) -> bool:
        s, kind, j = action
        if kind == "F":
            return s == 0 or (s - 1, "F", j) in done
        if kind == "W":
            return (s, "I", j) in done
        if s == last:
            return (s, "F", j) in done
        return (s + 1, "I" if (s + 1, j) in halves else "B", j) in done

    while todo:
        able = sorted(filter(can, todo))
        weights = np.array([likes[s, "FBIW".index(kind)] for s, kind, _ in able])
        s, kind, j = able[int(rng.choice(len(able), p=weights / weights.sum()))]
        rows[device[s]].append(f"{s}{kind}{j}")
        done.add((s, kind, j))
        todo.remove((s, kind, j))
    return tuple(",".join(row) for row in rows)


def random_devices(rng: np.random.Generator, most: int, stages: int) -> tuple[int, ...]:
    """Return a device for each of so many stages: each device has one."""
    size = min(most, stages) if rng.random() < 0.8 else 1
    device = [*range(size), *rng.integers(0, size, stages - size).tolist()]
    rng.shuffle(device)
    return tuple(device)
