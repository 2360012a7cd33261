"""DTensor's results for every operator under every signature that a sharding can plan.

    python benchmarks/dtensor_operators.py

The operators are those of the tests' small models, which have one for every rule. They run on
random numbers in two processes, under each signature of `instances/pytorch/tensor_rules.py`.
DTensor gets the parts as the signature says they lie. Each row has one verdict:

* *right*: the assembled result is that of one process, lies as the signature says, and moved the
  bytes that the plan prices;
* *lies otherwise*: right numbers and bytes, but the result lies elsewhere, so that the plan's next
  conversion is a different one;
* *other bytes*: right numbers, but other bytes than planned;
* *wrong*: other numbers, without an error;
* *refused*: an error.

Conversions between properties are rows of the operator `redistribute`. In rows that are right,
times are of one call of ours and of DTensor's, the least of five. Writes
`results/dtensor_operators.csv`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from ranks import on_ranks
from results import write
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from sharded_calls import CallOnNumbers, parts_of, replaced, signed_calls, tensors_of
from sharded_models import MODELS

from stagecut.instances.model.tensor_program import COPIED, PARTIAL, Signature, axis_text
from stagecut.instances.pytorch.tensor_rules import CONSTANTS, name_of
from stagecut.runtime.execution.sharded.collectives import (
    MeshPosition,
    combine,
    join_mesh,
    step,
)
from stagecut.runtime.execution.sharded.local import Call, compute

DEVICES = 2
VERDICTS = ("right", "lies otherwise", "other bytes", "wrong", "refused")
#: Bytes that a device sends for a tensor of one byte, by collective, on so many devices.
FACTORS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda p: 2 * (p - 1) / p,
    "all_gather_into_tensor": lambda p: p - 1,
    "reduce_scatter_tensor": lambda p: (p - 1) / p,
    "all_to_all_single": lambda p: (p - 1) / p,
}


class Sent(TorchDispatchMode):
    """Bytes that this process sends by functional collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind is DTensor for kind in types):
            return NotImplemented  # what it is made of comes here again
        name = func._schema.name.split("::")[-1]
        if func.namespace == "_c10d_functional" and name in FACTORS:
            self.bytes += FACTORS[name](DEVICES) * args[0].numel() * args[0].element_size()
        return func(*args, **(kwargs or {}))


def placement(how: int) -> Placement:
    """Return a property as DTensor calls it."""
    return {COPIED: Replicate(), PARTIAL: Partial()}.get(how, Shard(how))


def watched(
    make: Callable[[], Any], wanted: Sequence[Tensor], lying: Sequence[int], planned_bytes: float
) -> tuple[str, str]:
    """Return the verdict on what DTensor makes, with the reason."""
    try:
        with Sent() as sent:
            made = tensors_of(make())
        wholes = [one.full_tensor() if isinstance(one, DTensor) else one for one in made]
    except Exception as error:  # of whatever kind: it is the verdict
        lines = str(error).strip().splitlines() or [""]
        return "refused", f"{type(error).__name__}: {lines[0][:120]}"
    for one, other in zip(wholes, wanted, strict=True):
        if one.shape != other.shape:
            return "wrong", f"shape {tuple(one.shape)} in place of {tuple(other.shape)}"
        if not torch.allclose(one.to(other.dtype), other, rtol=1e-5, atol=1e-7):
            return "wrong", f"error {float((one - other).abs().max()):.2g}"
    if sent.bytes != planned_bytes:
        return "other bytes", f"{sent.bytes:g} in place of {planned_bytes:g}"
    for one, how in zip(made, lying, strict=True):
        found = one.placements[0] if isinstance(one, DTensor) else Replicate()
        if type(found) is not type(placement(how)) or found != placement(how):
            return "lies otherwise", f"{found} in place of {axis_text(how)}"
    return "right", ""


def least_us(make: Callable[[], Any]) -> float:
    """Return the least time of five calls, in microseconds."""
    taken = []
    for _ in range(5):
        dist.barrier()
        begun = time.perf_counter()
        make()
        taken.append(time.perf_counter() - begun)
    return 1e6 * min(taken)


