"""A policy: encoder, partitioner and scheduler; drawing placements, and their log-probabilities.

The *encoder* computes embeddings of units by messages along the edges, in both directions.

The *partitioner* chooses for each unit, in a topological order, the group that it joins. An LSTM
reads the unit's embedding and the features of the group that the unit before it joined; a small
network scores each group by the LSTM's output and the group's features. So the number of groups is
free, and equal groups have equal probabilities. For contiguous splits a mask leaves only the group
of the unit before, and the next one.

The *scheduler* chooses for each group, the largest first, the device that runs it. The embedding of
a device is computed from features of its kind (speed, memory, links to host memory, whether it is a
host) and from the mean over all devices; its inner product with the embedding of the group is one
part of the score. The other part depends on the device's time for this group and its load so far.
So devices of one kind are alike, and of the idle ones only the first is offered; permuted devices
get permuted probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...formulations.throughput.whole_bytes import room_of
from ...instances.common.arrays import Bools, Floats, Ints
from .environments import PlacementEnvironment
from .features import KIND_FEATURES, LARGEST, MOST_SHOWN, UNIT_FEATURES, Observation
from .groups import GROUP_FEATURES, GroupCosts, GroupRules, Partitions, group_costs, random_order

#: Features of a device.
DEVICE_FEATURES = 8


@dataclass(frozen=True, eq=False)
class Decisions:
    """Decisions of B samples in T steps, each of at most C choices."""

    item: Ints  # (B, T): the unit or group of each decision
    features: Floats  # (B, T, C, F)
    allowed: Bools  # (B, T, C)
    chosen: Ints  # (B, T)
    log_probability: Floats  # (B, T): of the choices, under the policy that made them

    def take(self, rows: Ints) -> Decisions:
        """Return the decisions of some samples."""
        return Decisions(
            self.item[rows],
            self.features[rows],
            self.allowed[rows],
            self.chosen[rows],
            self.log_probability[rows],
        )


#: Rounds of messages.
ROUNDS = 3

#: Width of all layers of a new policy.
WIDTH = 32

#: Share of batches without groups for hosts, if there are hosts.
ACCELERATORS_ALONE = 0.75


@dataclass(frozen=True, eq=False)
class SampledPlacements:
    """B placements of one environment, drawn at once with one order of the units."""

    group: Ints  # group, device: shapes (B, U) and (B, G): groups of units, and devices of groups
    device: Ints
    values: Floats  # (B,): objectives, relative to an even load
    partition: Decisions  # partition, schedule: the decisions
    schedule: Decisions
    part_of: Floats  # (B, G, U): as in `GroupCosts`

    @property
    def log_probability(self) -> Floats:
        """Shape (B, T + G): log-probability of each decision, those of the partition first."""
        both = (self.partition.log_probability, self.schedule.log_probability)
        return np.concatenate(both, axis=1)

    def take(self, rows: Ints) -> SampledPlacements:
        """Return some of the placements."""
        return SampledPlacements(
            self.group[rows],
            self.device[rows],
            self.values[rows],
            self.partition.take(rows),
            self.schedule.take(rows),
            self.part_of[rows],
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Restrict torch to one thread: its operations here are too small to be parallel."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def new_policy(seed: int, width: int = WIDTH) -> Any:
    """Return a policy with random weights, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.nn.ModuleDict(
            {
                "encoder": encoder(width),
                "partitioner": partitioner(width),
                "scheduler": scheduler(width),
            }
        )


