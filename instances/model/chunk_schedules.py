"""Schedules of several chunks a pipeline rank, as rows of passes: interleaved, and in a V.

*Interleaved* 1F1B: p ranks hold v chunks each, and take p microbatches of a chunk at a time. Rank r
starts its backward passes after 2 (p − r − 1) + (v − 1) p forward passes.

*Zero-bubble* schedules on stages in a V: ZB-V and DualPipeV.

The model's 2p stages go down the p pipeline ranks and up again: rank r has stages r and
2p − 1 − r, chunks 0 and 1, so that the first and the last stage share rank 0. F0 is a forward pass
of chunk 0; a backward pass is whole (B), or split into I, gradients of the input, and W, gradients
of the weights. Rank r's row, with n = max(M, 2p − 1) and what is of microbatches from M on left
out:

    ZB-V        (F0)^(2(p − r) − 1)  (F1 F0)^r  (F1 I1 W1)^(p − r)
                (F0 I0 W0 F1 I1 W1)^(n − 2p + 1 + r)  (I0 W0 F1 I1 W1)^(p − 1 − r)
                (I0 I1)^r  (I0 W0)^(p − r)  the W1, then the W0 left
    DualPipeV   (F0)^(2(p − r − 1))  (F0 F1)^(r + 1)  (I1 W F1)^(p − r − 1)
                (F0 B1 F1 B0)^(M − 2p + r + 1)  (B1 F1 B0)^(p − r − 1)  r + 1 of B1, B0, B1, …
                r + 1 of I1, I0, … going on  (W I0)^(p − r − 1)  W^(r + 1)

where W without a chunk is that of the oldest I whose W is left. These are the orders that
`torch.distributed.pipelining` runs; where it runs F and B side by side, F comes first here. So many
microbatches are in flight at once on rank r, of chunks 0 and 1:

    ZB-V        (2p − r, r) and (2p − r − 1, r + 1);  with M < 2p − r: M and min(M, r + 1)
    DualPipeV   (2p − r, r + 1), where M ≥ 2p is needed

References
----------
D. Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM*, SC 2021, section 2.2 (interleaved). P. Qi et al., *Pipeline Parallelism with
Controllable Memory*, NeurIPS 2024 (ZB-V). DeepSeek-AI, *DeepSeek-V3 Technical Report*, 2024
(DualPipe), of which DualPipeV is half.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..common.arrays import Ints
from .schedule import Kind, check_size

#: Chunks of a rank under these schedules.
V_CHUNKS = 2
_F, _B, _I, _W = (int(kind) for kind in (Kind.F, Kind.B, Kind.I, Kind.W))
#: The W of the oldest I that has none, of either chunk.
_OLDEST = -1

#: Chunk and kind of a pass.
_Pass = tuple[int, int]


def interleaved_rows(ranks: int, chunks: int, microbatches: int) -> tuple[Ints, ...]:
    """Return every rank's passes in order, shape (actions, 3): stage, kind and microbatch."""
    total = chunks * microbatches
    n = np.arange(total)
    chunk = n // ranks % chunks
    which = n // (ranks * chunks) * ranks + n % ranks
    rows = []
    for rank in range(ranks):
        ahead = min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, total)
        forward = np.stack((chunk * ranks + rank, np.full(total, _F), which), axis=1)
        back = (chunks - 1 - chunk) * ranks + rank
        backward = np.stack((back, np.full(total, _B), which), axis=1)
        order = np.argsort(np.concatenate((2 * n, 2 * (n + ahead) + 1)), kind="stable")
        rows.append(np.concatenate((forward, backward))[order])
    return tuple(rows)


