"""Backward passes in two halves: gradients of inputs, then of weights.

The *spine* of autograd's graph are the nodes from which an input can be reached; branches lead from
it to the parameters. The first half runs the spine and keeps the gradients that arrive where
branches leave it; the second half starts from these.

References
----------
The halves: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2. How they are found
in autograd's graph is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

#: Gradients that arrive at a node: one for each of its outputs, or None.
Arrived = tuple[torch.Tensor | None, ...]


class SplitBackward:
    """Backward pass of one microbatch in two halves, from outputs to leaves."""

    def __init__(
        self,
        roots: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        leaves: Sequence[torch.Tensor],
    ) -> None:
        self.leaves = list(leaves)
        starts = [
            (get_gradient_edge(root), torch.ones_like(root) if given is None else given)
            for root, given in zip(roots, gradients, strict=True)
        ]
        users = _users([edge.node for edge, _ in starts])
        self.spine = _reaching([get_gradient_edge(leaf).node for leaf in leaves], users)
        self.on_spine = [start for start in starts if start[0].node in self.spine]
        self.beside = [start for start in starts if start[0].node not in self.spine]
        self.arrived: dict[Node, Arrived] = {}

    def inputs(self) -> None:
        """Add the gradients of the inputs to their `grad`."""
        if not self.on_spine:
            return
        handles = [
            node.register_prehook(self._listener(node))
            for node in self.spine
            if any(self._branches(node))
        ]
        edges, given = zip(*self.on_spine, strict=True)
        try:
            torch.autograd.backward(edges, given, retain_graph=True, inputs=self.leaves)
        finally:
            for handle in handles:
                handle.remove()

    def weights(self, parameters: Sequence[torch.Tensor]) -> None:
        """Add the gradients of the parameters to their `grad`.

        Notes
        -----
        A parameter that several nodes of the spine use is reached from the upper one along the
        spine too, where the lower one makes its own start: there nothing may arrive twice.
        """
        owner = {get_gradient_edge(p).node: p for p in parameters}
        below = {node: self._below(node, owner) for node in self.arrived}
        uses: dict[Node, int] = {}
        for found in below.values():
            for end in found:
                uses[end] = uses.get(end, 0) + 1
        for node, gradients in self.arrived.items():
            starts = [(GradientEdge(node, i), g) for i, g in enumerate(gradients) if g is not None]
            apart = any(uses[end] > 1 for end in below[node])
            others = [other for other in self.arrived if other is not node] if apart else []
            handles = [other.register_prehook(_nothing) for other in others]
            try:
                _accumulate(starts, [owner[end] for end in below[node]])
            finally:
                for handle in handles:
                    handle.remove()
        reached = {end for edge, _ in self.beside for end in self._below(edge.node, owner)}
        _accumulate(self.beside, [p for end, p in owner.items() if end in reached])
        self.arrived.clear()

    def _listener(self, node: Node) -> Callable[[Arrived], None]:
        def note(gradients: Arrived) -> None:
            self.arrived[node] = gradients

        return note

    def _branches(self, node: Node) -> list[Node]:
        return [n for n, _ in node.next_functions if n is not None and n not in self.spine]

    def _below(self, node: Node, ends: Collection[Node]) -> list[Node]:
        """Return those of `ends` that branches at `node` lead to, or that `node` is."""
        seen = {node}
        waiting = [node]
        while waiting:
            for following in self._branches(waiting.pop()):
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return [end for end in ends if end in seen]


def _accumulate(
    starts: Sequence[tuple[GradientEdge, torch.Tensor]], parameters: Sequence[torch.Tensor]
) -> None:
    if starts and parameters:
        edges, given = zip(*starts, strict=True)
        torch.autograd.backward(edges, given, retain_graph=True, inputs=list(parameters))


def _nothing(gradients: Arrived) -> Arrived:
    return tuple(None if g is None else torch.zeros_like(g) for g in gradients)


def _users(roots: Sequence[Node]) -> dict[Node, list[Node]]:
    """Return the nodes reachable from the roots, each with its direct predecessors."""
    users: dict[Node, list[Node]] = {root: [] for root in roots}
    waiting = list(users)
    while waiting:
        node = waiting.pop()
        for following, _ in node.next_functions:
            if following is not None:
                if following not in users:
                    users[following] = []
                    waiting.append(following)
                users[following].append(node)
    return users


def _reaching(ends: Sequence[Node], users: dict[Node, list[Node]]) -> set[Node]:
    """Return the nodes that lead to any of `ends`, and these."""
    found = {end for end in ends if end in users}
    waiting = list(found)
    while waiting:
        for user in users[waiting.pop()]:
            if user not in found:
                found.add(user)
                waiting.append(user)
    return found