def draw_placements(
    policy: Any,
    of: PlacementEnvironment,
    target: Floats,
    rng: np.random.Generator,
    *,
    order: Ints | None = None,
    schedules: int = 1,
    check: Callable[[], None] = lambda: None,
) -> SampledPlacements:
    """Draw placements from a policy, `schedules` for each of B partitions.

    `target`, shape (B,), is the load at which each partition aims, relative to an even one. Rules
    are drawn, and so is the order of the units if none is given, with branches kept together.
    `check` is called before each unit, and may raise an exception to end the drawing.
    """
    fewest = len(of.rules) == 1 or rng.random() < ACCELERATORS_ALONE
    rules = of.rules[0 if fewest else int(rng.integers(1, len(of.rules)))]
    if order is None:
        order = random_order(of.observation, rng)
    aims = target[:, None] * shares(of, rules, len(target), rng)
    groups = Partitions(of.observation, rules, aims)
    with torch.no_grad():
        embedded = encode(policy["encoder"], of.observation)
    made = partition(policy["partitioner"], embedded, groups, order, rng, check)
    rows = np.repeat(np.arange(len(target)), schedules)
    return _scheduled(policy, of, embedded, groups.group[rows], made.take(rows), target[rows], rng)


def as_drawn(
    policy: Any,
    of: PlacementEnvironment,
    target: Floats,
    rng: np.random.Generator,
    *,
    rules: GroupRules,
    order: Ints,
    group: Ints,
    device: Ints,
) -> SampledPlacements:
    """Return a given plan as a sample of the policy for each target.

    `group`, (U,), are the groups of units, numbered by first unit in the order; `device`, (G,), the
    devices of groups, −1 for empty ones.
    """
    share = shares(of, rules, len(target), rng)
    if not of.one_after_another:
        share[:, device >= 0] = of.observation.speed[of.observation.kind_of[device[device >= 0]]]
    groups = Partitions(of.observation, rules, target[:, None] * share)
    with torch.no_grad():
        embedded = encode(policy["encoder"], of.observation)
    given = np.tile(group, (len(target), 1))
    made = partition(policy["partitioner"], embedded, groups, order, given)
    return _scheduled(policy, of, embedded, given, made, target, device)


def _scheduled(
    policy: Any,
    of: PlacementEnvironment,
    embedded: Any,
    group: Ints,
    made: Decisions,
    target: Floats,
    rng: np.random.Generator | Ints,
) -> SampledPlacements:
    costs = group_costs(of.observation, group, made.features.shape[2])
    device, placed = schedule(
        policy["scheduler"], embedded, of.observation, costs, target, rng, most=of.most
    )
    return SampledPlacements(group, device, of.values(group, device), made, placed, costs.part_of)


def shares(
    of: PlacementEnvironment, rules: GroupRules, count: int, rng: np.random.Generator
) -> Floats:
    """Return the shares of the target at which groups aim, for `count` samples, (B, G).

    They are the speeds of devices in random order, so that each group suits some device; hosts are
    among them only if there are more groups than accelerators. If all groups must be used, the
    devices keep their order; if groups run one after the other, all shares are 1.
    """
    if of.one_after_another:
        return np.ones((count, rules.groups))
    host = of.observation.host[of.observation.kind_of] > 0
    devices = np.argsort(host, kind="stable")
    accelerators = int((~host).sum())
    if rules.groups <= accelerators:
        devices = devices[:accelerators]
    speed = of.observation.speed[of.observation.kind_of[devices]]
    found = np.tile(np.resize(speed, max(rules.groups, len(speed))), (count, 1))
    return (found if rules.all_used else rng.permuted(found, axis=1))[:, : rules.groups]


def log_probabilities(
    policy: Any, of: PlacementEnvironment, drawn: SampledPlacements
) -> tuple[Any, Any]:
    """Return the log-probability of each decision under a policy, and the entropy, (B, T + G)."""
    embedded = encode(policy["encoder"], of.observation)
    made = (
        (
            partition_log_probabilities(policy["partitioner"], embedded, drawn.partition),
            drawn.partition,
        ),
        (
            schedule_log_probabilities(
                policy["scheduler"], embedded, of.observation, drawn.part_of, drawn.schedule
            ),
            drawn.schedule,
        ),
    )
    taken = [
        all_.gather(2, torch.from_numpy(choices.chosen)[:, :, None]).squeeze(2)
        for all_, choices in made
    ]
    entropy = [-(all_.exp() * all_.clamp(min=-1e9)).sum(dim=2) for all_, _ in made]
    return torch.cat(taken, dim=1), torch.cat(entropy, dim=1)