@lru_cache(maxsize=4096)
def interleaved_in_flight(
    ranks: int, chunks: int, rank: int, microbatches: int
) -> tuple[tuple[int, ...], ...]:
    """Return the microbatches of each chunk in flight on a rank at its fullest moments.

    From the end of the warm-up on as many passes are in flight behind every forward pass, of other
    chunks each time. While neither forward nor backward passes go on to another chunk, what they
    take changes by the same from one to the next, so that the ends of such spans are enough.
    """
    total, period = chunks * microbatches, chunks * ranks
    ahead = min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, total - 1)
    n = np.arange(ahead, min(ahead + period, total))
    n = n[((n + 1) % ranks == 0) | ((n - ahead) % ranks == 0)]

    def by_chunk(passes: Ints) -> Ints:
        rounds, left = np.divmod(passes[:, None], period)
        return rounds * ranks + np.clip(left - ranks * np.arange(chunks), 0, ranks)

    held = by_chunk(n + 1) - by_chunk(n - ahead)[:, ::-1]
    return tuple(dict.fromkeys(map(tuple, held.tolist())))


def v_rows(schedule: str, ranks: int, microbatches: int) -> tuple[Ints, ...]:
    """Return every rank's passes as `interleaved_rows` does, of ``zb-v`` or ``dualpipe-v``."""
    check_size(V_CHUNKS * ranks, microbatches)
    blocks = _zero_bubble_v if schedule == "zb-v" else _dual_pipe_v
    return tuple(
        _numbered(blocks(ranks, rank, microbatches), ranks, rank, microbatches)
        for rank in range(ranks)
    )


def v_in_flight(schedule: str, ranks: int, rank: int, microbatches: int) -> list[tuple[int, int]]:
    """Return the microbatches of chunks 0 and 1 in flight on a rank at its fullest moments.

    `schedule` is ``zb-v`` or ``dualpipe-v``; of two moments either may take more bytes.
    """
    down, up = 2 * ranks - rank, rank + 1
    if microbatches < down:
        return [(microbatches, min(microbatches, up))]
    return [(down, up)] if schedule == "dualpipe-v" else [(down, up - 1), (down - 1, up)]


def _zero_bubble_v(p: int, r: int, m: int) -> list[tuple[list[_Pass], int]]:
    forward, backward = [(0, _F)], [(1, _F), (1, _I), (1, _W)]
    whole = [(0, _I), (0, _W), *backward]
    n = max(m, 2 * p - 1)
    return [
        (forward, 2 * (p - r) - 1),
        ([(1, _F), (0, _F)], r),
        (backward, p - r),
        (forward + whole, n - 2 * p + 1 + r),
        (whole, p - 1 - r),
        ([(0, _I), (1, _I)], r),
        ([(0, _I), (0, _W)], p - r),
        ([(1, _W)], r),
        ([(0, _W)], r),
    ]


def _dual_pipe_v(p: int, r: int, m: int) -> list[tuple[list[_Pass], int]]:
    oldest = (_OLDEST, _W)
    last = [(1 - k % 2, _B if k <= r else _I) for k in range(2 * (r + 1))]
    return [
        ([(0, _F)], 2 * (p - r - 1)),
        ([(0, _F), (1, _F)], r + 1),
        ([(1, _I), oldest, (1, _F)], p - r - 1),
        ([(0, _F), (1, _B), (1, _F), (0, _B)], m - 2 * p + r + 1),
        ([(1, _B), (1, _F), (0, _B)], p - r - 1),
        (last, 1),
        ([oldest, (0, _I)], p - r - 1),
        ([oldest], r + 1),
    ]


def _numbered(blocks: list[tuple[list[_Pass], int]], p: int, rank: int, microbatches: int) -> Ints:
    """Return blocks of passes, each so many times, as a row: every kind in microbatches' order."""
    parts = [np.tile(np.array(passes).reshape(-1, 2), (times, 1)) for passes, times in blocks]
    chunk, kind = np.concatenate(parts).T
    which = np.zeros(len(chunk), np.int64)
    for c in range(V_CHUNKS):
        for kinds in ([_F], [_B, _I], [_W]):
            own = (chunk == c) & np.isin(kind, kinds)
            which[own] = np.arange(own.sum())
    late, split = chunk == _OLDEST, kind == _I
    if late.any():
        chunk[late], which[late] = chunk[split], which[split]
    stage = np.where(chunk == 0, rank, 2 * p - 1 - rank)
    return np.stack((stage, kind, which), axis=1)[which < microbatches]