def tried(call: CallOnNumbers, signature: Signature, mesh: DeviceMesh, place: MeshPosition) -> Any:
    """Return operator, signature, verdict, reason, and both times where DTensor is right."""
    node, args, kwargs, made = call
    kind, rank, wanted = name_of(node), dist.get_rank(), tensors_of(made)
    generator = torch.Generator().manual_seed(0)
    like = kind in CONSTANTS
    lying = iter(signature.outputs if CONSTANTS.get(kind, 0) is None else signature.inputs)
    local: list[Tensor] = []

    def part(whole: Tensor) -> Tensor:
        how = next(lying, COPIED)
        local.append(parts_of(whole, how, DEVICES, generator)[rank])
        hows.append(how)
        return local[-1]

    hows: list[int] = []
    parts = replaced(args, part), replaced(kwargs, part)

    def of_dtensor() -> Any:
        order = iter(hows)

        def distributed(one: Tensor) -> DTensor:
            return DTensor.from_local(one.clone(), mesh, [placement(next(order))], run_check=False)

        return node.target(*replaced(parts[0], distributed), **replaced(parts[1], distributed))

    def ours() -> Any:
        running = compute(Call(
            kind, node.target, args if like else parts[0], kwargs if like else parts[1],
            [(one,) for one in signature.inputs], [(one,) for one in signature.outputs],
            [tuple(one.shape) for one in wanted], place.mesh, place.at, place.device,
        ))  # fmt: skip
        result: Tensor | None = None
        while True:
            try:
                asked = running.send(result)
            except StopIteration as done:
                return done.value
            result, _ = combine(asked, place)

    with Sent() as sent:
        ours()
    verdict, reason = watched(of_dtensor, wanted, signature.outputs, sent.bytes)
    times = (least_us(ours), least_us(of_dtensor)) if verdict == "right" else (0.0, 0.0)
    return kind, signature.text, verdict, reason, *times


def converted(mesh: DeviceMesh, place: MeshPosition) -> list[Any]:
    """Return the same of conversions of a matrix."""
    generator = torch.Generator().manual_seed(1)
    whole = torch.randn(64, 32, generator=generator, dtype=torch.float64)
    rows = []
    for before in (0, 1, COPIED, PARTIAL):
        for after in (0, 1, COPIED, PARTIAL):
            part = parts_of(whole, before, DEVICES, generator)[dist.get_rank()]

            def ours(part: Tensor = part, before: int = before, after: int = after) -> Any:
                return step(part, before, after, 0, place)

            def of_dtensor(part: Tensor = part, before: int = before, after: int = after) -> Any:
                given = DTensor.from_local(part, mesh, [placement(before)], run_check=False)
                return given.redistribute(placements=[placement(after)])

            if before == after:
                continue
            planned = ours()[1].bytes
            verdict, reason = watched(of_dtensor, [whole], [after], planned)
            times = (least_us(ours), least_us(of_dtensor)) if verdict == "right" else (0.0, 0.0)
            text = f"{axis_text(before)}->{axis_text(after)}"
            rows.append(("redistribute", text, verdict, reason, *times))
    return rows


def work() -> list[Any]:
    """Be a rank: try everything."""
    mesh, place = init_device_mesh("cpu", (DEVICES,)), join_mesh((DEVICES,))
    rows = converted(mesh, place)
    for name in sorted(MODELS):
        for call, signature, _ in signed_calls(name, (DEVICES,)):
            if signature is not None:
                rows.append(tried(call, signature, mesh, place))
    return rows


def main() -> None:
    """Write a row per operator and signature; print how many are of each kind."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    found: dict[tuple[str, str], list[Any]] = {}
    for kind, text, *rest in on_ranks(DEVICES, work):
        found.setdefault((kind, text), []).append(rest)
    rows, kinds = [], Counter[str]()
    for (kind, text), calls in found.items():
        worst = max(calls, key=lambda one: VERDICTS.index(one[0]))
        right = [one for one in calls if one[0] == "right"]
        kinds[worst[0]] += 1
        rows.append({
            "operator": kind, "signature": text, "calls": str(len(calls)), "verdict": worst[0],
            **{verdict: str(sum(one[0] == verdict for one in calls)) for verdict in VERDICTS},
            "reason": worst[1],
            "own_us": f"{median(one[2] for one in right):.0f}" if right else "",
            "dtensor_us": f"{median(one[3] for one in right):.0f}" if right else "",
        })  # fmt: skip
    write("dtensor_operators", rows, seed="0")
    print(dict(kinds))


if __name__ == "__main__":
    main()