def encoder(width: int) -> Any:
    """Return the layers of the encoder: one for features, and one for each round of messages."""
    layers = {"features": torch.nn.Linear(UNIT_FEATURES, width)}
    for i in range(ROUNDS):
        layers[f"round{i}"] = torch.nn.Linear(3 * width, width)
    return torch.nn.ModuleDict(layers)


def encode(layers: Any, of: Observation) -> Any:
    """Return the embeddings of units, shape (U, width).

    In each round a unit takes the means of its predecessors' and its successors' embeddings.
    """
    source, target = torch.from_numpy(of.edges.T.copy())
    held = torch.relu(layers["features"](torch.from_numpy(of.units).float()))
    for i in range(ROUNDS):
        ahead, behind = _mean(held, source, target), _mean(held, target, source)
        held = held + torch.relu(layers[f"round{i}"](torch.cat((held, ahead, behind), dim=1)))
    return held


def _mean(held: Any, source: Any, target: Any) -> Any:
    total = torch.zeros_like(held).index_add(0, target, held[source])
    number = torch.zeros(len(held)).index_add(0, target, torch.ones(len(target)))
    return total / number.clamp(min=1)[:, None]


def partitioner(width: int) -> Any:
    """Return the layers of the partitioner: an LSTM over units, and the score of a group."""
    return torch.nn.ModuleDict(
        {
            "lstm": torch.nn.LSTM(width + GROUP_FEATURES, width, batch_first=True),
            "score": torch.nn.Sequential(
                torch.nn.Linear(2 * width + GROUP_FEATURES, width),
                torch.nn.ReLU(),
                torch.nn.Linear(width, 1),
            ),
        }
    )


def masked(scores: Any, allowed: Any) -> Any:
    """Return the log-probabilities of allowed choices; −inf elsewhere."""
    return torch.log_softmax(scores.masked_fill(~allowed, -torch.inf), dim=-1)


def draw(log_probabilities: Floats, rng: np.random.Generator) -> Ints:
    """Draw a choice for each row by its probability; shape (rows,)."""
    noise = rng.gumbel(size=log_probabilities.shape)
    drawn: Ints = np.argmax(log_probabilities + noise, axis=-1)
    return drawn


def _scores(layers: Any, read: Any, embedded: Any, features: Any) -> Any:
    """Score choices; read and embedded are (…, width), features (…, C, F)."""
    both = torch.cat((read, embedded), dim=-1).unsqueeze(-2)
    wide = both.expand(*features.shape[:-1], both.shape[-1])
    return layers["score"](torch.cat((wide, features), dim=-1)).squeeze(-1)


def partition(
    layers: Any,
    embedded: Any,
    groups: Partitions,
    order: Ints,
    rng: np.random.Generator | Ints,
    check: Callable[[], None] = lambda: None,
) -> Decisions:
    """Let the units join the groups, empty so far, in an order; return the decisions.

    In place of a generator, the group of each unit may be given, shape (B, U). `check` is called
    before each unit.
    """
    batch = len(groups.target)
    rows = np.arange(batch)
    before = torch.zeros(batch, GROUP_FEATURES)
    state: Any = None
    features, allowed, chosen, logs = [], [], [], []
    with torch.no_grad():
        for unit in order.tolist():
            check()
            seen, may = groups.choices(unit)
            own = embedded[unit].expand(batch, -1)
            if isinstance(rng, np.ndarray):
                taken, log = rng[:, unit], np.zeros(batch)
            else:
                step = torch.cat((own, before), dim=1).unsqueeze(1)
                read, state = layers["lstm"](step, state)
                scores = _scores(layers, read[:, 0], own, torch.from_numpy(seen))
                both = masked(scores, torch.from_numpy(may)).numpy().astype(np.float64)
                taken = draw(both, rng)
                log = both[rows, taken]
            groups.join(unit, taken)
            before = torch.from_numpy(seen[rows, taken])
            features.append(seen)
            allowed.append(may)
            chosen.append(taken)
            logs.append(log)
    return Decisions(
        np.tile(order, (batch, 1)),
        np.stack(features, axis=1),
        np.stack(allowed, axis=1),
        np.stack(chosen, axis=1),
        np.stack(logs, axis=1),
    )


