"""The Megatron side of a trainer: model, data-parallel wrapper, optimizer, schedule. Import it after `runtime.start`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from torch import Tensor

from relax_core.training import hf_weights, model, runtime
from relax_core.training.architecture import Architecture
from relax_core.training.optimizer import Optimizer
from relax_core.training.packing import Packing
from relax_core.training.types import OptimizerSpec

Shares = tuple[Tensor, dict[str, Tensor]]
LossFunction = Callable[[Tensor], Shares]


class Policy:
    """A GPTModel with Hugging Face weights. With an optimizer it can learn; without, it is frozen."""

    def __init__(
        self,
        architecture: Architecture,
        weights: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
        optimizer: OptimizerSpec | None,
    ) -> None:
        self.architecture = architecture
        self.device = runtime.device()
        self.bare = model.build(architecture, dtype, self.device)
        self._load(weights)
        self.model: Any = Float16Module(self.bare.config, self.bare) if dtype == torch.bfloat16 else self.bare
        self.optimizer: Optimizer | None = None
        if optimizer is None:
            self.bare.requires_grad_(False)
            return
        self.model = DistributedDataParallel(
            self.bare.config,
            DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=False),
            self.model,
        )
        self.bare.config.no_sync_func = self.model.no_sync
        self.bare.config.finalize_model_grads_func = _finalize
        self.optimizer = Optimizer(optimizer, self.model, dtype)

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        state = hf_weights.to_megatron(weights, self.architecture)
        with torch.no_grad():
            for name, parameter in self.bare.named_parameters():
                parameter.copy_(state.pop(name))
        assert not state, f"weights without a parameter: {sorted(state)}"

    def weights(self) -> dict[str, Tensor]:
        """The weights under their Hugging Face names, on the CPU, as tensors of their own."""
        state = {name: p.detach().cpu() for name, p in self.bare.named_parameters()}
        return hf_weights.to_hf(state, self.architecture)

    @torch.no_grad()
    def logits(self, packing: Packing) -> Tensor:
        """[M, V] logits of the wanted predictions, without a graph."""
        logits: Tensor = self.model(packing)
        return logits

    def backward(self, micro_batches: Sequence[tuple[Packing, LossFunction]]) -> list[dict[str, Tensor]]:
        """Forward and backward through Megatron's schedule; the gradients are those of the sum of all losses.

        A loss function takes the logits [M, V] and returns (its share of the loss, its shares of the metrics).
        """
        assert self.optimizer is not None
        self.model.zero_grad_buffer()
        self.optimizer.megatron.zero_grad()  # a gradient left over from the last step would be added once more
        shares: list[dict[str, Tensor]] = get_forward_backward_func()(
            forward_step_func=_forward_step,
            data_iterator=iter(micro_batches),
            model=[self.model],
            num_microbatches=len(micro_batches),
            seq_length=max(packing.length for packing, _ in micro_batches),
            micro_batch_size=max(packing.sequences for packing, _ in micro_batches),
        )
        return shares

    def bad_gradients(self) -> list[str]:
        """Megatron's names of the parameters with a gradient that is not finite."""
        return [name for name, p in self.bare.named_parameters() if not torch.isfinite(p.main_grad).all()]


def _forward_step(
    micro_batches: Iterator[tuple[Packing, LossFunction]], model: Any
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, dict[str, Tensor]]]]:
    packing, loss_function = next(micro_batches)

    def loss(logits: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        share, metrics = loss_function(logits)
        # The form with a token count is the one that Megatron neither averages over micro-batches nor scales.
        return share, torch.tensor(len(packing.targets), dtype=torch.int), metrics

    return model(packing), loss


def _finalize(model: list[Any], num_tokens: Tensor | None, **kwargs: Any) -> None:
    """Sum gradients over ranks. They are not divided by the token count: the shares are already."""
    finalize_model_grads(model, None, **kwargs)
