"""Labels of the training DP: partial plans, of which only undominated ones are kept.

A label has the devices used of each kind, the replicas used, and the stages. Fewer replicas
behind never hurt, because they leave fewer microbatches in flight.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...instances.common.kernel import inner


class Labels(NamedTuple):
    """Partial plans from the pipeline's end: each is its parent and one more stage.

    `devices` has one column per kind.

    `head` is the first label of each ideal, `following` the next one of the same ideal;
    `tally[0]` labels exist, `tally[1]` is set if a knapsack gave up, and with `tally[2]`
    labels of different numbers of stages are not compared.
    """

    head: NDArray[np.int64]
    ideal: NDArray[np.int64]
    devices: NDArray[np.int64]
    replicas: NDArray[np.int64]
    stages: NDArray[np.int64]
    parent: NDArray[np.int64]
    kind: NDArray[np.int64]
    degree: NDArray[np.int64]
    divisor: NDArray[np.int64]
    following: NDArray[np.int64]
    tally: NDArray[np.int64]


@inner
def no_more(some, other):
    """Whether `some` devices are no more than the `other` ones, of every kind."""
    for k in range(len(some)):
        if some[k] > other[k]:
            return False
    return True


@inner
def dominated(labels, ideal, devices, replicas):
    """Whether an ideal has a label with at most so many devices and replicas."""
    label = labels.head[ideal]
    while label >= 0:
        if labels.replicas[label] <= replicas and no_more(labels.devices[label], devices):
            return True
        label = labels.following[label]
    return False


@inner
def push(labels, ideal, devices, replicas, stages, parent, kind, degree, divisor):
    """Add a label unless another one is at least as good; drop those it is better than."""
    before, other = -1, labels.head[ideal]
    while other >= 0:
        if labels.tally[2] and labels.stages[other] != stages:
            before = other
        elif (
            labels.replicas[other] <= replicas
            and labels.stages[other] <= stages
            and no_more(labels.devices[other], devices)
        ):
            return labels
        elif (
            labels.replicas[other] >= replicas
            and labels.stages[other] >= stages
            and no_more(devices, labels.devices[other])
        ):
            if before < 0:
                labels.head[ideal] = labels.following[other]
            else:
                labels.following[before] = labels.following[other]
        else:
            before = other
        other = labels.following[other]
    new = labels.tally[0]
    if new == len(labels.ideal):
        labels = _longer(labels)
    labels.ideal[new] = ideal
    labels.devices[new] = devices
    labels.replicas[new] = replicas
    labels.stages[new] = stages
    labels.parent[new] = parent
    labels.kind[new] = kind
    labels.degree[new] = degree
    labels.divisor[new] = divisor
    labels.following[new] = labels.head[ideal]
    labels.head[ideal] = new
    labels.tally[0] += 1
    return labels


@inner
def _longer(labels):
    """Return the labels in arrays of twice the length."""
    more = np.zeros(len(labels.ideal), np.int64)
    return Labels(
        labels.head,
        np.append(labels.ideal, more),
        np.concatenate((labels.devices, np.zeros_like(labels.devices))),
        np.append(labels.replicas, more),
        np.append(labels.stages, more),
        np.append(labels.parent, more),
        np.append(labels.kind, more),
        np.append(labels.degree, more),
        np.append(labels.divisor, more),
        np.append(labels.following, more),
        labels.tally,
    )


def no_labels(ideals: int, kinds: int, *, by_stages: bool) -> Labels:
    """Return the labels to begin with: nothing planned, nothing used.

    Parameters
    ----------
    by_stages
        Whether labels of different numbers of stages are not compared.
    """

    def room() -> NDArray[np.int64]:
        return np.zeros(1024, np.int64)

    labels = Labels(
        head=np.full(ideals, -1),
        ideal=room(),
        devices=np.zeros((1024, kinds), np.int64),
        replicas=room(),
        stages=room(),
        parent=room(),
        kind=room(),
        degree=room(),
        divisor=room(),
        following=room(),
        tally=np.array([1, 0, int(by_stages)]),
    )
    labels.head[0] = 0
    labels.parent[0] = -1
    labels.following[0] = -1
    return labels
