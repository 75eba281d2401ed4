"""AdamW through Megatron's optimizer, and the learning rate of each update."""

from __future__ import annotations

import math
from typing import Any

import torch
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from relax_core.training.types import OptimizerSpec


class Optimizer:
    """Megatron's optimizer of a wrapped model with its schedule: one `step` per update."""

    def __init__(self, spec: OptimizerSpec, model: Any, dtype: torch.dtype) -> None:
        self.spec = spec
        self.megatron = get_megatron_optimizer(_config(spec, dtype), [model])
        if next(model.parameters()).device.type == "cpu":
            _use_fused_kernel(self.megatron)
        self.schedule = _schedule(spec, self.megatron)

    def step(self) -> tuple[float, bool]:
        """Take the gradients of the model: (their norm before clipping, whether the weights were updated).

        A norm that is not finite updates nothing, the schedule included.
        """
        bad_scale = self.megatron.prepare_grads()
        norm = float(self.megatron.get_grad_norm())
        if bad_scale or not math.isfinite(norm):
            return norm, False
        self.schedule.step(1)
        if self.spec.clip_grad > 0:
            for part in self.megatron.chained_optimizers:
                clip_grad_by_total_norm_fp32(part.get_parameters(), self.spec.clip_grad, norm)
        self.megatron.step_with_ready_grads()
        return norm, True

    @property
    def lr(self) -> float:
        """The rate of the last update (before the first: of update 0)."""
        return float(self.megatron.param_groups[0]["lr"])


def _config(spec: OptimizerSpec, dtype: torch.dtype) -> OptimizerConfig:
    return OptimizerConfig(
        optimizer="adam",
        lr=spec.lr,
        min_lr=spec.min_lr,
        weight_decay=spec.weight_decay,
        adam_beta1=spec.adam_beta1,
        adam_beta2=spec.adam_beta2,
        adam_eps=spec.adam_eps,
        clip_grad=spec.clip_grad,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=False,
    )


def _use_fused_kernel(optimizer: Any) -> None:
    """torch's AdamW in one pass over memory; without Transformer Engine and apex Megatron takes the slow default."""
    for part in optimizer.chained_optimizers:
        for group in part.optimizer.param_groups:
            group["fused"], group["foreach"] = True, False


def _schedule(spec: OptimizerSpec, optimizer: Any) -> OptimizerParamScheduler:
    """Megatron's schedule; it also sets each group's weight decay to weight_decay * wd_mult (0 for norms and biases)."""
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=spec.lr,
        min_lr=spec.min_lr,
        lr_warmup_steps=spec.lr_warmup_iters,
        lr_decay_steps=max(spec.total_steps, spec.lr_warmup_iters + 1),
        lr_decay_style=spec.lr_decay_style,
        start_wd=spec.weight_decay,
        end_wd=spec.weight_decay,
        wd_incr_steps=max(spec.total_steps, 1),
        wd_incr_style="constant",
    )
