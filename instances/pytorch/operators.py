"""From a recording to a graph of operators: views and constants folded, who shares a device.

What is folded
--------------
A step that computes nothing (a view, a check, dropout in evaluation) belongs to the operator whose
output it looks at. A step that depends on no input and no parameter is a constant: every device
has its own, made once; only its bytes are kept, by the first operator that reads it. A step that
only updates a module's state (a counter) belongs to the next operator of that module. Backward
steps that compute nothing hand their gradients on.

Who shares a device
-------------------
Operators that read one parameter (unless it is copied), operators that change one tensor in place
together with whoever reads it before the last change, users of state that changes, and a backward
operator with its forward operator.
"""

from __future__ import annotations

from collections.abc import Iterable

from .graph import Flow, Graph, Operator
from .recording import Recording


def operator_graph(recording: Recording, training: bool, copies: bool = False) -> Graph:
    """Return the operator graph of a recording.

    Parameters
    ----------
    copies
        Every operator that reads a tied parameter has a copy of it, with gradient and optimizer
        state; else they share a device.

    Notes
    -----
    Linear in what was recorded.
    """
    build = _Build(recording, training, copies)
    build.forward()
    build.memory()
    build.backward()
    return build.graph()


class _Build:
    """The graph under construction, in three passes over the recording."""

    def __init__(self, recording: Recording, training: bool, copies: bool) -> None:
        self.recording = recording
        self.training = training
        self.copies = copies
        self.operators: list[Operator] = []
        self.flows: list[Flow] = []
        self.anywhere: list[str] = []
        self.of_step: dict[int, int] = {}
        self.writer: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        changed = {
            s
            for i, step in enumerate(recording.steps)
            for s in step.writes
            if step.kernels and s in {r.storage for r in step.reads}
        }
        self.constant = set(recording.buffers) - changed
        self.state = set(recording.buffers) & changed
        self.leader: list[int] = []

    def forward(self) -> None:
        """Turn steps into operators, and readings into flows from the last writer."""
        waiting: list[int] = []  # steps that only touch state, until an operator of their module
        for i, step in enumerate(self.recording.steps):
            touched = {r.storage for r in step.reads} | set(step.writes)
            if not step.kernels:
                if touched and touched <= self.constant:
                    self.constant |= set(step.writes)
                continue
            fixed = {r.storage for r in step.reads} <= self.constant
            if fixed and not step.random:
                self.constant |= set(step.writes)
                self.anywhere.append(step.name)
                continue
            if touched <= self.state | self.constant:
                waiting.append(i)
                continue
            v = self._operator(i)
            for other in [w for w in waiting if self.recording.steps[w].modules == step.modules]:
                waiting.remove(other)
                self._join(other, v)
        for i in waiting:
            self._operator(i)
        self._views()
        for tensor in self.recording.outputs:
            if tensor.storage in self.writer:
                self.flows.append(Flow(self.writer[tensor.storage], -1, tensor))

    def _operator(self, i: int) -> int:
        step = self.recording.steps[i]
        v = len(self.operators)
        self.operators.append(
            Operator(step.name, step.kind, step.modules, step.kernels, parts=[step.name])
        )
        self.leader.append(v)
        self._connect(i, v)
        return v

    def _join(self, i: int, v: int) -> None:
        """Let operator `v` do what step `i` does, too."""
        step, op = self.recording.steps[i], self.operators[v]
        op.kernels = (*step.kernels, *op.kernels)
        op.parts.insert(0, step.name)
        self._connect(i, v)

    def _connect(self, i: int, v: int) -> None:
        step = self.recording.steps[i]
        self.of_step[i] = v
        read = {r.storage for r in step.reads}
        for tensor in step.reads:
            source = self.writer.get(tensor.storage)
            if source is not None and source != v:
                self.flows.append(Flow(source, v, tensor))
        for storage in read:
            self.readers.setdefault(storage, []).append(v)
        for storage in step.writes:
            if storage in read:  # changed in place: with all who have seen it so far
                before = [self.writer[storage]] if storage in self.writer else []
                self._together([v, *before, *self.readers[storage]])
            self.writer[storage] = v
            self.constant.discard(storage)
        for storage in read & self.state:
            self._together(self.readers[storage])

    def _views(self) -> None:
        """Credit steps that compute nothing to the operator whose output they look at."""
        for i, step in enumerate(self.recording.steps):
            if step.kernels or i in self.of_step:
                continue
            v = self._owner(r.storage for r in step.reads)
            if v >= 0:
                self.of_step[i] = v
                self.operators[v].parts.append(step.name)
            else:
                self.anywhere.append(step.name)

    def _owner(self, storages: Iterable[int]) -> int:
        """Return who made the first of these storages, or reads it first if nobody did."""
        for storage in storages:
            if storage in self.writer:
                return self.writer[storage]
            if self.readers.get(storage):
                return self.readers[storage][0]
        return -1

    def memory(self) -> None:
        """Hold each parameter, constant and saved tensor by one operator."""
        recording, kept = self.recording, {s for step in self.recording.steps for s in step.saved}
        inner = {
            s: self.of_step[i]
            for i, step in enumerate(recording.steps)
            for s in step.saved
            if i in self.of_step
        }
        for storage, parameter in recording.parameters.items():
            users = list(dict.fromkeys(self.readers.get(storage, [])))
            for v in users if self.copies else users[:1]:
                self.operators[v].weight_bytes += parameter.size_bytes
            for v in users[:1]:
                self.operators[v].parameters += parameter.elements
            if not self.copies:
                self._together(users)
        for storage, size in enumerate(recording.sizes):
            made = self.writer.get(storage, -1)
            owner = self._owner([storage])
            if owner < 0:  # made within a step, for the backward pass only
                owner = inner.get(storage, -1)
            if storage in recording.parameters or owner < 0:
                continue
            holder = self.operators[owner]
            if storage in kept and storage not in recording.buffers:
                holder.activation_bytes += size
            elif made < 0 and storage not in recording.inputs:
                holder.constant_bytes += size
        if not self.training:
            self._kept_outputs()

    def _kept_outputs(self) -> None:
        """Count, for inference, the tensors that leave their module or the model."""
        kept = {
            f.tensor.storage
            for f in self.flows
            if f.target < 0 or self.operators[f.source].modules != self.operators[f.target].modules
        }
        for storage in kept:
            self.operators[self.writer[storage]].activation_bytes += self.recording.sizes[storage]

    def backward(self) -> None:
        """Add backward operators, those that compute nothing skipped."""
        steps = self.recording.backward
        number: dict[int, int] = {}
        names: dict[str, int] = {}
        for i, step in enumerate(steps):
            if not step.kernels:
                continue
            partner = self._partner(step.forward)
            made_by = self.recording.steps[step.forward]
            name = f"{made_by.name}.{step.name}"
            names[name] = names.get(name, 0) + 1
            name += f".{names[name]}" if names[name] > 1 else ""
            number[i] = len(self.operators)
            self.leader.append(len(self.operators))
            modules = self.operators[partner].modules if partner >= 0 else made_by.modules
            self.operators.append(
                Operator(name, step.name, modules, step.kernels, True, partner, [name])
            )
            if partner >= 0:
                self._together([partner, number[i]])
        delivered: set[int] = set()
        for i in range(len(steps)):
            if i in number:
                for target, slot, tensor in steps[i].feeds:
                    for j, at in self._reached(target, slot, number):
                        self.flows.append(Flow(number[i], number[j], tensor, (j, at)))
        for i, storage in self._gradients(number):
            if not self.copies and storage in delivered:
                continue
            delivered.add(storage)
            self._hold_gradient(number.get(i, -1), storage)

    def _partner(self, step: int) -> int:
        if step in self.of_step:
            return self.of_step[step]
        return self._owner(r.storage for r in self.recording.steps[step].reads)

    def _reached(self, start: int, slot: int, number: dict[int, int]) -> list[tuple[int, int]]:
        """Backward operators and their inputs that a gradient reaches, handed on as it is."""
        found, waiting = [], [(start, slot)]
        seen = set(waiting)
        while waiting:
            i, at = waiting.pop()
            if i in number:
                found.append((i, at))
                continue
            for target, slot, _ in self.recording.backward[i].feeds:
                if (target, slot) not in seen:
                    seen.add((target, slot))
                    waiting.append((target, slot))
        return sorted(found)

    def _gradients(self, number: dict[int, int]) -> list[tuple[int, int]]:
        """Return which backward operator delivers the gradient of which parameter."""
        pairs: list[tuple[int, int]] = []
        source: dict[int, int] = {}  # the last operator before each step that hands on
        for i, step in enumerate(self.recording.backward):
            giver = i if i in number else source.get(i, -1)
            for target, _, _ in step.feeds:
                source[target] = giver
            pairs += [(giver, storage) for storage in step.accumulates]
        return pairs

    def _hold_gradient(self, v: int, storage: int) -> None:
        parameter = self.recording.parameters.get(storage)
        if parameter is None:
            return
        op = self.operators[v if v >= 0 else self._owner([storage])]
        op.gradient_bytes += parameter.size_bytes
        op.optimizer_bytes += optimizer_bytes(parameter.elements, parameter.size_bytes)

    def _together(self, members: Iterable[int]) -> None:
        first = -1
        for v in members:
            root = self._find(v)
            if first < 0:
                first = root
            low, high = sorted((self._find(first), root))
            self.leader[high] = low

    def _find(self, v: int) -> int:
        while self.leader[v] != v:
            self.leader[v] = self.leader[self.leader[v]]
            v = self.leader[v]
        return v

    def graph(self) -> Graph:
        """Return what was built."""
        classes: dict[int, list[int]] = {}
        for v in range(len(self.operators)):
            classes.setdefault(self._find(v), []).append(v)
        return Graph(
            operators=tuple(self.operators),
            flows=tuple(self.flows),
            sizes=self.recording.sizes,
            colours=tuple(tuple(c) for c in classes.values() if len(c) > 1),
            anywhere=tuple(self.anywhere),
        )


def optimizer_bytes(elements: float, size_bytes: float) -> float:
    """Return the bytes of Adam's state: two 32-bit moments, and a 32-bit copy of shorter weights.

    Rajbhandari et al., "ZeRO", SC 2020, section 3.1.
    """
    return elements * (12.0 if size_bytes < 4 * elements else 8.0)
