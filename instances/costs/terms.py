"""Names of the terms of time and memory in an estimate, in the order of tables and pictures."""

from __future__ import annotations

#: Names of the terms of an iteration's time by key, in the order in which they are drawn.
TIME_TERMS = {
    "layers": "profiled layers",
    "products": "matrix products",
    "attention": "attention",
    "pointwise": "pointwise work",
    "recomputation": "recomputation",
    "tensor": "tensor-parallel collectives",
    "context": "context-parallel exchange",
    "experts": "dispatch to experts",
    "host": "host: launches, each step",
    "weights": "waiting for sharded weights",
    "offload": "waiting for host memory",
    "bubble": "pipeline bubble and messages",
    "gradients": "gradients and weights of replicas",
    "optimizer": "optimizer step",
}

#: Names of the terms of a rank's memory by key.
MEMORY_TERMS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "logits": "logits and loss",
    "workspace": "workspace of a block",
    "gathered": "gathered weights",
    "communication": "buffers of collectives",
    "fragmentation": "fragmentation",
    "cached": "kept by the allocator",
    "context": "driver and libraries",
}
