from __future__ import annotations

import subprocess
import sys

import pytest

from relax_core.algorithms.advantages import ADVANTAGES
from relax_core.algorithms.kl import kl_estimate
from relax_core.algorithms.normalisation import NORMALISATIONS
from relax_core.algorithms.objective import POLICY_LOSSES
from relax_core.algorithms.table import ALGORITHMS, DEFAULTS, KL_TYPES, default, lookup, readers

ALL = set(ALGORITHMS)


def test_the_eight() -> None:
    assert {
        "ppo", "grpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "rloo", "gspo", "cispo", "sapo",
    } == ALL  # fmt: skip
    assert all(name == entry.name for name, entry in ALGORITHMS.items())


@pytest.mark.parametrize("estimator", ALGORITHMS)
def test_every_part_exists(estimator: str) -> None:
    entry = lookup(estimator)
    assert entry.advantage in ADVANTAGES
    assert entry.policy_loss in POLICY_LOSSES
    assert entry.normalisation is None or entry.normalisation in NORMALISATIONS
    assert entry.reads <= DEFAULTS.keys()
    assert entry.defaults.keys() <= entry.reads
    assert ("normalize_advantages" in entry.reads) == (entry.normalisation is not None)


def test_every_part_is_used() -> None:
    assert {e.advantage for e in ALGORITHMS.values()} == set(ADVANTAGES)
    assert {e.policy_loss for e in ALGORITHMS.values()} == set(POLICY_LOSSES)
    assert {key for e in ALGORITHMS.values() for key in e.reads} == DEFAULTS.keys()


@pytest.mark.parametrize(
    ("keys", "who"),
    [
        ("eps_clip eps_clip_high", ALL - {"rloo", "sapo"}),
        ("eps_clip_c", {"ppo", "grpo", "gspo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"}),
        ("sapo_tau_pos sapo_tau_neg", {"sapo"}),
        ("gamma", {"ppo", "reinforce_plus_plus"}),
        ("lambd value_clip num_critic_only_steps critic_lr critic_lr_warmup_iters", {"ppo"}),
        ("std_normalization", {"grpo", "gspo", "sapo", "cispo"}),
        ("kl_coef", {"ppo", "reinforce_plus_plus"}),
        ("use_kl_loss kl_loss_coef kl_loss_type", ALL - {"reinforce_plus_plus"}),
        ("use_unbiased_kl", ALL - {"reinforce_plus_plus", "reinforce_plus_plus_baseline"}),
        ("normalize_advantages", ALL - {"rloo"}),
        ("entropy_coef reduction use_tis tis_clip_low tis_clip_high use_rollout_logprobs", ALL),
    ],
)
def test_who_reads_what(keys: str, who: set[str]) -> None:
    for key in keys.split():
        assert set(readers(key)) == who


def test_defaults_that_depend_on_the_estimator() -> None:
    assert {name: default(name, "reduction") for name in ALGORITHMS} == {
        name: "token_mean" if name == "rloo" else "response_mean" for name in ALGORITHMS
    }
    on = {name for name in ALGORITHMS if default(name, "normalize_advantages")}
    assert on == {"reinforce_plus_plus", "reinforce_plus_plus_baseline"}


def test_groups_critic_and_staleness() -> None:
    assert {n for n, e in ALGORITHMS.items() if e.min_samples == 1} == {"ppo", "reinforce_plus_plus"}
    assert {n for n, e in ALGORITHMS.items() if e.needs_critic} == {"ppo"}
    assert {n for n, e in ALGORITHMS.items() if not e.sync_only} == {"grpo", "gspo", "cispo", "sapo"}


@pytest.mark.parametrize("kl_type", KL_TYPES)
def test_every_kl_type_exists(kl_type: str) -> None:
    import torch

    assert kl_estimate(kl_type, torch.zeros(1), torch.zeros(1)).item() == 0


def test_the_table_is_frozen_and_unknown_names_are_errors() -> None:
    with pytest.raises(TypeError):
        ALGORITHMS["x"] = ALGORITHMS["rloo"]  # type: ignore[index]
    with pytest.raises(TypeError):
        DEFAULTS["gamma"] = 2  # type: ignore[index]
    with pytest.raises(ValueError, match="advantage_estimator is 'RLOO': it must be one of ppo, grpo"):
        lookup("RLOO")


def test_importing_the_table_imports_no_torch() -> None:
    code = "import sys, relax_core.algorithms.table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
