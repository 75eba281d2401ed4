"""The whole run as frozen models. Unknown keys are refused; every field says what it means, its range and what turns it off.

A key that is `None` takes its default when the recipe is resolved (relax_core/config/resolve.py); that default may depend on
the algorithm. What is set where is shown by `relax plan`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Block(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class AlgorithmConfig(Block):
    """What the policy is trained with: the block that makes one run the control arm of another."""

    advantage_estimator: str = Field("grpo", description="the algorithm's name")
    reduction: Literal["response_mean", "token_mean", "constant"] | None = Field(
        None, description="how per-token losses become one number; unset: the algorithm's own"
    )
    eps_clip: float = Field(0.2, description="lower bound of the ratio: 1 - eps_clip")
    eps_clip_high: float | None = Field(
        None, description="upper bound of the ratio: 1 + eps_clip_high; unset: eps_clip"
    )
    eps_clip_c: float | None = Field(
        None, description="dual clip: bound of the loss for negative advantages; unset: off"
    )
    kl_coef: float = Field(0.0, description="weight of the KL in the reward (k1 per token); 0: off")
    use_kl_loss: bool = Field(False, description="measure a KL to the reference policy, and train on it if weighted")
    kl_loss_coef: float = Field(0.0, description="weight of the KL loss; 0: it is only measured")
    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl"] = Field("k1", description="estimator of the KL loss")
    use_unbiased_kl: bool = Field(False, description="multiply the KL by the ratio, with its gradient")
    gamma: float = Field(1.0, description="discount per token")
    lambd: float = Field(1.0, description="lambda of GAE")
    value_clip: float = Field(0.2, description="clip of the value loss")
    num_critic_only_steps: int = Field(0, description="rollouts in which only the critic learns")
    critic_lr: float | None = Field(None, description="learning rate of the critic; unset: lr")
    critic_lr_warmup_iters: int = Field(0, description="warm-up of the critic's learning rate in updates")
    sapo_tau_pos: float = Field(1.0, description="temperature of SAPO's gate for positive advantages")
    sapo_tau_neg: float = Field(1.05, description="temperature of SAPO's gate for negative advantages")
    std_normalization: bool = Field(True, description="divide by the group's standard deviation; off: Dr.GRPO")
    normalize_advantages: bool | None = Field(None, description="whiten the advantages; unset: the algorithm's own")
    entropy_coef: float = Field(0.0, description="weight of the entropy bonus; 0: off")
    use_tis: bool = Field(False, description="truncated importance weights between trainer and engine")
    tis_clip_low: float = Field(0.0, description="lower bound of that weight")
    tis_clip_high: float = Field(2.0, description="upper bound of that weight")
    use_rollout_logprobs: bool = Field(False, description="old log-probs are the engine's, not the trainer's")


class ArithmeticConfig(Block):
    """The built-in seeded generator (data.source: arithmetic; relax_core/data/arithmetic.py)."""

    levels: list[Literal[1, 2, 3]] = Field(
        [2], description="1: one-step sums; 2: two digits or two steps; 3: three steps"
    )
    templates: list[str] = Field(
        default_factory=list, description="kinds of problems of these levels; empty: all of them"
    )
    count: int = Field(1000, ge=2, description="distinct problems to generate, train and evaluation side together")


class DataConfig(Block):
    source: str = Field(
        "arithmetic", description="`arithmetic`, or a Parquet, JSONL or CSV file of questions and answers"
    )
    prompt_template: str = Field(
        "{question}\nPut your final answer within \\boxed{}.", description="text of a prompt; {question} is replaced"
    )
    seed: int = Field(0, ge=0, description="of the generator and of the evaluation share; shared by all run seeds")
    arithmetic: ArithmeticConfig = ArithmeticConfig()


class WarmupConfig(Block):
    """Supervised warm-up of the built-in base model on worked solutions (relax_core/models/tiny.py)."""

    steps: int = Field(250, ge=1, description="optimizer steps")
    batch_size: int = Field(64, ge=1, description="problems per step")
    lr: float = Field(3e-3, gt=0, description="peak learning rate")
    lr_warmup_steps: int = Field(20, ge=0, description="steps of its linear rise; it falls linearly from there")
    clip_grad: float = Field(1.0, gt=0, description="largest norm of the gradient")
    slip_share: float = Field(
        0.65, ge=0, le=1, description="solutions written out with the typical slip, where there is one"
    )


class BaseConfig(Block):
    model: str = Field("tiny", description="`tiny`, or a Llama/Qwen3-style Hugging Face folder")
    seed: int = Field(0, ge=0, description="of the built-in base model; shared by all run seeds")
    warmup: WarmupConfig = WarmupConfig()


class RolloutConfig(Block):
    num_rollout: int = Field(60, ge=1, description="rollouts of the run; each is followed by its updates")
    rollout_batch_size: int = Field(16, ge=1, description="prompts per rollout")
    n_samples_per_prompt: int = Field(8, ge=1, description="responses per prompt (a group)")
    max_response_len: int = Field(512, ge=1, description="tokens of a response at most, end token included")
    temperature: float = Field(1.0, description="of the softmax, in rollout and training alike")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus; 1: off")
    top_k: int = Field(0, ge=0, description="draw among the k most likely tokens; 0: off")
    engine: Literal["transformers"] = Field("transformers", description="what generates")
    max_running: int = Field(1024, ge=1, description="sequences that the engine works on at once")
    chat_template: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="arguments of the tokenizer's chat template"
    )


class TrainingConfig(Block):
    global_batch_size: int = Field(128, ge=1, description="responses per optimizer step")
    num_steps_per_rollout: int | None = Field(
        None, ge=1, description="optimizer steps per rollout; unset: the quotient"
    )
    micro_batch_size: int = Field(128, ge=1, description="responses per forward and backward pass")


class OptimizerConfig(Block):
    lr: float = Field(1e-6, ge=0, description="peak learning rate")
    min_lr: float = Field(0.0, ge=0, description="where a decaying schedule ends")
    lr_decay_style: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="schedule after the warm-up"
    )
    lr_warmup_iters: int = Field(0, ge=0, description="updates of linear warm-up")
    weight_decay: float = Field(0.1, ge=0, description="of matrices; norms and biases never decay")
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.98, ge=0, lt=1)
    adam_eps: float = Field(1e-8, gt=0)
    clip_grad: float = Field(1.0, description="largest norm of the gradient; 0: no clipping")


class EvaluationConfig(Block):
    eval_data: str = Field("", description="a file of evaluation problems; empty: a seeded share of the data by digest")
    eval_share: float = Field(0.1, gt=0, lt=1, description="that share")
    eval_rows: int = Field(200, ge=1, description="evaluation problems at most")
    eval_interval: int = Field(
        20, ge=0, description="evaluate every so many updates, beside before and after; 0: only these"
    )
    n_samples_per_eval_prompt: int = Field(
        4, ge=0, description="sampled responses for avg@k and pass@k; 0: greedy only"
    )
    eval_temperature: float = Field(1.0, gt=0, description="of those samples")
    eval_top_p: float = Field(1.0, gt=0, le=1)
    eval_top_k: int = Field(0, ge=0)
    eval_max_response_len: int | None = Field(None, ge=1, description="unset: rollout.max_response_len")


class ResourcesConfig(Block):
    threads: int = Field(2, ge=1, description="CPU threads of the trainer and of the engine, which take turns")


class CheckpointConfig(Block):
    save_interval: int = Field(20, ge=1, description="updates between checkpoints; evaluated steps get one too")


class TrackingConfig(Block):
    uri: str = Field("", description="MLflow tracking URI; empty: sqlite below the artifacts; none: no tracking")
    experiment: str = Field("relax", description="MLflow experiment")


class RunConfig(Block):
    """A whole run: the resolved recipe."""

    description: str = Field("", description="one line for people")
    seed: int = Field(0, ge=0, description="run seed: prompt order and sampling")
    steps_per_node: int = Field(
        1, ge=1, description="1: every stage of every step is a Flyte node; K: K steps in one node"
    )
    algorithm: AlgorithmConfig = AlgorithmConfig()
    data: DataConfig = DataConfig()
    base: BaseConfig = BaseConfig()
    rollout: RolloutConfig = RolloutConfig()
    training: TrainingConfig = TrainingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    resources: ResourcesConfig = ResourcesConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()


# Keys that say where or how and not what, or whose effect the digests of the dataset and the base model hold already:
# they stay out of a run's identity.
NOT_IDENTITY = (
    "description",
    "steps_per_node",
    "data",
    "base",
    "evaluation.eval_data",
    "evaluation.eval_share",
    "evaluation.eval_rows",
    "rollout.max_running",
    "checkpoint",
    "tracking",
)
