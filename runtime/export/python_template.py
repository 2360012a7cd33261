"""What is the same in every script that `python_script` writes."""

TEMPLATE = '''\
"""{title}: {count} stages on {ranks} processes, with torch alone.

    torchrun --nproc-per-node {ranks} THIS_FILE --steps 10

{where}

Each process is a rank. A stage takes what the one before hands on and gives all that later stages
need. "Yours" marks what you will want to replace: data, loss, optimizer.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from itertools import islice, repeat

import torch
import torch.distributed as dist
from torch import device, inf, nan, nn  # noqa: F401
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime
from torch.utils._pytree import tree_leaves

{importing}

aten = torch.ops.aten
TRAINING = {training}
MICROBATCHES = {microbatches}
# A row per rank. 2F0 is the forward pass of microbatch 0 on stage 2, B the backward pass, I and W
# its two halves: gradients of inputs, gradients of weights.
SCHEDULE = """\\
{schedule}"""

RANK, LOCAL_RANK = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
GPUS = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
DEVICE = torch.device("cuda", LOCAL_RANK) if GPUS else torch.device("cpu")


def take(stage, model, *names):
    """Give a stage tensors (or modules) of the model, under their names there."""
    for name in names:
        found = model
        for part in name.split("."):
            found = getattr(found, part)
        put(stage, name, found)


def put(stage, name, value):
    """Register a value of a stage under a name such as layers.0.weight."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(stage, part):
            stage.add_module(part, nn.Module())
        stage = getattr(stage, part)
    if isinstance(value, nn.Module):
        stage.add_module(last, value)
    elif isinstance(value, nn.Parameter):
        stage.register_parameter(last, value)
    else:
        stage.register_buffer(last, value)


def returns_whole(*inputs):
    """Let gradients of inputs be contiguous, as torch wants what it sends."""
    for x in inputs:
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient.contiguous())


# TAKES and GIVES: shape and type of what passes between stages, and whether a gradient returns.


{stages}


def loss_of(outputs, target):
    """Loss of a microbatch.{loss_words}"""
{loss}


def microbatches(inputs):
    """Yield the tensors that the first stage takes. Yours: here those of the factory, again and
    again, unless it gives an iterator."""
    for one in inputs if isinstance(inputs, Iterator) else repeat(inputs):
        yield [x.to(DEVICE) for x in tree_leaves(one) if isinstance(x, torch.Tensor)]


def made_up():
    """Inputs of the shapes that the model was traced for."""
    for shape, dtype, _ in Stage0.TAKES:
        yield torch.randn(shape) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)


def tensors(passes):
    """Empty tensors that tell torch what passes between stages, and whether a gradient returns."""
    return tuple(
        torch.empty(shape, dtype=dtype, device="meta", requires_grad=gradient and TRAINING)
        for shape, dtype, gradient in passes
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    steps = parser.parse_args().steps
    if not hasattr(_PipelineScheduleRuntime, "_prepare_schedule_with_comms"):
        sys.exit(f"torch {{torch.__version__}} is too old; this was tested with 2.13 and 2.15")
    dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    if dist.get_world_size() != {ranks}:
        sys.exit(f"{{dist.get_world_size()}} processes; the plan is for {ranks}")
    torch.manual_seed(0)  # every rank makes the same model, and keeps its stages
    made = {call}
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    model.train(TRAINING)
    data = microbatches(tuple(made_up()) if inputs is None else inputs)

    order = {{
        rank: [_Action.from_str(cell) for cell in row.split(",") if cell]
        for rank, row in enumerate(SCHEDULE.splitlines())
    }}
    own = sorted({{action.stage_index for action in order[RANK]}})
    stages = []
    for s in own:
        stage = globals()[f"Stage{{s}}"](model).to(DEVICE)
        takes, gives = tensors(stage.TAKES), tensors(stage.GIVES)
        options = {{"input_args": takes, "output_args": gives}}
        stages.append(PipelineStage(stage, s, {count}, DEVICE, **options))
    loss_fn = loss_of if TRAINING else None
    schedule = _PipelineScheduleRuntime(stages, MICROBATCHES, loss_fn=loss_fn, scale_grads=False)
    schedule.pipeline_order = order
    schedule._prepare_schedule_with_comms(order)

    first, last = 0 in own, {final} in own
    parameters = {{id(p): p for s in stages for p in s.submod.parameters()}}.values()
    optimizer = torch.optim.SGD(parameters, lr=0.01) if TRAINING and parameters else None  # yours
    for step in range(steps):
        given = list(islice(data, MICROBATCHES)) if first else []
        batch = [torch.cat(parts) for parts in zip(*given, strict=True)]  # torch takes it apart
        if not TRAINING:
            with torch.no_grad():
                outputs = schedule.eval(*batch)
            if last:
                mean = (outputs[0] if isinstance(outputs, tuple) else outputs).float().mean()
                print(f"step {{step}}: mean of the first output {{mean:.8g}}", flush=True)
            continue
        losses = []
        nothing = torch.zeros(MICROBATCHES, device=DEVICE)  # yours: targets, if loss_of takes any
        schedule.step(*batch, target=nothing if last else None, losses=losses if last else None)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        if last:
            print(f"step {{step}}: loss {{torch.stack(losses).sum():.8g}}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''
