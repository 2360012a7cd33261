"""Expert parallelism: each rank has some of a layer's experts, and tokens are sent there and back.

Every token reaches all of its experts (dropless). The model's own module of experts is called with
the tokens that arrive.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from ....instances import InputError
from ....instances.pytorch.tracing.traced import swapped_tensors

_Experts = Callable[[Tensor, Tensor], Tensor]


def local_part(x: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, or a tensor itself."""
    return x.to_local() if isinstance(x, DTensor) else x


def divide_experts(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    """Give each rank of `mesh` its part of a module's experts.

    ``forward(tokens, counts)`` takes tokens in the order of their experts and the number of tokens
    of each expert, and returns a row for each token; parameters have the experts as first
    dimension. Raises InputError, with the module's `name`, if experts do not divide.
    """
    for key, parameter in list(module.named_parameters()):
        if len(parameter) % mesh.size():
            raise InputError(f"expert: {mesh.size()} does not divide {name}'s {len(parameter)}")
        owner, _, leaf = key.rpartition(".")
        parted = distribute_tensor(parameter.detach(), mesh, [Shard(0)], src_data_rank=None)
        made = nn.Parameter(parted, requires_grad=parameter.requires_grad)
        module.get_submodule(owner).register_parameter(leaf, made)
    module.forward = _exchanged(module, module.forward, mesh)


def _exchanged(module: nn.Module, experts: _Experts, mesh: DeviceMesh) -> _Experts:
    """Return a forward pass that sends tokens to the ranks of their experts and back."""
    group, size = mesh.get_group(), mesh.size()

    def forward(tokens: Tensor, counts: Tensor) -> Tensor:
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=group)
        leave = counts.view(size, -1).sum(1).tolist()
        arrive = arriving.view(size, -1).sum(1).tolist()
        here = all_to_all_single_autograd(tokens.contiguous(), arrive, leave, group)
        # they come by rank and then by expert
        own = torch.arange(len(counts) // size, device=counts.device)
        order = own.repeat(size).repeat_interleave(arriving).argsort(stable=True)
        with swapped_tensors(module, local_part):
            made = experts(here[order], arriving.view(size, -1).sum(0))
        back: Tensor = all_to_all_single_autograd(
            made[order.argsort()].contiguous(), leave, arrive, group
        )
        return back

    return forward
