"""The process of a trainer: threads, device, process group, random state. Called once, before Megatron is imported."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist

from relax_core.errors import RunError
from relax_core.training import cpu_shim


def start(*, threads: int, seed: int) -> None:
    """Make this process a world of one rank; a second call only checks that the threads are the same.

    With CUDA: NCCL on the current device. Without: gloo and the stand-ins of `cpu_shim`.
    """
    if dist.is_initialized():
        if torch.get_num_threads() != threads:
            raise RunError(
                f"threads is {threads}, but this process trains with {torch.get_num_threads()}: use one process per thread count"
            )
        return
    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore", message=".*Apex (is|are) not installed")
    if not torch.cuda.is_available():
        cpu_shim.install()
    _start_group()
    _start_megatron(seed)


def device() -> torch.device:
    """Where the tensors of this process live, after `start`."""
    return cpu_shim.CPU if cpu_shim.installed() else torch.device("cuda", torch.cuda.current_device())


def _start_group() -> None:
    """One rank needs no port and no file: its store lives in the process."""
    backend = "gloo" if cpu_shim.installed() else "nccl"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]


def _start_megatron(seed: int) -> None:
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=1, pipeline_model_parallel_size=1)
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)
