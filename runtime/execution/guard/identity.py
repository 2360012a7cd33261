"""Hashes of plans, layouts and models, to compare ranks and checkpoints."""

from __future__ import annotations

import hashlib
from dataclasses import fields

import numpy as np
import torch
from torch import nn

from ....instances import InputError, Plan
from ....instances.costs.layout import Layout
from ....instances.pytorch.tensor_trace import TrainingGraph
from ....instances.pytorch.tracing.traced import Traced

#: Numbers of each parameter in the hash of the weights.
SAMPLE = 64


def plan_hash(plan: Plan) -> str:
    """Return a hash of a plan's problem and solution."""
    digest = hashlib.sha256(repr((plan.problem, plan.cluster)).encode())
    for value in vars(plan.solution).values():
        digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return digest.hexdigest()


def layout_hash(layout: Layout, schedule: str | None = None) -> str:
    """Return a hash of a job's layout and schedule, the same in all processes."""
    values = (getattr(layout, one.name) for one in fields(layout))
    # each process has another order of sets
    ordered = [sorted(x) if isinstance(x, frozenset) else x for x in values]
    return hashlib.sha256(repr((ordered, schedule)).encode()).hexdigest()


def training_graph_hash(traced: TrainingGraph) -> str:
    """Return a hash of a training graph: operators, and shapes of their outputs."""
    digest = hashlib.sha256(traced.graph.python_code("self").src.encode())
    for n in traced.graph.nodes:
        digest.update(f"{n.name} {getattr(n.meta.get('val'), 'shape', ())}\n".encode())
    return digest.hexdigest()


def graph_hash(traced: Traced) -> str:
    """Return a hash of a traced model: its operators, and the shapes of its parameters."""
    digest = hashlib.sha256(traced.module.graph.python_code("self").src.encode())
    for name, parameter in traced.parameters:
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
    return digest.hexdigest()


def weights_hash(model: nn.Module) -> str:
    """Return a hash of the first numbers of every parameter, which another seed changes.

    Raises InputError if a parameter has no numbers.
    """
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise InputError(
                f"{name}: it is on the device meta; make the model on the CPU to run it"
            )
        some = parameter.detach().reshape(-1)[:SAMPLE].cpu().view(torch.uint8)
        digest.update(name.encode() + some.numpy().tobytes())
    return digest.hexdigest()


def random_hash() -> str:
    """Return a hash of torch's random state, which ranks that share operators have in common."""
    return hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
