"""A step of a job by term: compute, collectives by axis, bubble, optimizer, and memory by category.

A dispatch mode sees every collective under torch (FSDP2's, DTensor's, the pipeline's messages) with
its process group, hence its axis, and waits for it at once: seconds are those of collectives that
nothing hides. Bytes are counted as plans count them (`instances/costs/traffic.py`): of the gathered
tensor, of each rank's input to a sum or an exchange, of a message.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ....instances.costs.layout import ContextKind
from ...measure.group import idle_at, of_all_ranks
from ..attention import replaced
from .experts import local_part
from .running import RunningJob

#: Kinds of collectives by the names of torch's operators, of both families.
_KINDS = {
    "all_gather_into_tensor": "all-gather", "_allgather_base_": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter", "_reduce_scatter_base_": "reduce-scatter",
    "all_reduce": "all-reduce", "allreduce_": "all-reduce",
    "all_to_all_single": "all-to-all", "alltoall_base_": "all-to-all", "send": "message",
}  # fmt: skip
#: Methods of a pipeline stage that compute.
_PASSES = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


@dataclass(frozen=True)
class CollectiveSum:
    """Sums over the collectives of one kind over one axis in a step of a rank.

    `axis` and `kind` are as in `CollectiveTraffic`; outside the passes `axis` is ``loss`` (of a
    divided vocabulary), ``sums`` (gradients of tied weights and of those that tensor-parallel ranks
    have whole, the mean loss) or ``norm``.
    """

    axis: str
    kind: str
    count: int
    size: int
    seconds: float


@dataclass(frozen=True)
class MeasuredStep:
    """Times and memory of one rank in a step; `seconds` include the measurement itself.

    `terms` has seconds of ``compute`` (passes without their collectives), ``bubble`` (waiting for
    other stages, and messages), ``optimizer``, collectives by axis, and ``other``; they add up to
    `seconds`. `memory` has bytes of ``parameters``, ``gradients``, ``optimizer``, and the peak of
    ``activations`` kept for backward passes; `peak` is that of a GPU's allocator, 0 on CPUs.
    """

    rank: int
    pipeline_rank: int
    seconds: float
    terms: dict[str, float]
    collectives: tuple[CollectiveSum, ...]
    memory: dict[str, int]
    peak: int = 0


@contextmanager
def measured_step(
    job: RunningJob, optimizers: Sequence[torch.optim.Optimizer]
) -> Iterator[list[MeasuredStep]]:
    """Measure the job's step, with the update of its weights, that runs in the context.

    Yields a list, which afterwards has the step of every rank, by rank.
    """
    found: list[MeasuredStep] = []
    cuda = job.device.type == "cuda"
    clock = _Clock(job.device)
    collectives, kept = _Collectives(job, clock), _KeptBytes()
    timed: list[tuple[Any, str, str]] = [(each, "step", "optimizer") for each in optimizers]
    timed.append((job, "passes", "bubble" if job.pipeline_stages else "compute"))
    timed += [(stage, name, "compute") for stage in job.pipeline_stages for name in _PASSES]
    if cuda:
        torch.cuda.reset_peak_memory_stats(job.device)
    dist.barrier()
    with ExitStack() as stack:
        for of, name, term in timed:
            stack.enter_context(replaced(of, name, clock.timed(getattr(of, name), term)))
        stack.enter_context(collectives)
        stack.enter_context(saved_tensors_hooks(kept.pack, _KeptBytes.unpack))
        clock.begin()
        yield found
        clock.end()
    own = MeasuredStep(
        dist.get_rank(),
        job.mesh.rank("pipeline"),
        sum(clock.terms.values()),
        dict(clock.terms),
        collectives.sums(),
        {**_held(job, optimizers), "activations": kept.most},
        int(torch.cuda.max_memory_allocated(job.device)) if cuda else 0,
    )
    found += of_all_ranks(own)


class _Clock:
    """Clock of seconds by term: each moment counts for the innermost term that was begun."""

    def __init__(self, device: torch.device) -> None:
        self.terms: dict[str, float] = defaultdict(float)
        self.device, self._inside = device, ["other"]
        self._since = 0.0

    def begin(self) -> None:
        self._since = idle_at(self.device)

    def end(self) -> None:
        now = idle_at(self.device)
        self.terms[self._inside[-1]] += now - self._since
        self._since = now

    @contextmanager
    def within(self, term: str) -> Iterator[None]:
        self.end()
        self._inside.append(term)
        try:
            yield
        finally:
            self.end()
            self._inside.pop()

    def timed(self, function: Callable[..., Any], term: str) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.within(term):
                return function(*args, **kwargs)

        return run


class _Collectives(TorchDispatchMode):  # type: ignore[misc]  # torch does not say its type
    """Collectives of a step, each waited for where it begins."""

    def __init__(self, job: RunningJob, clock: _Clock) -> None:
        super().__init__()
        self.job, self.clock, self.axes = job, clock, job.mesh.axes_of_groups()
        # of earlier jobs in this process DTensor goes on using groups of the same ranks
        groups = (
            (dist.distributed_c10d._resolve_process_group(n), a) for n, a in self.axes.items()
        )
        # Experts' groups come last: collectives of the same ranks count for the axis before them.
        self.of_ranks = {
            tuple(dist.get_process_group_ranks(group)): axis
            for group, axis in reversed(list(groups))
        }
        self.found: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0, 0.0])

    def sums(self) -> tuple[CollectiveSum, ...]:
        """Return the sums by axis and kind."""
        return tuple(
            CollectiveSum(*key, int(count), int(size), seconds)
            for key, (count, size, seconds) in sorted(self.found.items())
        )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator and count it if it is a collective, of DTensors those below them."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        kind = _KINDS.get(getattr(func, "_overloadpacket", func).__name__)
        if kind is None or not str(func).startswith(("c10d.", "_c10d_functional.")):
            return func(*args, **kwargs)
        given = dict(zip([one.name for one in func._schema.arguments], args, strict=False)) | kwargs
        axis = self._axis(given, kind)
        if axis is None or kind == "message":
            result = func(*args, **kwargs)
            seconds = 0.0
        else:
            with self.clock.within(axis):
                begun = time.perf_counter()
                result = func(*args, **kwargs)
                _wait(result)
            seconds = time.perf_counter() - begun
        if axis is not None:
            sums = self.found[axis, kind]
            sums[:] = sums[0] + 1, sums[1] + _bytes(kind, given), sums[2] + seconds
        return result

    def _axis(self, given: dict[str, Any], kind: str) -> str | None:
        """Return the axis or phase of a collective; None if its group has one rank."""
        name = given.get("group_name")
        group = (
            dist.ProcessGroup.unbox(given["process_group"])
            if name is None
            else dist.distributed_c10d._resolve_process_group(name)
        )
        if group.size() == 1:
            return None
        ranks = tuple(dist.get_process_group_ranks(group))
        known = self.axes.get(group.group_name) or self.of_ranks.get(ranks, "all")
        if kind == "all-to-all" and self.job.layout.context_kind is not ContextKind.ALL_TO_ALL:
            known = "expert"  # whose group may be another axis's, too
        return self.job.phase or known


def _wait(result: Any) -> None:
    """Wait for a collective, given its operator's result."""
    for each in result if isinstance(result, tuple) else (result,):
        if isinstance(each, torch.ScriptObject):
            work = dist.Work.unbox(each)
            if work is not None:  # NCCL returns none where its stream waits by itself
                work.wait()
        elif isinstance(each, Tensor) and not isinstance(result, tuple):
            torch.ops._c10d_functional.wait_tensor(each)


