"""Tensors that are spread over processes (DTensors of FSDP2): made whole, and cut up again."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate


def gathered(tensor: Tensor) -> Tensor:
    """The whole tensor, in every process; all processes must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """This process's share of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sharded_like(whole: Tensor, like: Tensor) -> Tensor:
    """The whole tensor spread as another one is; nothing is sent, since every process has it all."""
    if not isinstance(like, DTensor):
        return whole
    mesh = like.device_mesh
    spread = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return spread.redistribute(mesh, like.placements)


def copy_into(target: Tensor, whole: Tensor) -> None:
    """Overwrite a tensor, spread or not, by a whole one."""
    with torch.no_grad():
        local(target).copy_(local(sharded_like(whole.to(device=target.device), target)))