def partition_log_probabilities(layers: Any, embedded: Any, made: Decisions) -> Any:
    """Return the logarithms of the probabilities of all choices, (B, T, C), with gradients."""
    features = torch.from_numpy(made.features)
    chosen = torch.from_numpy(made.chosen)
    own = embedded[torch.from_numpy(made.item)]
    index = chosen[:, :, None, None].expand(-1, -1, 1, features.shape[-1])
    joined = features.gather(2, index).squeeze(2)
    before = torch.cat((torch.zeros_like(joined[:, :1]), joined[:, :-1]), dim=1)
    read, _ = layers["lstm"](torch.cat((own, before), dim=2))
    return masked(_scores(layers, read, own, features), torch.from_numpy(made.allowed))


def scheduler(width: int) -> Any:
    """Return the layers of the scheduler: embeddings of devices and groups, and scores of pairs.

    Embeddings of devices are initialised to 0, and stay so while all devices are alike: a policy
    that was trained on alike devices uses the other part of the score.
    """
    layers = {
        "kind": torch.nn.Linear(KIND_FEATURES, width),
        "among": torch.nn.Linear(2 * width, width),
        "device": torch.nn.Linear(width, width),
        "group": torch.nn.Linear(width, width),
        "score": torch.nn.Sequential(
            torch.nn.Linear(width + DEVICE_FEATURES, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, 1),
        ),
    }
    torch.nn.init.zeros_(layers["device"].weight)
    torch.nn.init.zeros_(layers["device"].bias)
    return torch.nn.ModuleDict(layers)


def embed_devices(layers: Any, of: Observation) -> Any:
    """Return the embeddings of devices, shape (D, width), by the layers of a scheduler."""
    kind = torch.from_numpy(of.kind_of.copy())
    held = torch.relu(layers["kind"](torch.from_numpy(of.kinds).float()))
    mean = held[kind].mean(dim=0).expand_as(held)
    held = held + torch.relu(layers["among"](torch.cat((held, mean), dim=1)))
    return layers["device"](held)[kind]


