"""Division of a traced model into a module per piece of a placement.

Pieces run one after the other in a topological order, and each hands the next its *live set*: all
tensors that any later piece needs, which so pass through the pieces between. Constants, which
depend on no input, are computed by every piece that needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from ...instances import InputError
from ...instances.operator_graph import Recording, TensorValue
from ...instances.pytorch.profile import Profile
from ...instances.pytorch.tracing.traced import varying
from ..simulate.pieces import forward_pieces_of


@dataclass(frozen=True, eq=False)
class PieceModule:
    """Module of one piece of a plan.

    `index` is its position in the topological order, `device` the plan's number of its device, and
    `nodes` are the workload's forward nodes in it. ``module(*inputs)`` takes the values named in
    `inputs` (the model's inputs, or what the piece before returns) and returns a tuple of those in
    `outputs`: its live set, or the model's outputs. `values` has all of these by name. Parameters
    and buffers of the module are the model's own tensors under the model's names, and pieces that
    share one share the object; `parameters` has the learned ones, a tied one under its first name.
    """

    index: int
    device: int
    nodes: tuple[int, ...]
    module: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, TensorValue]
    parameters: Mapping[str, nn.Parameter]


def split(
    profile: Profile,
    device: Sequence[int],
    order: Sequence[int] = (),
    groups: Sequence[int] | None = None,
) -> tuple[PieceModule, ...]:
    """Cut a traced model into its pieces, in the order in which they can run.

    `device` is that of each node of the profile's workload, colours together. Pieces are the convex
    parts of `groups`, by default of devices; `order` has the groups in the order of their pieces,
    where a plan says it (`groups_of`). A tensor of an earlier piece is copied before it is changed
    in place: autograd allows no changes to its leaves. O(pieces · nodes). Raises InputError if a
    value other than a tensor, or a tensor that is changed in place while a view of it is in use,
    would pass between pieces.
    """
    groups = device if groups is None else groups
    pieces = forward_pieces_of(profile.workload, list(groups), order)
    cut = _Cut(profile, pieces)
    local, needed = zip(*(cut.needs(p) for p in range(len(pieces))), strict=True)
    names = cut.crossing(needed)
    made = []
    for p, nodes in enumerate(pieces):
        inputs = names[p]
        outputs = names[p + 1] if p + 1 < len(pieces) else cut.outputs
        module = cut.module(inputs, local[p], outputs)
        own = {id(parameter) for parameter in module.parameters()}
        made.append(
            PieceModule(
                index=p,
                device=int(device[nodes[0]]),
                nodes=nodes,
                module=module,
                inputs=inputs,
                outputs=outputs,
                values={name: cut.values[name] for name in {*inputs, *outputs}},
                parameters={n: x for n, x in profile.traced.parameters if id(x) in own},
            )
        )
    return tuple(made)


class _Cut:
    """Graph of a model with the piece of each of its nodes."""

    def __init__(self, profile: Profile, pieces: list[tuple[int, ...]]) -> None:
        self.traced = profile.traced
        self.values = profile.recording.values
        #: Memory blocks that a node changes in place, by its name.
        self.changed = {
            step.name: {read.storage for read in step.reads}.intersection(step.writes)
            for step in profile.recording.steps
        }
        self.nodes = {n.name: n for n in profile.traced.module.graph.nodes}
        self.last = len(pieces) - 1
        self.free = {step.name for step in profile.recording.steps if not step.kernels}
        self.home: dict[str, int] = {}
        for p, members in enumerate(pieces):
            for v in members:
                self.home |= dict.fromkeys(profile.fx_nodes[profile.workload.ids[v]], p)
        self._settle_changed_constants()
        self._check_state(profile.recording)
        ends = next(n for n in self.nodes.values() if n.op == "output")
        returned: list[fx.Node] = []  # a value that the model returns twice is in it twice
        fx.node.map_arg(ends.args, returned.append)
        self.outputs = tuple(n.name for n in returned if n.name in self.values)
        self.names = {id(value): name for name, value in profile.traced.parameters}
        self.varying = {made for made, _ in varying(profile.traced.module)}

    def _settle_changed_constants(self) -> None:
        """Assign constants that a piece changes to the first piece that uses them."""
        of, changed = self.values, self.changed
        blocks = {block for name in self.home for block in changed.get(name, ())}
        first: dict[int, int] = {}
        for name, p in self.home.items():
            for a in self.nodes[name].all_input_nodes:
                if a.name in of and name not in self.free:
                    block = of[a.name].storage
                    first[block] = min(p, first.get(block, p))
        for n in self.nodes.values():
            block = of[n.name].storage if n.name in of else -1
            if n.op.startswith("call") and n.name not in self.home and block in blocks & set(first):
                self.home[n.name] = first[block]

    def _check_state(self, recording: Recording) -> None:
        """Raise InputError if several pieces use a buffer that changes.

        Each microbatch must find what the one before has left there.
        """
        state = recording.buffers & set().union(*self.changed.values())
        user: dict[int, int] = {}
        for step in recording.steps:
            p = self.home.get(step.name)
            for block in state & {read.storage for read in step.reads}:
                if p is not None and step.kernels and user.setdefault(block, p) != p:
                    raise InputError(
                        f"{step.name}: it uses a buffer that changes, and so does an earlier "
                        "piece, which other microbatches pass in between; plan with --split "
                        "contiguous"
                    )

    def needs(self, p: int) -> tuple[set[str], set[str]]:
        """Return the operators of piece `p`, and its values from earlier pieces, by name."""
        local: set[str] = set()
        values: set[str] = set()
        waiting = [self.nodes[name] for name, home in self.home.items() if home == p]
        if p == self.last:
            waiting += [self.nodes[name] for name in self.outputs]
        while waiting:
            n = waiting.pop()
            if n.name in local or n.name in values:
                continue
            if not self._is_local(n, p):
                values.add(n.name)
                continue
            local.add(n.name)
            waiting += [*n.all_input_nodes, *self._changes(n)]
        return local, values

    def _is_local(self, n: fx.Node, p: int) -> bool:
        if n.op == "placeholder":
            return n.name not in self.values  # a plain number, the same in every run
        home = self.home.get(n.name, p)
        if home > p and n.name not in self.free:
            raise InputError(f"{n.name}: a piece needs it before it is made; plan again")
        return home >= p

    def _changes(self, n: fx.Node) -> list[fx.Node]:
        """Return the nodes that belong to no piece and write into the memory of `n`."""
        value = self.values.get(n.name)
        if value is None or n.op == "placeholder":
            return []
        return [
            self.nodes[name]
            for name, blocks in self.changed.items()
            if name not in self.home and value.storage in blocks
        ]

    def crossing(self, needed: Sequence[set[str]]) -> list[tuple[str, ...]]:
        """Return the names of each piece's inputs, in the order of the graph."""
        until: dict[str, int] = {}
        for p, names in enumerate(needed):
            until |= dict.fromkeys(names, p)
        for name in until:
            if name in self.varying:
                raise InputError(
                    f"{name}: its size depends on the numbers of the inputs, and it would pass "
                    "between devices; plan with --split contiguous"
                )
            if name not in self.values:
                raise InputError(
                    f"{name}: it gives no single tensor, and cannot pass between devices; keep "
                    "the nodes that use it on its device"
                )
        entering: list[list[str]] = [[] for _ in needed]
        for n in self.nodes.values():
            value = self.values.get(n.name)
            if n.op == "placeholder" and value is not None:
                entering[0].append(n.name)
            first = self.home.get(n.name, 0) + 1
            for p in range(first, until.get(n.name, 0) + 1):
                entering[p].append(n.name)
        return [tuple(names) for names in entering]

    def module(
        self, inputs: tuple[str, ...], local: set[str], outputs: tuple[str, ...]
    ) -> fx.GraphModule:
        """Build the module of a piece."""
        graph = fx.Graph()
        new: dict[str, Any] = {name: graph.placeholder(name) for name in inputs}
        for name in self._changed_inputs(inputs, local):
            new[name] = graph.call_function(torch.ops.aten.clone.default, (new[name],))
        attributes: dict[str, Any] = {}
        placeholders = [n.name for n in self.nodes.values() if n.op == "placeholder"]
        given = dict(zip(placeholders, self.traced.inputs, strict=True))
        for n in self.nodes.values():
            if n.name not in local:
                continue
            if n.op == "placeholder":
                new[n.name] = given[n.name]
                continue
            copy = graph.node_copy(n, lambda a: new[a.name])
            if n.op in ("get_attr", "call_module"):
                copy.target, value = self._attribute(n)
                attributes[copy.target] = value
            new[n.name] = copy
        graph.output(tuple(new[name] for name in outputs))
        return fx.GraphModule(attributes, graph)

    def _attribute(self, n: fx.Node) -> tuple[str, Any]:
        """Return the attribute of a node, and the first of its names in the model."""
        value = self.traced.attribute(str(n.target))
        return self.names.get(id(value), str(n.target)), value

    def _changed_inputs(self, inputs: tuple[str, ...], local: set[str]) -> list[str]:
        """Return the inputs of a piece that it changes in place."""
        changed = {block for name in local for block in self.changed.get(name, ())}
        found = [name for name in inputs if self.values[name].storage in changed]
        blocks = [self.values[name].storage for name in found]
        for name, block in zip(found, blocks, strict=True):
            if blocks.count(block) > 1:
                raise InputError(
                    f"{name}: it is changed in place on another piece than the one that made it, "
                    "and views of it are in use; plan with --split contiguous"
                )
        return found
