"""From a loss per token to one number, with explicit denominators.

A micro-batch passes the number of responses and tokens of the *whole* optimizer step (all micro-batches, all ranks), so
that what it returns is its share: shares add up to the step's value, and so do their gradients.
"""

from __future__ import annotations

from torch import Tensor

from relax_core.algorithms.masking import masked_mean, masked_sum
from relax_core.algorithms.table import REDUCTIONS


def reduce(
    x_BT: Tensor,
    mask_BT: Tensor,
    *,
    reduction: str,
    responses: int,
    tokens: int,
    max_response_len: int | None = None,
) -> Tensor:
    """This batch's share of the reduced value: a float64 scalar.

    - response_mean: sum_i (sum_t x / max(1, L_i)) / responses. An empty response adds 0 and counts in `responses`.
    - token_mean: sum_i sum_t x / tokens.
    - constant: sum_i sum_t x / (responses * max_response_len), the divisor of Dr.GRPO (arXiv 2503.20783).

    responses, tokens: counts of the whole optimizer step, empty responses included; max_response_len: the configured
    limit of a reply in tokens. Where nothing is valid the value and its gradient are 0. ValueError: an unknown
    reduction, or constant without max_response_len.
    """
    if reduction == "response_mean":
        return masked_mean(x_BT, mask_BT, dim=1).sum() / max(1, responses)
    if reduction == "token_mean":
        return masked_sum(x_BT, mask_BT, dim=None) / max(1, tokens)
    if reduction != "constant":
        raise ValueError(f"reduction is {reduction!r}: it must be one of {', '.join(REDUCTIONS)}")
    if max_response_len is None or max_response_len < 1:
        raise ValueError(
            f"max_response_len is {max_response_len!r}: reduction constant divides by it; give the limit of a reply"
        )
    return masked_sum(x_BT, mask_BT, dim=None) / (max(1, responses) * max_response_len)
