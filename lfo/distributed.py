"""Several processes that act as one: who they are, what they tell each other, how they share a model.

A launcher (`accelerate launch`, `torchrun`) starts the processes; FSDP2 keeps a share of every weight
in each (fully sharded data parallelism, Zhao et al. 2023, arXiv 2304.11277). Whatever is decided from
gathered data is decided alike everywhere, so all processes meet in the same collectives in the same
order; what a second thread of each process gathers goes over a channel of its own. Alone, which is the
usual case, nothing here changes what it is given.
"""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Sequence

import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, recursively_apply
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import get_total_norm

PATIENCE = datetime.timedelta(hours=2)  # for the slowest process: rollouts of a step take unequal times
_beside: dist.ProcessGroup | None = None  # over which threads other than the main one gather


def start(device: str = "cpu") -> None:
    """Meet the other processes that a launcher started with this one, over gloo on CPU and NCCL on GPUs."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and not dist.is_initialized():
        # `accelerate launch` may switch this on; every process loads the base itself, whatever the launcher says
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
        PartialState(cpu=torch.device(device).type == "cpu", timeout=PATIENCE)
        global _beside
        _beside = dist.new_group(backend="gloo", timeout=PATIENCE)


def size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def first() -> bool:
    """Whether this is the process that writes files and talks."""
    return rank() == 0


def barrier() -> None:
    if size() > 1:
        dist.barrier()


def totals(*numbers: float) -> list[float]:
    """The sum of each number over the processes."""
    if size() == 1:
        return list(numbers)
    sums = torch.tensor([float(n) for n in numbers], dtype=torch.float64, device=PartialState().device)
    dist.all_reduce(sums)
    return sums.tolist()


def gather(value) -> list:
    """What every process has, in the order of their ranks."""
    if size() == 1:
        return [value]
    values: list = [None] * size()
    group = None if threading.current_thread() is threading.main_thread() else _beside
    dist.all_gather_object(values, value, group)
    return values


def share(count: int) -> list[int]:
    """This process's part of ``range(count)``."""
    return list(range(rank(), count, size()))


def join(mine: Sequence[int], results: Sequence) -> list:
    """All results in order, from the indices that each process `share`d out to itself and its results for them."""
    found = {i: r for part in gather(dict(zip(mine, results, strict=True))) for i, r in part.items()}
    return [found[i] for i in sorted(found)]


# --- sharded weights -------------------------------------------------------------------------


def shard(model: torch.nn.Module, optimizer: torch.optim.Optimizer, layers: Sequence[str]):
    """Model and optimizer under FSDP2; `layers` names the classes that are gathered and freed one by one.

    What lies outside of them (embedding, last norm, head) stays gathered from the forward to the end of
    the backward pass. A gradient is the *mean* over the processes.
    """
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=list(layers),
        reshard_after_forward=True,
        cpu_ram_efficient_loading=False,
    )
    accelerator = Accelerator(mixed_precision="no", fsdp_plugin=plugin)
    if accelerator.device.type == "cpu":  # accelerate 1.15 offers FSDP2 on GPUs only; torch shards over gloo, too
        accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
    model, prepared = accelerator.prepare(model, optimizer)
    return model, prepared.optimizer


def whole(value):
    """Sharded tensors, alone or anywhere in dicts and lists, as plain ones; every process has to ask."""
    return recursively_apply(lambda t: t.full_tensor(), value, test_type=lambda t: isinstance(t, DTensor))


def norm(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The L2 norm of all tensors together, sharded or not: a scalar, the same in every process."""
    mine = get_total_norm([t.to_local() if isinstance(t, DTensor) else t for t in tensors])
    if size() == 1:
        return mine
    (square,) = totals(mine.item() ** 2)
    return mine.new_tensor(square**0.5)


def like(value: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """A plain tensor that every process holds, on the device of `pattern` and sharded as that is."""
    value = value.to(pattern.device)
    if not isinstance(pattern, DTensor):
        return value
    return distribute_tensor(value, pattern.device_mesh, pattern.placements, src_data_rank=None)
