"""Forward and backward passes of a piece on one device, apart from all communication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

from ...instances import StagecutError
from ...instances.pytorch.tracing.traced import loss_of
from ..measure.group import idle_at
from ..schedules.actions import Action, Kind
from .backward import SplitBackward
from .guard.failures import first_line
from .recording_file import RecordedAction
from .split import PieceModule

Tensors = tuple[torch.Tensor, ...]


class Recorder:
    """Recorder of begin and end of actions, without the time that they wait for data.

    Times are `time.perf_counter`'s, which the processes of one host share. On a GPU every
    action waits until the device is idle, so recording costs time there.
    """

    def __init__(self, device: torch.device) -> None:
        self.step = 0
        self.done: list[RecordedAction] = []
        self.device = device

    @contextmanager
    def during(self, action: Action) -> Iterator[None]:
        """Record begin and end of the block."""
        begun = idle_at(self.device)
        yield
        self.done.append(RecordedAction(self.step, str(action), begun, idle_at(self.device)))


@dataclass
class _InFlight:
    """Tensors of a microbatch between its forward and its backward pass."""

    inputs: Tensors
    outputs: Tensors
    split: SplitBackward | None = None


@dataclass
class StageRunner:
    """Executor of a piece on its device.

    The `last` one computes the loss, the mean over `microbatches`. With `recompute` only inputs are
    kept, and activations are computed again in the backward pass. `actions` counts finished passes,
    and `in_flight`, `losses` and `results` have microbatches by number.
    """

    piece: PieceModule
    last: bool
    training: bool
    microbatches: int = 1
    recompute: bool = False
    recorder: Recorder | None = None
    actions: int = 0
    in_flight: dict[int, _InFlight] = field(default_factory=dict)
    losses: dict[int, torch.Tensor] = field(default_factory=dict)
    results: dict[int, Tensors] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values = self.piece.values
        self._takes_grad = [values[name].grad and self.training for name in self.piece.inputs]
        self._gives_grad = [values[name].grad and self.training for name in self.piece.outputs]
        self._recomputes = self.recompute or _recomputes(self.piece.module)

    def forward(self, j: int, inputs: Sequence[torch.Tensor]) -> Tensors:
        """Run microbatch `j` forward and return the outputs, without their history.

        The last stage keeps the loss in `losses`, and of an inference the outputs in `results`.
        """
        with self._during(Kind.F, j), torch.set_grad_enabled(self.training):
            leaves = tuple(
                x.detach().requires_grad_(grad)
                for x, grad in zip(inputs, self._takes_grad, strict=True)
            )
            if self.recompute and self.training:
                outputs = checkpoint(self.piece.module, *leaves, use_reentrant=False)
            else:
                outputs = self.piece.module(*leaves)
            sent = tuple(t.detach() for t in outputs)
            if self.last:
                if not self.training:  # where outputs, such as logits, would outlive their pass
                    self.results[j] = sent
                loss = mean_loss(outputs)
                self.losses[j] = loss.detach()
                outputs = (loss / self.microbatches,)
            if self.training:
                self.in_flight[j] = _InFlight(leaves, outputs)
        return sent

    def backward(self, j: int, gradients: Sequence[torch.Tensor | None] = ()) -> Tensors:
        """Run the whole backward pass of microbatch `j`; return gradients of inputs that have one.

        `gradients` are of the outputs that have one, in their order; of the last stage none.
        """
        with self._during(Kind.B, j):
            flight = self.in_flight.pop(j)
            roots, given = self._roots(flight, gradients)
            if roots:
                torch.autograd.backward(roots, given)
            return self._sent(flight)

    def backward_inputs(self, j: int, gradients: Sequence[torch.Tensor | None] = ()) -> Tensors:
        """Compute the gradients of the inputs of microbatch `j`, and return them.

        A stage that recomputes, if only in parts, runs the whole backward pass: in halves it would
        compute its activations again for each of its weights.
        """
        with self._during(Kind.I, j):
            flight = self.in_flight[j]
            roots, given = self._roots(flight, gradients)
            if self._recomputes:
                if roots:
                    torch.autograd.backward(roots, given)
            else:
                flight.split = SplitBackward(
                    roots, given, [x for x in flight.inputs if x.requires_grad]
                )
                flight.split.inputs()
            return self._sent(flight)

    def backward_weights(self, j: int) -> None:
        """Compute the gradients of the parameters after `backward_inputs`."""
        with self._during(Kind.W, j):
            flight = self.in_flight.pop(j)
            if flight.split is not None:
                flight.split.weights([p for p in self.piece.module.parameters() if p.requires_grad])

    def clear(self) -> None:
        """Clear losses, results and, after a failure, microbatches in flight."""
        self.in_flight.clear()
        self.losses.clear()
        self.results.clear()

    def _roots(
        self, flight: _InFlight, gradients: Sequence[torch.Tensor | None]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        """Return the outputs to start from, and their gradients."""
        if self.last:
            loss = flight.outputs[0]
            return ([loss], [None]) if loss.requires_grad else ([], [])
        waiting = iter(gradients)
        roots: list[torch.Tensor] = []
        given: list[torch.Tensor | None] = []
        for output, has in zip(flight.outputs, self._gives_grad, strict=True):
            gradient = next(waiting) if has else None
            if gradient is not None and output.requires_grad:
                roots.append(output)
                given.append(gradient)
        return roots, given

    def _sent(self, flight: _InFlight) -> Tensors:
        return tuple(
            torch.zeros_like(x) if x.grad is None else x.grad.contiguous()
            for x, has in zip(flight.inputs, self._takes_grad, strict=True)
            if has
        )

    @contextmanager
    def _during(self, kind: Kind, j: int) -> Iterator[None]:
        """Count and record an action, and name it in errors."""
        action = Action(self.piece.index, kind, j)
        recording = nullcontext() if self.recorder is None else self.recorder.during(action)
        try:
            with recording:
                yield
            self.actions += 1
        except RuntimeError as error:
            why = first_line(error)
            raise StagecutError(f"piece {self.piece.index}: {action} failed: {why}") from error


def _recomputes(module: nn.Module) -> bool:
    """Whether layers of a piece, or code of the model in it, compute their activations again."""
    nodes = module.graph.nodes if isinstance(module, fx.GraphModule) else ()
    return any(n.target is checkpoint or getattr(n.target, "recomputes", False) for n in nodes)


def mean_loss(outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the model's loss: its first output that is a single number, else a substitute.

    The substitute is the sum of the means of its outputs: enough to time a run, but not to train.
    In training, outputs without a gradient do not count.
    """
    found = loss_of(outputs) or [t for t in outputs if t.is_floating_point()]
    if single := [t for t in found if t.numel() == 1]:
        return single[0].reshape(())
    means = [t.float().mean() for t in found if t.is_floating_point()]
    return torch.stack(means).sum() if means else torch.zeros(())


def register(root: nn.Module, name: str, value: nn.Module | torch.Tensor) -> None:
    """Register a module, parameter or buffer in `root` under a name such as ``layers.0.weight``."""
    *path, leaf = name.split(".")
    for part in path:  # not by `add_module`, which refuses names of attributes of `root`
        root = root._modules.setdefault(part, nn.Module())
    if isinstance(value, nn.Module):
        root._modules[leaf] = value
    elif isinstance(value, nn.Parameter):
        root._parameters[leaf] = value
    else:
        root._buffers[leaf] = value


def named_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers with their names."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def place(module: fx.GraphModule, device: torch.device) -> None:
    """Move a piece to a device, with the tensors that its graph creates."""
    module.to(device)
    for each in module.modules():  # of operators under autocast and recomputed layers, too
        if not isinstance(each, fx.GraphModule):
            continue
        for n in each.graph.nodes:
            if isinstance(n.kwargs.get("device"), torch.device):
                n.kwargs = {**n.kwargs, "device": device}
        each.recompile()
