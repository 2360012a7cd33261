"""What the operators of a training graph take on this machine's CPU, whole, by running it."""

from __future__ import annotations

import operator as python_operator
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from ...common.errors import InputError
from ...model.sharding.program import Operator, TensorProgram
from ..prices.timing import BUDGET_S, FEWEST_RUNS, MOST_RUNS, WARM_UP, host_clock
from ..tracing.leaves import tensors
from ..tracing.traced import reason_of
from .trace import TrainingGraph


def operator_seconds(
    traced: TrainingGraph, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, float]:
    """Return the median seconds of each call of a training graph, by its node's name.

    The graph runs again and again on the model's numbers, as `measure_kernels` does it.

    Raises
    ------
    InputError
        If the model is not on a CPU, or fails when it runs.
    """
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    inputs = {f"input {k}": value for k, value in enumerate(tensors((args, dict(kwargs))))}
    values = {name: value.detach() for name, value in (state | inputs).items()}
    values |= traced.constants
    if any(value.device.type != "cpu" for value in values.values()):
        raise InputError("model: operators are measured on CPUs alone; give --estimate")
    clock = host_clock(torch.device("cpu"))
    seconds: dict[str, list[float]] = {}

    class Timed(fx.Interpreter):  # type: ignore[misc]
        def run_node(self, node: fx.Node) -> Any:
            begun = clock()
            made = super().run_node(node)
            if node.op == "call_function" and node.target is not python_operator.getitem:
                seconds.setdefault(node.name, []).append(clock() - begun)
            return made

    running = Timed(fx.GraphModule(nn.Module(), traced.graph))
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    until, runs = time.perf_counter() + BUDGET_S, 0
    while runs < WARM_UP + FEWEST_RUNS or (runs < MOST_RUNS and time.perf_counter() < until):
        given = [values.get(traced.names.get(node.name, "")) for node in placeholders]
        for k, node in enumerate(placeholders):
            if node.name in traced.resident:  # statistics change
                given[k] = values[traced.names[node.name]].clone()
        try:
            with torch.no_grad():
                running.run(*given, enable_io_processing=False)
        except RuntimeError as error:
            reason = reason_of(error, model)
            raise InputError(f"model: it fails when it runs: {reason}") from None
        runs += 1
    return {name: statistics.median(each[WARM_UP:]) for name, each in seconds.items()}


def as_measured(program: TensorProgram, seconds: Mapping[str, float]) -> TensorProgram:
    """Return a program priced by a CPU core's roofline with times as they were measured, in ms.

    What a view takes is what any call takes that computes nothing; it does not shrink. The rest
    of an operator's time shrinks with its work, or with its bytes, in the roofline's proportion.
    """
    views = [seconds[str(o.name)] for o in program.operators if o.view and o.name in seconds]
    call = 1e3 * statistics.median(views) if views else 0.0

    def measured(one: Operator) -> Operator:
        if one.name not in seconds:
            return one
        taken = 1e3 * seconds[str(one.name)]
        if one.view:
            return replace(one, fixed=taken)
        fixed = min(taken, call)
        # without either, bytes: a call whose tensors are empty, or hold what is no number
        compute, memory = one.compute, one.memory or float(one.compute == 0)
        factor = (taken - fixed) / max(compute, memory)
        return replace(one, fixed=fixed, compute=factor * compute, memory=factor * memory)

    return TensorProgram(program.tensors, tuple(map(measured, program.operators)))
