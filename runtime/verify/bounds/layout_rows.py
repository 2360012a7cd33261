"""Program that refutes one outer point of a training job, with probed coefficients.

The cost model adds up the costs of a stage layer by layer, so that differences between probed
stages give them exactly. Stage s with n layers of each type τ, r of them recomputed, has

    q_s = q(end) + Σ_τ ( q_τ n_sτ + q'_τ r_sτ )

for its passes F, B and W, its weights, its kept bytes and its parameters. A plan of the point that
takes less than a bound is a solution of

    T + G + O + constants ≤ bound
    T ≥ the passes and messages of a path of the schedule               paths found so far
    bytes(rank) ≤ memory                                                at the forward pass's end
    G ≥ exposed gather + exposed reduction,  O ≥ optimizer's step       every rank
    waits ≥ gathering of weights that no pass hides                     weights sharded, every stage
    waits ≥ transfers from and to host memory that no pass hides        weights, activations there

Traffic is bounded from below by secants, as collectives take no more per byte the more they move.
"""

from __future__ import annotations

import itertools
from functools import cached_property

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from ....instances import VerificationError
from ....instances.common.arrays import Floats, Ints
from ....instances.costs.activations import Tokens, element_bytes, fused
from ....instances.costs.layers import LayerPrices
from ....instances.costs.layout import Layout
from ....instances.costs.memory import (
    CONTEXT_BYTES,
    FRAGMENTATION,
    gathers_once,
    stays_gathered,
)
from ....instances.costs.stages import (
    blocked,
    host_step,
    host_weights,
    message_time,
    optimizer_rates,
    prices_of_ranks,
    replica_traffic,
    tied_all_reduce,
    waits_for_weights,
)
from .layout_probes import (
    AWAY,
    BUSY,
    KEPT,
    ROUTED,
    SHARED,
    B,
    F,
    Path,
    Probes,
    stage_flights,
)
from .longest_kernel import longest_paths

#: Most programs of a point, each with the longest paths of the solution before.
ROUNDS = 60
#: Most paths that are added to a program at once.
AT_ONCE = 32
#: Pieces of overlapped traffic, or as many as a rank has chunks if these are more; one is exposed.
PIECES = 8


