"""What Megatron-Core 0.16 needs to run where no CUDA is: stand-ins for the CUDA calls that it makes without asking.

Megatron's own model, data-parallel wrapper, optimizer, schedules and checkpoints then run unmodified on CPU tensors. The
stand-ins change torch for the whole process, so only the worker process of a trainer calls `install`, and never where CUDA
exists.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from relax_core.errors import RunError

CPU = torch.device("cpu")

# Megatron creates small tensors (overflow flags, token counts, loss scales) with device="cuda".
FACTORIES = (
    "zeros",
    "ones",
    "empty",
    "tensor",
    "full",
    "arange",
    "rand",
    "randn",
    "empty_like",
    "zeros_like",
    "ones_like",
)
_MARK = "_relax_cpu_shim"


def installed() -> bool:
    """Whether this process runs with the stand-ins."""
    return hasattr(torch.cuda, _MARK)


def install() -> None:
    """Put the stand-ins in place, once; RunError on a machine with CUDA."""
    if installed():
        return
    if torch.cuda.is_available():
        raise RunError("the CPU stand-ins were asked for where CUDA is available: train on the device instead")
    if "megatron.core" not in sys.modules:
        with _nothing_compiled():
            import megatron.core
            import megatron.core.models.gpt  # noqa: F401
    setattr(torch.cuda, _MARK, True)
    _set(torch.cuda, "current_device", lambda: CPU)
    _set(torch.cuda, "synchronize", lambda *args, **kwargs: None)
    _set(torch.Tensor, "cuda", lambda self, *args, **kwargs: self)
    for name in FACTORIES:
        _set(torch, name, _on_cpu(getattr(torch, name)))
    _set(torch.Tensor, "type", _type_as_on_cuda(torch.Tensor.type))
    _use_cpu_generator()


def _set(owner: Any, name: str, value: Any) -> None:
    """setattr, but an unknown name is an error: a new version of torch or Megatron must not silently escape the shim."""
    if not hasattr(owner, name):
        raise RunError(
            f"{owner!r} has no {name}: the CPU stand-ins do not fit this version; use the versions of constraints.txt"
        )
    setattr(owner, name, value)


@contextlib.contextmanager
def _nothing_compiled() -> Iterator[None]:
    """Megatron decorates its fused kernels with torch.compile while it is imported; they are off here (see `model`).

    Leaving them plain saves a second of start-up and the memory of the compiler.
    """

    def plain(function: Callable[..., Any] | None = None, **_: Any) -> Callable[..., Any]:
        return function if function is not None else lambda f: f

    compiler = torch.compile
    torch.compile = plain  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = compiler


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and (isinstance(device, int) or str(device).startswith("cuda")):
            kwargs["device"] = CPU
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return on_cpu


def _type_as_on_cuda(original: Callable[..., Any]) -> Callable[..., Any]:
    """Gradient clipping and the mixed-precision optimizers compare `tensor.type()` with names like torch.cuda.FloatTensor."""

    @functools.wraps(original)
    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        asked_for_name = not args and not kwargs and isinstance(answer, str)
        return answer.replace("torch.", "torch.cuda.", 1) if asked_for_name and "cuda" not in answer else answer

    return type_


def _use_cpu_generator() -> None:
    """Megatron keeps random states of the CUDA generator; here the CPU generator takes its place."""
    import megatron.core.tensor_parallel.random as megatron_random

    def get_state(*args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_state(state: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        torch.set_rng_state(state)

    _set(torch.cuda, "get_rng_state", get_state)
    _set(torch.cuda, "set_rng_state", set_state)
    _set(torch.cuda, "manual_seed", torch.manual_seed)
    _set(megatron_random, "_get_cuda_rng_state", get_state)
    _set(megatron_random, "_set_cuda_rng_state", set_state)
