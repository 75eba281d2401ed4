"""A configuration per rule, with the message that it must get; and that the shipped one gets none."""

from __future__ import annotations

import json

import pytest

from relax_core.config.resolve import resolve
from relax_core.config.rules import nodes
from relax_core.config.schedule import evaluated_steps, is_checkpoint_step, node_ends

BROKEN = [
    # keys that rloo does not read
    ({"algorithm.eps_clip": 0.3}, ["algorithm.eps_clip=0.3", "rloo does not read it", "ppo, grpo", "leave it at 0.2"]),
    ({"algorithm.eps_clip_high": 0.5}, ["algorithm.eps_clip_high=0.5", "does not read it"]),
    ({"algorithm.eps_clip_c": 3.0}, ["algorithm.eps_clip_c=3.0", "leave it at unset"]),
    ({"algorithm.kl_coef": 0.1}, ["algorithm.kl_coef=0.1", "read by ppo, reinforce_plus_plus"]),
    ({"algorithm.gamma": 0.9}, ["algorithm.gamma=0.9"]),
    ({"algorithm.lambd": 0.9}, ["algorithm.lambd=0.9", "read by ppo"]),
    ({"algorithm.value_clip": 0.5}, ["algorithm.value_clip=0.5"]),
    ({"algorithm.critic_lr": 0.1}, ["algorithm.critic_lr=0.1"]),
    ({"algorithm.num_critic_only_steps": 1}, ["algorithm.num_critic_only_steps=1"]),
    ({"algorithm.sapo_tau_pos": 2.0}, ["algorithm.sapo_tau_pos=2.0", "read by sapo"]),
    ({"algorithm.std_normalization": False}, ["algorithm.std_normalization=False"]),
    ({"algorithm.normalize_advantages": True}, ["algorithm.normalize_advantages=True", "rloo does not read it"]),
    ({"algorithm.tis_clip_high": 3.0}, ["algorithm.tis_clip_high=3.0", "only with use_tis"]),
    # rloo's own
    ({"rollout.n_samples_per_prompt": 1, "training.global_batch_size": 16}, ["n_samples_per_prompt=1", "at least 2"]),
    ({"algorithm.reduction": "response_mean"}, ["algorithm.reduction=response_mean", "token_mean"]),
    (
        {"training.global_batch_size": 64},
        ["training.global_batch_size=64", "exactly one update", "set global_batch_size to 128"],
    ),
    # sizes
    (
        {"training.global_batch_size": 100},
        ["training.global_batch_size=100", "no multiple", "set global_batch_size to 128"],
    ),
    ({"training.num_steps_per_rollout": 2}, ["num_steps_per_rollout=2", "must equal", "set global_batch_size to 64"]),
    # ranges
    ({"rollout.temperature": 0.0}, ["rollout.temperature=0.0", "above 0"]),
    ({"optimizer.clip_grad": -1.0}, ["optimizer.clip_grad=-1.0", "0 switches clipping off"]),
    ({"algorithm.entropy_coef": -0.1}, ["algorithm.entropy_coef=-0.1", "at least 0"]),
    ({"algorithm.use_tis": True, "algorithm.tis_clip_low": 3.0}, ["tis_clip_low=3.0", "0 <= low < high"]),
    (
        {"optimizer.lr": 0.1, "optimizer.min_lr": 0.2, "optimizer.lr_decay_style": "linear"},
        ["optimizer.min_lr=0.2", "above lr"],
    ),
    (
        {"optimizer.lr": 0.1, "optimizer.min_lr": 0.05, "optimizer.lr_decay_style": "constant"},
        ["min_lr=0.05", "never reaches it"],
    ),
    # KL and TIS
    ({"algorithm.kl_loss_coef": 0.1}, ["algorithm.kl_loss_coef=0.1", "only with use_kl_loss"]),
    ({"algorithm.kl_loss_type": "k3"}, ["algorithm.kl_loss_type=k3", "only with use_kl_loss"]),
    ({"algorithm.use_unbiased_kl": True}, ["algorithm.use_unbiased_kl=True", "only with use_kl_loss"]),
    ({"algorithm.use_tis": True, "algorithm.use_rollout_logprobs": True}, ["use_tis=True", "switch one of them off"]),
    # data and size of the workflow
    ({"data.prompt_template": "{question}"}, ["data.prompt_template='{question}'", "\\boxed{}"]),
    (
        {"rollout.num_rollout": 700, "evaluation.eval_interval": 0},
        ["rollout.num_rollout=700", "2100 nodes", "raise steps_per_node"],
    ),
]


