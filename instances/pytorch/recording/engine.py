"""The backward pass as autograd's engine runs it: hooks tell whose kernels are whose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import Node

from .recording import BackwardStep, KernelCall, Read
from .storages import Storages
from .watch import Watch


class _Engine:
    """Notes what autograd's engine does, by hooks on its nodes."""

    def __init__(self, watch: Watch, storages: Storages) -> None:
        self.watch = watch
        self.storages = storages
        self.order: list[Node] = []
        self.kernels: dict[Node, list[KernelCall]] = {}
        self.sent: dict[Node, list[Read | None]] = {}
        self.hooks: list[Any] = []
        self._arrived: set[tuple[Node, int]] = set()
        self._sums: list[Node] = []

    def listen(self, node: Node) -> None:
        """Hear when `node` begins and ends."""
        self.kernels[node] = []
        self.hooks.append(node.register_prehook(lambda _received: self.begins(node)))
        self.hooks.append(node.register_hook(lambda sent, _received: self.ends(node, sent)))

    def begins(self, node: Node) -> None:
        """Credit what ran since the last node ended: each sum of gradients to who gets it."""
        between = self.watch.take()[0]
        for target, kernel in zip(self._sums, between, strict=False):
            self.kernels[target].append(kernel)
        if self.order:
            self.kernels[self.order[-1]] += between[len(self._sums) :]
        self._sums = []
        self.order.append(node)

    def ends(self, node: Node, sent: Sequence[torch.Tensor | None]) -> None:
        """Credit what ran to `node`, and expect a sum where a gradient is not the first."""
        self.kernels[node] += self.watch.take()[0]
        self.sent[node] = [None if g is None else self.storages.read(g) for g in sent]
        for (target, slot), gradient in zip(node.next_functions, sent, strict=False):
            if target is None or gradient is None:
                continue
            if (target, slot) in self._arrived:
                self._sums.append(node if _is_leaf(target) else target)
            self._arrived.add((target, slot))


def run_backward(
    made_by: Mapping[Node, int], roots: list[torch.Tensor], watch: Watch, storages: Storages
) -> tuple[BackwardStep, ...]:
    """Let autograd's engine run, and note what each of its nodes does.

    Parameters
    ----------
    made_by
        The forward step that made each of autograd's nodes.
    roots
        Tensors to start from.
    """
    engine = _Engine(watch, storages)
    leaves = _leaves(made_by)
    for node in {*made_by, *leaves}:
        engine.listen(node)
    for leaf in leaves:  # so that it adds, as after the first microbatch
        leaf.variable.grad = torch.zeros_like(leaf.variable)
    watch.take()
    torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
    for hook in engine.hooks:  # a parameter keeps its leaf, for a second recording too
        hook.remove()
    for leaf in leaves:
        leaf.variable.grad = None
    order = [node for node in engine.order if not _is_leaf(node)]
    number = {node: i for i, node in enumerate(order)}
    steps = []
    for node in order:
        feeds, accumulates, sums = [], [], []
        for (target, slot), gradient in zip(node.next_functions, engine.sent[node], strict=False):
            if target is None or gradient is None:
                continue
            if _is_leaf(target):
                accumulates.append(storages.number(target.variable))
                sums += engine.kernels.pop(target, [])
            elif target in number:
                feeds.append((number[target], slot, gradient))
        steps.append(
            BackwardStep(
                name=node.name(),
                forward=made_by[node],
                kernels=tuple(engine.kernels[node]),
                feeds=tuple(feeds),
                accumulates=tuple(accumulates),
                sums=tuple(sums),
            )
        )
    return tuple(steps)


def _leaves(nodes: Iterable[Node]) -> list[Any]:
    """Return the nodes that add gradients to parameters', in a fixed order."""
    below = (target for node in nodes for target, _ in node.next_functions)
    return list(dict.fromkeys(node for node in below if node is not None and _is_leaf(node)))


def _is_leaf(node: Any) -> bool:
    """Whether an autograd node only adds a gradient to a parameter's."""
    return hasattr(node, "variable")