def _bytes(kind: str, given: dict[str, Any]) -> int:
    """Return the bytes of a collective as plans count them."""
    if kind == "all-gather" and "group_size" in given:
        return int(given["input"].nbytes * given["group_size"])
    names = ("output_tensor",) if kind == "all-gather" else ("input_tensor", "input", "tensors")
    whole = next(given[name] for name in names if name in given)
    return sum(x.nbytes for x in tree_leaves(whole) if isinstance(x, Tensor))


class _KeptTensor:
    """Tensor that autograd keeps; its bytes count until this object is freed."""

    def __init__(self, of: _KeptBytes, tensor: Tensor, local: Tensor) -> None:
        self.of, self.tensor = of, tensor
        self.key, self.size = local.untyped_storage().data_ptr(), local.untyped_storage().nbytes()
        of.add(self.key, self.size)

    def __del__(self) -> None:
        self.of.drop(self.key, self.size)


class _KeptBytes:
    """Counter of bytes kept for backward passes, without weights; storages count once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._held: dict[int, int] = defaultdict(int)

    def pack(self, tensor: Tensor) -> Any:
        """Return the object that autograd keeps in a tensor's place."""
        local = local_part(tensor)
        local = local.elem if isinstance(local, AsyncCollectiveTensor) else local
        weight = any(isinstance(x, nn.Parameter) for x in (tensor, tensor._base, local._base))
        return tensor if weight else _KeptTensor(self, tensor, local)

    @staticmethod
    def unpack(kept: Any) -> Tensor:
        """Return the tensor again."""
        tensor: Tensor = kept.tensor if isinstance(kept, _KeptTensor) else kept
        return tensor

    def add(self, key: int, size: int) -> None:
        self._held[key] += 1
        if self._held[key] == 1:
            self.now += size
            self.most = max(self.most, self.now)

    def drop(self, key: int, size: int) -> None:
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
            self.now -= size


def _held(job: RunningJob, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, int]:
    """Return the bytes that a rank holds between passes."""
    parameters = [p for _, p in job.named_parameters()]
    return {
        "parameters": _local_bytes(parameters),
        "gradients": _local_bytes([p.grad for p in parameters]),
        "optimizer": sum(_local_bytes(tree_leaves(dict(each.state))) for each in optimizers),
    }


def _local_bytes(values: Sequence[Any]) -> int:
    return sum(local_part(x).nbytes for x in values if isinstance(x, Tensor))