def schedule(
    layers: Any,
    embedded: Any,
    of: Observation,
    costs: GroupCosts,
    target: Floats,
    rng: np.random.Generator | Ints,
    *,
    most: Ints,
) -> tuple[Ints, Decisions]:
    """Place the groups; return the device of each group, (B, G), and the decisions.

    `most`, (D,), is the largest number of groups on each device. In place of a generator, the
    device of each group may be given, (G,), −1 for empty ones, if all samples have the same groups;
    another device of its kind may take its place.
    """
    batch, groups, _ = costs.load.shape
    rows, kind = np.arange(batch), of.kind_of
    order = np.argsort(-costs.load.min(axis=2), axis=1, kind="stable")
    device = np.zeros((batch, groups), np.int64)
    load, memory = np.zeros((batch, len(kind))), np.zeros((batch, len(kind)))
    taking = np.zeros((batch, len(kind)), np.int64)
    stands_for = np.full(len(kind), -1)
    features, allowed, chosen, logs = [], [], [], []
    with torch.no_grad():
        pooled = torch.from_numpy(costs.part_of).float() @ embedded
        devices = embed_devices(layers, of)
        for step in range(groups):
            which = order[:, step]
            own = costs.load[rows, which][:, kind]
            needs = memory + costs.memory[rows, which][:, None]
            able = costs.supported[rows, which][:, kind] > 0
            free: Bools = taking < most
            busy = taking > 0
            may: Bools = able & (needs <= room_of(of.room[kind])) & free
            may &= _first_idle(busy, kind)
            may = np.where(may.any(axis=1, keepdims=True), may, free)
            # empty groups have only the first choice, as all are equivalent
            full = np.asarray(costs.part_of[rows, which].any(axis=1))
            may &= full[:, None] | (np.cumsum(may, axis=1) == 1)
            seen = _features(of, own, load, needs, busy, target[:, None])
            held = pooled[torch.arange(batch), torch.from_numpy(which)]
            scores = _score(layers, held, devices, torch.from_numpy(seen))
            both = masked(scores, torch.from_numpy(may)).numpy().astype(np.float64)
            if isinstance(rng, np.ndarray):
                given = int(rng[which[0]])
                if given < 0:
                    taken = may.argmax(axis=1)
                else:
                    if stands_for[given] < 0:
                        stands_for[given] = (~busy[0] & (kind == kind[given])).argmax()
                    taken = np.full(batch, stands_for[given])
            else:
                taken = draw(both, rng)
            device[rows, which] = taken
            load[rows, taken] += own[rows, taken]
            memory[rows, taken] = needs[rows, taken]
            taking[rows, taken] += full
            features.append(seen)
            allowed.append(may)
            chosen.append(taken)
            logs.append(both[rows, taken])
    stacked = (np.stack(made, axis=1) for made in (features, allowed, chosen, logs))
    return device, Decisions(order, *stacked)


def _features(
    of: Observation, own: Floats, load: Floats, needs: Floats, busy: Bools, target: Floats
) -> Floats:
    kind = of.kind_of
    with np.errstate(all="ignore"):
        held = np.nan_to_num(needs / of.room[kind], nan=0.0, posinf=MOST_SHOWN)
    slowest = own / np.maximum(own.min(axis=1, keepdims=True), 1e-9)
    found = np.broadcast_arrays(
        own / target,
        load / target,
        (own + load) / target,
        held,
        of.host[kind],
        busy,
        np.log1p(np.minimum(slowest, LARGEST)),
        (own + load) / np.maximum((own + load).min(axis=1, keepdims=True), 1e-9) - 1,
    )
    clipped = np.clip(np.stack(found, axis=2), -MOST_SHOWN, MOST_SHOWN)
    features: Floats = clipped.astype(np.float32)
    return features


def _first_idle(busy: Bools, kind: Ints) -> Bools:
    """Return which devices are busy, or the first idle one of their kind."""
    first = np.zeros(busy.shape, np.bool_)
    rows = np.arange(len(busy))
    for k in np.unique(kind):
        own = np.flatnonzero(kind == k)
        first[rows, own[np.argmin(busy[:, own], axis=1)]] = True
    offered: Bools = busy | first
    return offered


def _score(layers: Any, held: Any, devices: Any, features: Any) -> Any:
    wide = held.unsqueeze(-2).expand(*features.shape[:-1], held.shape[-1])
    does = layers["score"](torch.cat((wide, features), dim=-1)).squeeze(-1)
    return does + layers["group"](held) @ devices.T / math.sqrt(held.shape[-1])


def schedule_log_probabilities(
    layers: Any, embedded: Any, of: Observation, costs: Floats, made: Decisions
) -> Any:
    """Return the logarithms of the probabilities of all choices, (B, G, D), with gradients.

    `costs` is `part_of` of the `GroupCosts`.
    """
    pooled = torch.from_numpy(costs).float() @ embedded
    index = torch.from_numpy(made.item)[:, :, None].expand(-1, -1, pooled.shape[-1])
    held, devices = pooled.gather(1, index), embed_devices(layers, of)
    scores = _score(layers, held, devices, torch.from_numpy(made.features))
    return masked(scores, torch.from_numpy(made.allowed))
