"""Two real data-parallel processes, one of them without a valid token, against the same batch in one piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from relax_core.algorithms.advantages import compute_advantages
from relax_core.algorithms.objective import Totals, loss_and_metrics, objective_of
from relax_core.algorithms.table import ALGORITHMS, REDUCTIONS

ROWS, T = 4, 5


def rollout(rank: int) -> dict[str, torch.Tensor]:
    """The responses of a rank: whole groups, float32. Rank 1 has rewards, but no valid token."""
    gen = torch.Generator().manual_seed(rank)
    mask = torch.rand(ROWS, T, generator=gen) > 0.3
    if rank == 1:
        mask[:] = False
    out = {name: -torch.rand(ROWS, T, generator=gen) for name in ("logprobs", "old_logprobs", "ref_logprobs", "values")}
    return {**out, "mask": mask, "rewards": torch.rand(ROWS, generator=gen), "groups": torch.tensor([0, 0, 1, 1])}


def one_piece() -> dict[str, torch.Tensor]:
    parts = [rollout(0), rollout(1)]
    parts[1]["groups"] = parts[1]["groups"] + 2
    return {name: torch.cat([p[name] for p in parts]) for name in parts[0]}


def across(x: torch.Tensor, op: Literal["sum", "max"]) -> torch.Tensor:
    x = x.clone()
    dist.all_reduce(x, {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[op])
    return x


def step(x: dict[str, torch.Tensor], totals: Totals, **stage: Any) -> dict[str, list[dict[str, torch.Tensor]]]:
    """Advantages, loss, metrics and gradient of every estimator that normalises, for every reduction."""
    out: dict[str, Any] = {}
    for estimator, entry in ALGORITHMS.items():
        normalised = compute_advantages(
            estimator,
            rewards=x["rewards"],
            groups=x["groups"],
            mask=x["mask"],
            normalize_advantages=entry.normalisation is not None,
            kl_coef=0.1 if "kl_coef" in entry.reads else 0.0,
            old_logprobs=x["old_logprobs"],
            ref_logprobs=x["ref_logprobs"],
            values=x["values"],
            **stage,
        ).advantages
        for reduction in REDUCTIONS:
            objective = objective_of(
                estimator, {"reduction": reduction, "use_kl_loss": True, "kl_loss_coef": 0.1}, max_response_len=8
            )
            lp = x["logprobs"].clone().requires_grad_()
            loss, metrics = loss_and_metrics(
                objective, totals, logprobs=lp, old_logprobs=x["old_logprobs"], ref_logprobs=x["ref_logprobs"],
                advantages=normalised, mask=x["mask"],
            )  # fmt: skip
            loss.backward()
            out[f"{estimator} {reduction}"] = {"advantages": normalised, "grad": lp.grad, **metrics}
    return out


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    x = rollout(rank)
    tokens = across(x["mask"].sum(), "sum")
    torch.save(step(x, Totals(responses=2 * ROWS, tokens=int(tokens)), across=across), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_equal_one_piece(tmp_path: Path) -> None:
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    whole = one_piece()
    want = step(whole, Totals(responses=2 * ROWS, tokens=int(whole["mask"].sum())))
    for case, values in want.items():
        for name, value in values.items():
            parts = [rank[case][name] for rank in ranks]
            got = torch.cat(parts) if value.dim() else sum(parts)
            assert (got - value).abs().max() <= 1e-6 * value.abs().max(), (case, name)
            assert value.any() or name == "pg_clipfrac", (case, name)