@pytest.mark.parametrize(("settings", "parts"), BROKEN, ids=[next(iter(s)) for s, _ in BROKEN])
def test_a_broken_rule_is_named_with_value_rule_and_remedy(settings: dict, parts: list[str]) -> None:
    found = resolve("rloo", "tiny", json.dumps(settings), environ={}).violations
    assert any(all(part in violation for part in parts) for violation in found), found
    assert all("--set" in v for v in found), "a violation says where its values came from"


def test_kl_in_reward_and_in_loss_at_once() -> None:
    settings = {
        "algorithm.kl_coef": 0.1,
        "algorithm.use_kl_loss": True,
        "algorithm.kl_loss_coef": 0.1,
        "algorithm.kl_loss_type": "k2",
    }
    found = resolve("rloo", "tiny", json.dumps(settings), environ={}).violations
    assert any("in the reward or in the loss, not in both" in v for v in found)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"rollout.top_p": 0.9}, "biased"),
        ({"algorithm.use_kl_loss": True}, "only measured"),
        ({"algorithm.use_kl_loss": True, "algorithm.kl_loss_coef": 0.1}, "expected gradient of a k1 loss is zero"),
    ],
)
def test_what_is_allowed_but_surprising_gets_a_note(settings: dict, part: str) -> None:
    found = resolve("rloo", "tiny", json.dumps(settings), environ={})
    assert found.violations == ()
    assert any(part in note for note in found.notes)


def test_options_that_rloo_reads_are_allowed() -> None:
    settings = {"algorithm.use_kl_loss": True, "algorithm.kl_loss_coef": 0.01, "algorithm.kl_loss_type": "k3", "algorithm.use_tis": True,
                "algorithm.tis_clip_high": 4.0, "algorithm.entropy_coef": 0.01, "algorithm.use_unbiased_kl": True}  # fmt: skip
    assert resolve("rloo", "tiny", json.dumps(settings), environ={}).violations == ()


def schedule(**settings: int) -> tuple[list[int], list[int], int]:
    keys = {"steps": "rollout.num_rollout", "per_node": "steps_per_node", "interval": "evaluation.eval_interval"}
    config = resolve("rloo", "tiny", {keys[k]: v for k, v in settings.items()}, environ={}).config
    return evaluated_steps(config), node_ends(config), nodes(config)


def test_a_node_of_several_steps_ends_where_an_evaluation_is_due() -> None:
    assert schedule(steps=10, per_node=4, interval=5) == ([0, 5, 10], [4, 5, 8, 10], 5)
    assert schedule(steps=10, per_node=20, interval=0) == ([0, 10], [10], 1)
    assert schedule(steps=6, per_node=1, interval=3) == ([0, 3, 6], [1, 2, 3, 4, 5, 6], 19)
    assert schedule(steps=1, per_node=1, interval=1) == ([0, 1], [1], 3)


def test_a_policy_is_saved_at_its_interval_and_wherever_it_is_evaluated() -> None:
    config = resolve(
        "rloo",
        "tiny",
        {"rollout.num_rollout": 9, "evaluation.eval_interval": 4, "checkpoint.save_interval": 3},
        environ={},
    ).config
    assert [step for step in range(1, 10) if is_checkpoint_step(config, step)] == [3, 4, 6, 8, 9]