class PointRefutation:
    """Outer point with a pipeline, and the rows that every plan there below a bound satisfies."""

    def __init__(self, probes: Probes, layout: Layout) -> None:
        self.probes, self.layout, self.prices = probes, layout, probes.prices
        self.on = prices_of_ranks(layout, probes.prices)
        unlike = list(dict.fromkeys(self.on))
        self.sort = np.array([unlike.index(prices) for prices in self.on])
        self.sorts = [probes.stages(layout, prices) for prices in unlike]
        self.probed = self.sorts[0]  # for costs that are equal on all nodes
        self.lines: dict[LayerPrices, Floats] = {}
        self.stages, self.ranks, self.count = layout.stages, layout.pipeline, probes.count
        self.place = np.ones(self.stages, np.int64)
        self.place[0], self.place[-1] = 0, 2
        self.rank_of = np.array(layout.stage_ranks)
        self.last = int(self.rank_of[-1])  # the rank that has the head
        self.of_rank = np.array([layout.rank_stages(rank) for rank in range(self.ranks)])
        self.low, self.high = self._range()
        self.sharded = waits_for_weights(layout)
        self.hosts = bool(layout.offload_activations or layout.offload_weights)

    @cached_property
    def flight(self) -> Ints:
        """Microbatches in flight of each stage, shape (moments, stages)."""
        layout = self.layout
        return stage_flights(layout.schedule, self.ranks, layout.chunks, layout.microbatches)

    @cached_property
    def sent(self) -> float:
        """Seconds of a message between pipeline ranks."""
        return message_time(self.layout, self.prices)

    @cached_property
    def constant(self) -> float:
        """Seconds of an iteration beside passes, traffic and optimizer."""
        return host_step(self.layout, self.prices) + tied_all_reduce(self.layout, self.prices)

    @cached_property
    def step(self) -> Floats:
        """Seconds of the optimizer per weight of all replicas and per routed one, (ranks, 2)."""
        return np.array(optimizer_rates(self.layout, self.prices))

    def _range(self) -> tuple[Floats, Floats]:
        """Return the least and most layers of each stage in the declared space."""
        model, stages = self.probes.model, self.stages
        if self.layout.chunks == 1:
            return np.ones(stages), np.full(stages, float(model.layers))
        fewer = np.zeros(stages)
        fewer[0], fewer[-1] = 1, 1 + len(model.mtp)
        low = np.maximum(model.layers // stages - fewer, 1.0)
        most = -(-(model.layers + 2 + len(model.mtp)) // stages)
        return low, np.maximum(low, most - fewer)

    def secants(self, prices: LayerPrices) -> Floats:
        """Return lines below the seconds of gathering and of reducing at some prices, (2, 3).

        A line is a constant, and seconds per dense and per routed parameter; on several kinds of
        nodes it is that of one kind.
        """
        if prices in self.lines:
            return self.lines[prices]
        least = float(self.probed.layers[:, SHARED].min())
        most = self.count @ self.probed.layers + self.probed.ends.sum(axis=0)
        ends = ((least, 0.0), (most[SHARED], 0.0), (0.0, max(most[ROUTED], 1.0)))
        found = []
        for one in prices.each:
            few, many, routed = (
                np.array(replica_traffic(self.layout, one, *held)) for held in ends
            )
            slope = (many - few) / max(most[SHARED] - least, 1.0)
            lines = (few - slope * least, slope, routed / max(most[ROUTED], 1.0))
            found.append(np.stack(lines, axis=1))
        whole = np.array([1.0, most[SHARED], most[ROUTED]])
        self.lines[prices] = max(found, key=lambda lines: float(lines.sum(axis=0) @ whole))
        return self.lines[prices]

    # Bytes.

    @property
    def state(self) -> tuple[float, float]:
        """Resident bytes of a dense parameter, and of a routed one."""
        layout, recipe = self.layout, self.layout.recipe
        lazily = not fused(layout) and layout.microbatches == 1
        found: list[float] = []
        for parts in (layout.shards, max(1, min(layout.shards, layout.expert_data))):
            gradients = 0.0 if lazily else recipe.gradient_bytes
            held = (recipe.master_bytes + recipe.moment_bytes) * (1 - layout.offload_optimizer)
            held = held / parts + gradients / (parts if layout.zero >= 2 else 1)
            weights = recipe.weight_bytes * (1 - layout.offload_weights)
            held += weights / (parts if layout.zero >= 3 or not fused(layout) else 1)
            stays = stays_gathered(layout)
            held += recipe.reduce_bytes * (stays and not lazily)
            gathered = (stays or gathers_once(layout)) and (not found or layout.expert_data > 1)
            held += (1 + FRAGMENTATION) * recipe.gather_bytes * gathered
            found.append(held)
        return found[0], found[1]

    @property
    def besides(self) -> Floats:
        """Bytes of each rank beside those of its stages, shape (ranks,)."""
        layout, recipe = self.layout, self.layout.recipe
        messages = 2 * element_bytes(layout) * Tokens.of(layout).outer * self.probes.model.hidden
        found = np.full(self.ranks, CONTEXT_BYTES + (1 + FRAGMENTATION) * recipe.bucket_bytes)
        found += (1 + FRAGMENTATION) * messages
        if layout.zero == 3 and layout.shards > 1 and not stays_gathered(layout):
            gathered = (1 + FRAGMENTATION) * recipe.gather_bytes * self.probed.gathered
            found[0] += gathered[0]
            found[self.last] += gathered[2]
        return found

    @property
    def works(self) -> bool:
        """Whether all activations are held while a layer's backward pass runs."""
        return fused(self.layout) and self.layout.zero < 3

    @property
    def inside(self) -> float:
        """Least bytes inside a layer's backward pass while all activations are held."""
        if fused(self.layout):
            return self.probed.working * self.works
        adds = self.layout.microbatches > 1  # a gradient to the one of microbatches before
        return float((self.probed.each_working + adds * self.probed.matrix).min())

    @property
    def heavier(self) -> list[int]:
        """Types of layers whose backward pass takes more memory than the least one."""
        each = self.probed.each_working
        return np.flatnonzero(each > each.min()).tolist() if self.works else []

    def too_large(self) -> bool:
        """Whether ranks together have too little memory, with as much recomputed as possible."""
        shared, routed = self.state
        loses, probed = 1 + FRAGMENTATION, self.probed
        held = shared * probed.layers[:, SHARED] + routed * probed.layers[:, ROUTED]
        kept = loses * (probed.layers + probed.again)[:, KEPT]
        flight = self.flight[0][self.of_rank]
        ends = probed.ends[self.place]
        own = shared * ends[:, SHARED] + routed * ends[:, ROUTED]
        own = own + loses * self.flight[0] * ends[:, KEPT]
        free = self.probes.limits(self.layout) - self.besides - own[self.of_rank].sum(axis=1)
        free -= loses * self.inside
        free[self.last] -= loses * max(0.0, probed.loss - self.inside) * bool(self.flight[0, -1])
        least = flight.min(axis=1)
        free -= ((flight - least[:, None]) * self.low[self.of_rank]).sum(axis=1) * kept.min()
        if (free < 0).any():
            return True
        each = held + least[:, None] * kept  # of a layer of each type on each rank
        weight = 1 / each.max(axis=1)
        room = weight * free
        if len(self.count) == 1:
            room = np.floor(room + 1e-6)
        needed = float((weight[:, None] * each).min(axis=0) @ self.count)
        return bool(needed > room.sum() * (1 + 1e-9))

    # Seconds.

    def slower(self, least: float) -> bool:
        """Whether every plan of the point takes at least `least` seconds by its work alone."""
        probed, p, overlap = self.probed, self.ranks, self.layout.overlap
        seconds = self._passes()
        if seconds >= least:
            return True
        once = self.count @ probed.layers + probed.ends[self.place].sum(axis=0)
        mean = once[[SHARED, ROUTED]] / p  # of a rank; what is convex is there at most its mean
        seconds += self.constant + float(p * mean @ (1 / (1 / self.step).sum(axis=0)))
        if not self.sharded:
            shown = max(1 / max(PIECES, self.layout.chunks), self.prices.calibration.slowed)
            hidden = overlap.parameters, overlap.gradients
            for line, hides in zip(self.secants(self.prices), hidden, strict=True):
                seconds += float(line[0] + mean @ line[1:]) * (shown if hides else 1)
        return bool(seconds >= least)

    def _passes(self) -> float:
        """Return a lower bound on the seconds of all passes of the busiest rank.

        It is the larger of two: the ends and the fewest layers of each rank; and a mean over the
        ranks, weighted by their speed, to which each layer adds what it adds at least on any rank.
        """
        each = np.array([one.layers[:, F] + one.layers[:, B] for one in self.sorts])[self.sort]
        ends = np.zeros(self.ranks)
        ends[0] += self.probed.ends[0, [F, B]].sum()
        ends[self.last] += self.sorts[self.sort[self.last]].ends[-1, [F, B]].sum()
        alone = ends + self.low[self.of_rank].sum(axis=1) * each.min(axis=1)
        share = 1 / (each @ self.count)  # in which ranks are equally fast
        share /= share.sum()
        mean = float((share[:, None] * each).min(axis=0) @ self.count + share @ ends)
        return self.layout.microbatches * max(float(alone.max()), mean)

    # The program, over columns n (stages, K), r alike, y and z (stages), waits, T, G and O.

    def _columns(self) -> None:
        s, k = self.stages, len(self.count)
        stages = [self.sorts[sort] for sort in self.sort[self.rank_of]]
        self.recomputes = self.probes.job.counts_layers(self.layout)
        parts = {
            "n": (s, k), "r": (s, k * self.recomputes), "y": (self.ranks * self.recomputes,),
            "z": (s * self._ordered(),), "u": (self.ranks, len(self.heavier)), "ends": (3,),
            "wait": (s, 2 * (self.sharded or self.hosts)),
        }  # fmt: skip
        at = 0
        self.at: dict[str, Ints] = {}
        for name, shape in parts.items():
            size = int(np.prod(shape))
            self.at[name] = np.arange(at, at + size).reshape(shape)
            at += size
        self.columns = at
        self.t, self.g, self.o = self.at["ends"].tolist()
        self.rows: list[tuple[Floats, Floats, Floats]] = []
        self.stated: set[bytes] = set()  # paths that have a row
        quantities = np.zeros((s, BUSY.stop, at))
        rows = np.arange(s)
        for j in range(k):
            quantities[rows, :, self.at["n"][:, j]] = [one.layers[j] for one in stages]
            if self.recomputes:
                quantities[rows, :, self.at["r"][:, j]] = [one.again[j] for one in stages]
        self.raw = quantities[:, :3].copy()
        if self.at["wait"].size:
            quantities[rows, F, self.at["wait"][:, 0]] = 1.0
            quantities[rows, B, self.at["wait"][:, 1]] = 1.0
        self.of = quantities
        self.fixed = np.array([one.ends[e] for one, e in zip(stages, self.place, strict=True)])

    def _ordered(self) -> bool:
        """Whether there are two types, and all layers of one come before those of the other."""
        order = self.probes.order
        changes = sum(a != b for a, b in itertools.pairwise(order))
        return len(self.count) == 2 and changes == 1

    def add(self, rows: Floats, low: Floats | float, high: Floats | float) -> None:
        """Add rows, shape (rows, columns)."""
        rows = np.atleast_2d(rows)
        least, most = (np.broadcast_to(np.asarray(one), (len(rows),)) for one in (low, high))
        self.rows.append((rows, least, most))

    def _by_rank(self, weight: Floats, what: int) -> tuple[Floats, Floats]:
        """Return rows and constants of a weighted quantity of each rank's stages."""
        rows, fixed = weight[:, None] * self.of[:, what], weight * self.fixed[:, what]
        return rows[self.of_rank].sum(axis=1), fixed[self.of_rank].sum(axis=1)

    def _state(self, least: float) -> None:
        """State all constraint rows but those of paths."""
        self._columns()
        n, unit = np.eye(self.columns)[self.at["n"]], 1 / least
        self.add(n.sum(axis=0), self.count, self.count)
        if len(self.count) > 1:
            self.add(n.sum(axis=1), self.low, self.high)
        if self.recomputes:
            self._recomputed(n)
        if self._ordered():
            first, second = (self.probes.types.index(self.probes.order[j]) for j in (0, -1))
            z = np.eye(self.columns)[self.at["z"]]
            most = self.count[second]
            self.add(n[:, second] + most * z, -np.inf, most)
            self.add(n[1:, first] - self.count[first] * z[:-1], -np.inf, 0.0)
        else:
            self._alternating(n)
        self._memory()
        self._beside(unit)
        if self.hosts:
            self._host_memory(unit)
        end = np.zeros(self.columns)
        end[self.at["ends"]] = 1.0
        self.add(end, -np.inf, 1.0 - self.constant * unit)

    def _alternating(self, n: Floats) -> None:
        """State the order of layers: how many of each type come before a stage's end.

        Among the first layers of the model, what one type has more than its share beside another
        stays in a range.
        """
        order = np.array([self.probes.types.index(kind) for kind in self.probes.order])
        r = np.eye(self.columns)[self.at["r"]]
        for a, b in itertools.combinations(range(len(self.count)), 2):
            share = self.count[b] / self.count[a]
            more = np.cumsum((order == b) - share * (order == a))
            low, high = min(0.0, more.min()) - 1e-7, max(0.0, more.max()) + 1e-7
            ends = np.cumsum(n[:, b] - share * n[:, a], axis=0)
            self.add(ends, low, high)
            if self.recomputes:
                ends = np.vstack((np.zeros(self.columns), ends[:-1]))
                self.add(ends + r[:, b] - share * r[:, a], low, high)

    def _recomputed(self, n: Floats) -> None:
        r, y = np.eye(self.columns)[self.at["r"]], np.eye(self.columns)[self.at["y"]]
        self.add((r - n).reshape(-1, self.columns), -np.inf, 0.0)
        most = self.count[None, :, None] * y[self.rank_of][:, None]
        self.add((r - most).reshape(-1, self.columns), -np.inf, 0.0)
        if not self.probes.job.settings.recompute_by_stage:
            stages = r.sum(axis=1)
            self.add(stages[1:] - stages[0], 0.0, 0.0)

    def _memory(self) -> None:
        """State rows of memory: every rank fits when it holds most.

        A rank's backward pass works on its layer type that takes most.
        """
        n, u = (np.eye(self.columns)[self.at[name]] for name in ("n", "u"))
        for j, kind in enumerate(self.heavier):
            own = n[self.of_rank, kind].sum(axis=1)
            self.add(own - self.count[kind] * u[:, j], -np.inf, 0.0)
        loses, (shared, routed) = 1 + FRAGMENTATION, self.state
        limits = self.probes.limits(self.layout)
        each = limits[:, None]
        one, last = np.ones(self.stages), self.last
        for flight in self.flight:
            rows, fixed = np.zeros((self.ranks, self.columns)), self.besides
            for weight, what in (
                (shared * one, SHARED), (routed * one, ROUTED), (loses * flight * one, KEPT),
            ):  # fmt: skip
                more, constant = self._by_rank(weight, what)
                rows, fixed = rows + more, fixed + constant
            free = limits - fixed
            if flight[-1]:  # of the stage that has the loss
                most = (free[last] - loses * self.probed.loss) / limits[last]
                self.add(rows[last] / limits[last], -np.inf, most)
            for j, kind in enumerate(self.heavier):
                inside = loses * self.probed.each_working[kind]
                self.add((rows + inside * u[:, j]) / each, -np.inf, free / limits)
            free -= loses * self.inside
            if self.works and self.recomputes:
                rise = loses * max(0.0, self.probed.reworking - self.probed.working)
                rows[np.arange(self.ranks), self.at["y"]] = rise
            self.add(rows / each, -np.inf, free / limits)

    def _beside(self, unit: float) -> None:
        """State rows of traffic and optimizer for each rank, or, if weights wait, each stage."""
        one, table = np.ones(self.stages), self.prices.calibration
        (dense, d), (routed, e) = self._by_rank(one, SHARED), self._by_rank(one, ROUTED)
        eye = np.eye(self.columns)
        each, experts = self.step.T
        step = each[:, None] * dense + experts[:, None] * routed
        self.add(eye[self.o] - unit * step, unit * (each * d + experts * e), np.inf)
        if self.sharded:
            self._waits(unit)
            return
        ways = []
        overlap = self.layout.overlap
        gather, reduce = self.secants(self.prices)
        for line, hides, what in (
            (reduce, overlap.gradients, B), (gather, overlap.parameters, F),
        ):  # fmt: skip
            whole = line[1] * dense + line[2] * routed, line[0] + line[1] * d + line[2] * e
            busy, fixed = self._by_rank(table.hidden * one, what)
            for place in _blocked(self.layout, self.prices, what):
                more, constant = self._by_rank(table.hidden * one, place)
                busy, fixed = busy - more, fixed - constant
            shown = max(1 / max(PIECES, self.layout.chunks), table.slowed)
            ahead = [(whole[0] - busy, whole[1] - fixed), (whole[0] * shown, whole[1] * shown)]
            ways.append(ahead if hides else [whole])
        for (a, x), (b, y) in itertools.product(*ways):
            self.add(eye[self.g] - unit * (a + b), unit * (x + y), np.inf)

    def _host_memory(self, unit: float) -> None:
        """State rows of host memory: passes wait for transfers that they do not hide."""
        each, on = host_weights(self.layout), [self.on[rank] for rank in self.rank_of]
        links = [one.cluster.accelerator.host_bandwidth for one in on]
        hidden = np.array([one.calibration.hidden for one in on])
        moved, fixed = (
            ((one[:, AWAY] + each[0] * one[:, SHARED] + each[1] * one[:, ROUTED]).T / links).T
            for one in (self.of, self.fixed)
        )
        waits = np.eye(self.columns)[self.at["wait"]]
        for column, what in ((0, F), (1, B)):
            least = unit * (fixed - hidden * self.fixed[:, what])
            rows = waits[:, column] - moved + hidden[:, None] * self.raw[:, what]
            self.add(unit * rows, least, np.inf)

    def _waits(self, unit: float) -> None:
        """State rows of sharded weights: passes wait for exposed traffic, at least that of a layer.

        Traffic that they hide slows them down.
        """
        reshards, seconds = self.layout.reshard_after_forward, self.probed.layers
        for s, rank in enumerate(self.rank_of):
            prices = self.on[rank]
            gather, reduce = self.secants(prices)
            hidden, slowed = prices.calibration.hidden, prices.calibration.slowed
            for column, line, first, what in (
                (0, gather, gather, F),
                (1, reduce + gather * reshards, reduce, B),
            ):
                wait = np.eye(self.columns)[self.at["wait"][s, column]]
                moved = line[1] * self.of[s, SHARED] + line[2] * self.of[s, ROUTED]
                fixed = line[0] + self.fixed[s, [SHARED, ROUTED]] @ line[1:]
                place = _blocked(self.layout, prices, what)
                computes = self.raw[s, what] - self.of[s, place].sum(axis=0)
                of_ends = self.fixed[s, what] - self.fixed[s, place].sum()
                rows, least = wait - moved + hidden * computes, unit * (fixed - hidden * of_ends)
                self.add(unit * rows, least, np.inf)
                self.add(unit * (wait - slowed * moved), unit * slowed * fixed, np.inf)
                layer = float((seconds[:, [SHARED, ROUTED]] @ first[1:]).min())
                self.add(unit * wait, unit * layer, np.inf)

    # Paths.

    def _add_paths(self, unit: float, x: Floats | None) -> bool:
        """Add rows of paths that a solution violates; False if there are none."""
        layout = self.layout
        key = (layout.schedule.value, self.ranks, layout.chunks, layout.microbatches)
        known = self.probes.paths.setdefault(key, [])
        if x is None:
            even = self.fixed + (self.count / self.stages) @ self.probed.layers
            known = known or self._find(known, even[:, :3])
            return self._state_paths(unit, known[: 2 * self.ranks + 1])
        passes = self.of[:, :3] @ x + self.fixed[:, :3]
        longer = self._longer(known, passes, x[self.t] / unit)
        return self._state_paths(
            unit, longer or self._longer(self._find(known, passes), passes, x[self.t] / unit)
        )

    def _find(self, known: list[Path], passes: Floats) -> list[Path]:
        """Return the longest paths for stages' passes, and keep them for other points."""
        found = longest_paths(self.layout, passes, self.sent)
        unlike = {counts.tobytes(): (counts, sent) for counts, sent in [*known, *found]}
        known[:] = unlike.values()
        return found

    def _longer(self, paths: list[Path], passes: Floats, seconds: float) -> list[Path]:
        """Return the longest of the paths that take more than `seconds`.

        Rows of paths hold to the solver's tolerance, so that slightly longer ones add nothing.
        """
        paths = [one for one in paths if one[0].tobytes() not in self.stated]
        if not paths:
            return []
        takes = np.array([float((counts * passes).sum()) for counts, _ in paths])
        takes += self.sent * np.array([sent for _, sent in paths])
        order = np.argsort(-takes, kind="stable")[:AT_ONCE]
        return [paths[j] for j in order if takes[j] > seconds * (1 + 1e-7)]

    def _state_paths(self, unit: float, paths: list[Path]) -> bool:
        for counts, messages in paths:
            self.stated.add(counts.tobytes())
            row = -np.einsum("sq,sqx->x", counts, self.of[:, :3]) * unit
            row[self.t] = 1.0
            fixed = float((counts * self.fixed[:, :3]).sum()) + messages * self.sent
            self.add(row, fixed * unit, np.inf)
        return bool(paths)

    def refuted(self, least: float) -> bool:
        """Whether no plan of the point takes less than `least` seconds; if infinite, none fits."""
        return self.slower(least) or self.too_large() or self.by_program(least)

    def by_program(self, least: float) -> bool:
        """Whether the program has no solution."""
        self.probes.programs += 1
        self._state(least)
        self._add_paths(1 / least, None)
        for whole in (False, True):
            for _ in range(ROUNDS):
                x = self._solve(whole)
                if x is None:
                    return True
                if least == np.inf or not self._add_paths(1 / least, x):
                    break
        return False

    def _solve(self, whole: bool) -> Floats | None:
        """Return a solution of the program or, unless `whole`, its relaxation; None if none."""
        rows, low, high = (np.concatenate(part) for part in zip(*self.rows, strict=True))
        lower, upper = np.zeros(self.columns), np.full(self.columns, np.inf)
        lower[self.at["n"]] = self.low[:, None] if len(self.count) == 1 else 0.0
        upper[self.at["n"]] = np.minimum(self.count, self.high[:, None])
        upper[self.at["r"]] = self.count if self.recomputes else 0.0
        upper[self.at["y"]] = upper[self.at["z"]] = upper[self.at["u"]] = 1.0
        integer = np.full(self.columns, int(whole))
        integer[self.at["wait"]] = integer[self.at["ends"]] = 0
        cost = np.zeros(self.columns)
        cost[self.at["ends"]] = 1.0
        found = milp(
            cost,
            constraints=LinearConstraint(csr_array(rows), low, high),
            integrality=integer,
            bounds=Bounds(lower, upper),
        )
        if found.status == 2:
            return None
        if found.x is None:
            raise VerificationError(f"bound: SciPy's solver ended with {found.message!r}")
        return np.asarray(found.x)


def _blocked(layout: Layout, prices: LayerPrices, what: int) -> list[int]:
    """Return the collectives of a pass that replicas' traffic cannot overlap."""
    first = BUSY.start + (what == B)
    return [first + 2 * k for k, held in enumerate(blocked(layout, prices)) if held]
