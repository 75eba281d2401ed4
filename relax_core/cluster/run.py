"""A run as the stages see it: its ledger, configuration, data and base model, opened once per process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from relax_core import paths
from relax_core.data.order import prompts_of_step
from relax_core.data.store import Dataset, Store
from relax_core.ledger import owner
from relax_core.ledger.ledger import Ledger
from relax_core.models import store as models
from relax_core.refs import PolicyRef, RunRef
from relax_core.rollout.types import Request, Sampling

if TYPE_CHECKING:
    from relax_core.algorithms.objective import Objective
    from relax_core.data.schema import Row
    from relax_core.training.types import TrainBatch, TrainerSpec


class Run:
    """Everything that is fixed about a run. The dataset and the base model are verified when they are opened."""

    def __init__(self, ref: RunRef) -> None:
        self.ref = ref
        self.ledger = Ledger(ref)
        self.config = self.ledger.config
        self.checkpoints = self.ledger.folder / "checkpoints"

    @cached_property
    def dataset(self) -> Dataset:
        return Store(paths.datasets()).open(self.ledger.dataset)

    @cached_property
    def base_folder(self) -> Path:
        return models.folder(self.ledger.base_model)

    @property
    def base_policy(self) -> PolicyRef:
        base = self.ledger.policy(0)
        assert base is not None
        return base

    @property
    def needs_reference(self) -> bool:
        """A reference policy is loaded when, and only when, a KL needs it."""
        return self.config.algorithm.use_kl_loss or self.config.algorithm.kl_coef != 0

    @cached_property
    def prompts(self) -> Prompts:
        return Prompts(self)

    # -- policies -----------------------------------------------------------------------------------------------------

    def newest_checkpoint(self, step: int) -> tuple[int, Path] | None:
        """The newest complete checkpoint at or before `step`."""
        from relax_core.training import checkpoint

        return checkpoint.newest_checkpoint(self.checkpoints, at_most=step)

    def policy_folder(self, policy: PolicyRef) -> Path | None:
        """A Hugging Face folder of exactly this policy, if one is stored."""
        if policy.step == 0:
            return self.base_folder
        saved = self.newest_checkpoint(policy.step)
        return saved[1] / "hf" if saved is not None and saved[0] == policy.step else None

    def give_up(self) -> None:
        """Let another process run it."""
        owner.release(self.ledger.folder)

    # -- training -----------------------------------------------------------------------------------------------------

    def trainer_spec(self) -> TrainerSpec:
        from relax_core.training.types import OptimizerSpec, TrainerSpec

        o, t = self.config.optimizer, self.config.training
        return TrainerSpec(
            optimizer=OptimizerSpec(
                lr=o.lr,
                min_lr=o.min_lr,
                lr_warmup_iters=o.lr_warmup_iters,
                lr_decay_style=o.lr_decay_style,
                total_steps=self.config.rollout.num_rollout,
                weight_decay=o.weight_decay,
                adam_beta1=o.adam_beta1,
                adam_beta2=o.adam_beta2,
                adam_eps=o.adam_eps,
                clip_grad=o.clip_grad,
            ),
            micro_batch_size=t.micro_batch_size,
            threads=self.config.resources.threads,
            seed=self.config.seed,
        )

    def objective(self) -> Objective:
        from relax_core.algorithms.objective import objective_of

        a = self.config.algorithm
        return objective_of(
            a.advantage_estimator, a.model_dump(), max_response_len=self.config.rollout.max_response_len
        )

    def training_input(self, step: int) -> tuple[TrainBatch, Objective, float]:
        """What the update of a step is made of, out of the ledger: the same for the first time and for a replay."""
        from relax_core.training.types import TrainBatch

        samples = self.ledger.samples(step)
        column = {name: samples.column(name).to_pylist() for name in samples.column_names}
        batch = TrainBatch(
            prompt_ids=column["prompt_ids"],
            response_ids=column["ids"],
            masks=column["mask"],
            advantages=column["advantages"],
            rollout_log_probs=column["log_probs"],
        )
        return batch, self.objective(), self.config.rollout.temperature


class Prompts:
    """The problems of a run as token ids."""

    def __init__(self, run: Run) -> None:
        from transformers import AutoTokenizer

        self._run = run
        self.tokenizer = AutoTokenizer.from_pretrained(run.base_folder)
        self.dataset = run.dataset

    def of_step(self, step: int) -> list[Row]:
        config = self._run.config
        chosen = prompts_of_step(self.dataset.train.num_rows, config.rollout.rollout_batch_size, step, config.seed)
        return self.dataset.train_rows(chosen)

    def ids(self, row: Row) -> tuple[int, ...]:
        from relax_core.rollout.prompts import render

        return tuple(render(self.tokenizer, row.prompt, self._run.config.rollout.chat_template))

    def text(self, ids: list[int] | tuple[int, ...]) -> str:
        from relax_core.rollout.prompts import decode

        return decode(self.tokenizer, ids)

    def requests(
        self, rows: Sequence[Row], step: int, purpose: str, samples: int, sampling: Sampling, attempt: int = 0
    ) -> list[Request]:
        """`samples` requests for each row, each with the seed of (run seed, step, row, index).

        `purpose` keeps the seeds of rollouts and of evaluations apart.
        """
        from relax_core.rollout.seeds import sample_seed

        return [
            Request(
                row=row.row_id,
                group=row.row_id,
                index=index,
                prompt_ids=ids,
                seed=sample_seed(self._run.config.seed, step, f"{purpose}:{row.row_id}", index, attempt),
                sampling=sampling,
            )
            for row in rows
            for ids in (self.ids(row),)
            for index in range(samples)
        ]


@lru_cache(maxsize=4)
def open_run(ref: RunRef) -> Run:
    """The run, opened once per process."""
    return Run(ref)
