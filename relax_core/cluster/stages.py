"""The stages of a step. Both granularities of a workflow call these, and nothing else writes a step of the ledger.

    rollout = generate + score     the policy draws a group of responses per prompt, and each gets its reward
    advantages                     rewards become advantages, once per rollout
    update                         one optimizer step; at its interval the new policy is saved as a checkpoint
    evaluate                       greedy and sampled responses to the evaluation side

A stage whose record is complete returns it, without an actor and without Ray.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from relax_core import cleanup
from relax_core.cluster import roles
from relax_core.cluster.run import Run, open_run
from relax_core.config.schedule import is_checkpoint_step
from relax_core.errors import RunError
from relax_core.evaluation import statistics
from relax_core.refs import BatchRef, PolicyRef, RunRef
from relax_core.rewards.grading import Grade, GradeStatus
from relax_core.rewards.pool import Grader
from relax_core.rollout.metrics import rollout_metrics
from relax_core.rollout.types import Request, Sample, Sampling, Status
from relax_core.training import checkpoint

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from relax_core.data.schema import Row

DRAWS_AGAIN = 2
"""How often a withheld group is drawn again."""


@dataclass(frozen=True, slots=True)
class Generated:
    """The groups of a rollout that are whole, in the order of their prompts; what was withheld; seconds by name."""

    rows: list[Row]
    requests: list[Request]
    samples: list[Sample]
    attempts: list[int]
    seen: int
    withheld: int
    seconds: dict[str, float]


# -- rollout ----------------------------------------------------------------------------------------------------------


def rollout(policy: PolicyRef) -> BatchRef:
    """Generate the responses of step `policy.step + 1` and score them."""
    run = open_run(RunRef(id=policy.run))
    step = policy.step + 1
    done = run.ledger.batch(step, "rollout")
    if done is not None:
        return done
    generated = generate(run, policy)
    start = time.perf_counter()
    texts = [run.prompts.text(s.ids) for s in generated.samples]
    grades = score(generated.rows, texts)
    rewards = [
        _reward(row, sample, grade)
        for row, sample, grade in zip(generated.rows, generated.samples, grades, strict=True)
    ]
    seconds = {**generated.seconds, "score": time.perf_counter() - start}
    metrics = rollout_metrics(
        rewards=rewards,
        correct=[g.status is GradeStatus.CORRECT for g in grades],
        groups=[s.group for s in generated.samples],
        lengths=[len(s.ids) for s in generated.samples],
        statuses=[s.status for s in generated.samples],
        texts=texts,
    )
    record = run.ledger.write(
        run.ledger.step_folder(step),
        "rollout",
        _table(generated, grades, rewards),
        {
            "step": step,
            "policy": policy.digest,
            "metrics": metrics,
            "groups": {"seen": generated.seen, "withheld": generated.withheld},
            "grades": {status.value: sum(g.status is status for g in grades) for status in GradeStatus},
        },
    )
    run.ledger.time(step, "rollout", seconds)
    return BatchRef(run=policy.run, step=step, digest=record["digest"])


def generate(run: Run, policy: PolicyRef) -> Generated:
    """Draw a group of responses for each prompt of the step. A group with an aborted or failed member is withheld whole and
    drawn again, at most twice, with the attempt in its seeds; RunError if more than half of the groups stay lost."""
    engine, hand_over = roles.ensure_engine(run, policy)
    config, step = run.config.rollout, policy.step + 1
    sampling = Sampling(
        temperature=config.temperature, top_p=config.top_p, top_k=config.top_k, max_tokens=config.max_response_len
    )
    wanted = run.prompts.of_step(step)
    whole: dict[str, tuple[int, list[Request], list[Sample]]] = {}
    seen, withheld, seconds = 0, 0, 0.0
    for attempt in range(1 + DRAWS_AGAIN):
        missing = [row for row in wanted if row.row_id not in whole]
        if not missing:
            break
        requests = run.prompts.requests(missing, step, "rollout", config.n_samples_per_prompt, sampling, attempt)
        samples, took = roles.get(run, engine.generate.remote(requests))
        seconds += took
        seen += len(missing)
        for row in missing:
            members = [(r, s) for r, s in zip(requests, samples, strict=True) if s.group == row.row_id]
            if all(s.status in (Status.COMPLETED, Status.TRUNCATED) for _, s in members):
                whole[row.row_id] = (attempt, [r for r, _ in members], [s for _, s in members])
            else:
                withheld += 1
    lost = len(wanted) - len(whole)
    if lost * 2 > len(wanted):
        raise RunError(
            f"run {run.ref.id}: step {step} lost {lost} of {len(wanted)} groups to aborted or failed responses (at most half may "
            "be lost); look at the engine's health and start the same command again"
        )
    kept = [row for row in wanted if row.row_id in whole]
    return Generated(
        rows=[row for row in kept for _ in whole[row.row_id][2]],
        requests=[r for row in kept for r in whole[row.row_id][1]],
        samples=[s for row in kept for s in whole[row.row_id][2]],
        attempts=[whole[row.row_id][0] for row in kept for _ in whole[row.row_id][2]],
        seen=seen,
        withheld=withheld,
        seconds={"generate": seconds, "weight_sync": hand_over},
    )


def score(rows: Sequence[Row], texts: Sequence[str]) -> list[Grade]:
    """The grade of each response, in order."""
    return _grader().grade_many([(row.answer, text) for row, text in zip(rows, texts, strict=True)])


@cache
def _grader() -> Grader:
    """One pool for the life of the process: its workers take longer to start than a step."""
    grader = Grader()
    cleanup.call_at_end(grader.close)
    return grader


def _reward(row: Row, sample: Sample, grade: Grade) -> float:
    """Cleaning keeps only golds that can be verified, so a training sample without a score is our own mistake."""
    if grade.score is None:
        raise RunError(
            f"row {row.row_id}, sample {sample.index}: no reward ({grade.status}); the gold is {row.answer!r}"
        )
    return float(grade.score)


def _table(generated: Generated, grades: Sequence[Grade], rewards: Sequence[float]) -> pa.Table:
    import pyarrow as pa

    samples = generated.samples
    columns = {
        "row_id": pa.array([r.row_id for r in generated.rows]),
        "row_digest": pa.array([r.source_digest for r in generated.rows]),
        "group": pa.array([s.group for s in samples]),
        "index": pa.array([s.index for s in samples], pa.int32()),
        "attempt": pa.array(generated.attempts, pa.int32()),
        "seed": pa.array([s.seed for s in samples], pa.int64()),
        "prompt_ids": pa.array([r.prompt_ids for r in generated.requests], pa.list_(pa.int32())),
        "ids": pa.array([s.ids for s in samples], pa.list_(pa.int32())),
        # The mask comes from the length that the engine returned, never from the values of tokens.
        "mask": pa.array([[True] * len(s.ids) for s in samples], pa.list_(pa.bool_())),
        "log_probs": pa.array([s.log_probs for s in samples], pa.list_(pa.float32())),
        "versions": pa.array([s.versions for s in samples], pa.list_(pa.int32())),
        "status": pa.array([s.status.value for s in samples]),
        "extracted": pa.array([g.extracted for g in grades], pa.string()),
        "grade": pa.array([g.status.value for g in grades]),
        "reward": pa.array(rewards, pa.float64()),
    }
    return pa.table(columns)


# -- advantages -------------------------------------------------------------------------------------------------------


def advantages(batch: BatchRef) -> BatchRef:
    """The advantages of a rollout, over all its responses at once."""
    run = open_run(RunRef(id=batch.run))
    done = run.ledger.batch(batch.step, "advantages")
    if done is not None:
        return done
    import pyarrow as pa
    import torch

    from relax_core.algorithms import advantages as maths
    from relax_core.algorithms import rollout_metrics as algorithm_metrics

    start = time.perf_counter()
    folder, a = run.ledger.step_folder(batch.step), run.config.algorithm
    samples = run.ledger.samples(batch.step)
    names = samples.column("group").to_pylist()
    given = samples.column("reward").to_pylist()
    maths.check_groups(names, given, samples.column("row_id").to_pylist(), n=run.config.rollout.n_samples_per_prompt)
    rewards = torch.tensor(given, dtype=torch.float64)
    lengths = torch.tensor([len(m) for m in samples.column("mask").to_pylist()])
    mask = _padded_mask(samples.column("mask").to_pylist())
    groups = maths.group_index(names)
    result = maths.compute_advantages(
        a.advantage_estimator,
        rewards=rewards,
        groups=groups,
        mask=mask,
        normalize_advantages=bool(a.normalize_advantages),
        std_normalization=a.std_normalization,
        kl_coef=a.kl_coef,
        gamma=a.gamma,
        lambd=a.lambd,
    )
    valid = result.advantages[mask]
    metrics = {
        "rollout/advantages/mean": float(valid.mean()) if valid.numel() else 0.0,
        "rollout/advantages/std": float(valid.std(correction=0)) if valid.numel() else 0.0,
    }
    seen = run.ledger.record(folder, "rollout")
    assert seen is not None
    if a.advantage_estimator == "rloo":
        metrics |= algorithm_metrics.rloo_metrics(
            rewards=rewards,
            groups=groups,
            mask=mask,
            lengths=lengths,
            samples_per_group=run.config.rollout.n_samples_per_prompt,
            groups_seen=seen["groups"]["seen"],
            groups_withheld=seen["groups"]["withheld"],
        )
    rows = [row[: int(n)] for row, n in zip(result.advantages.to(torch.float32).tolist(), lengths, strict=True)]
    table = pa.table({"advantages": pa.array(rows, pa.list_(pa.float32()))})
    record = run.ledger.write(
        folder, "advantages", table, {"step": batch.step, "rollout": batch.digest, "metrics": metrics}
    )
    run.ledger.time(batch.step, "advantages", {"advantages": time.perf_counter() - start})
    return BatchRef(run=batch.run, step=batch.step, digest=record["digest"])


def _padded_mask(masks: Sequence[Sequence[bool]]) -> torch.Tensor:
    import torch

    width = max((len(m) for m in masks), default=0)
    return torch.tensor([[*m, *[False] * (width - len(m))] for m in masks], dtype=torch.bool).reshape(len(masks), width)


# -- update -----------------------------------------------------------------------------------------------------------


def update(batch: BatchRef) -> PolicyRef:
    """One optimizer step on a batch with its advantages."""
    run = open_run(RunRef(id=batch.run))
    step = batch.step
    done = run.ledger.policy(step)
    if done is not None:
        return done
    before = run.ledger.policy(step - 1)
    if before is None:
        raise RunError(
            f"run {run.ref.id}: step {step} cannot be trained before step {step - 1} is; start the run again"
        )
    start = time.perf_counter()
    trainer = roles.ensure_trainer(run, before)
    result = roles.get(run, trainer.update.remote(step, *run.training_input(step)))
    policy = PolicyRef(run=batch.run, step=step, digest=result["weights"])
    metrics = {f"train/{name}": value for name, value in result["metrics"].items()}
    seconds = {"train": result["seconds"]}
    if is_checkpoint_step(run.config, step):
        begun = time.perf_counter()
        roles.checkpoint(run, trainer, policy, _state(run, policy))
        seconds["checkpoint"] = time.perf_counter() - begun
    record = {"step": step, "advantages": batch.digest, "weights": policy.digest, "metrics": metrics}
    run.ledger.write(run.ledger.step_folder(step), "update", None, record)
    run.ledger.time(step, "update", {**seconds, "update": time.perf_counter() - start})
    if is_checkpoint_step(run.config, step):
        checkpoint.keep_last_and(run.checkpoints, best_step(run))
    return policy


def _state(run: Run, policy: PolicyRef) -> dict[str, object]:
    """What a checkpoint says about itself: the policy and the data cursor."""
    return {
        "run": run.ref.id,
        "step": policy.step,
        "weights": policy.digest,
        "prompts_consumed": policy.step * run.config.rollout.rollout_batch_size,
    }


def best_step(run: Run) -> int:
    """The evaluated step with the highest greedy accuracy; of equals the later one."""
    scored = []
    for step in run.ledger.evaluated_steps():
        evaluation = run.ledger.evaluation(step)
        if evaluation is not None and evaluation["summary"]["greedy_accuracy"]["value"] is not None:
            scored.append((evaluation["summary"]["greedy_accuracy"]["value"], step))
    return max(scored, default=(0.0, 0))[1]


# -- evaluation -------------------------------------------------------------------------------------------------------


def evaluate(policy: PolicyRef) -> PolicyRef:
    """Evaluate a policy on the evaluation side; returns the policy, so that what follows can be ordered after it."""
    run = open_run(RunRef(id=policy.run))
    if run.ledger.evaluation(policy.step) is not None:
        return policy
    import pyarrow as pa

    start = time.perf_counter()
    engine, _ = roles.ensure_engine(run, policy)
    e, rows = run.config.evaluation, run.dataset.evaluation_rows
    length = e.eval_max_response_len or run.config.rollout.max_response_len
    plans = {"greedy": (1, Sampling(temperature=0.0, max_tokens=length))}
    if e.n_samples_per_eval_prompt:
        drawn = Sampling(temperature=e.eval_temperature, top_p=e.eval_top_p, top_k=e.eval_top_k, max_tokens=length)
        plans["sampled"] = (e.n_samples_per_eval_prompt, drawn)
    outcomes: dict[str, list[statistics.PromptOutcome]] = {}
    tables = []
    for name, (samples, sampling) in plans.items():
        requests = run.prompts.requests(rows, policy.step, f"evaluation-{name}", samples, sampling)
        drawn_samples, _ = roles.get(run, engine.generate.remote(requests))
        asked = [row for row in rows for _ in range(samples)]
        texts = [run.prompts.text(s.ids) for s in drawn_samples]
        grades = score(asked, texts)
        outcomes[name] = _outcomes(rows, samples, drawn_samples, grades)
        tables.append(_evaluation_rows(name, asked, drawn_samples, texts, grades))
    summary = statistics.summarise(outcomes["greedy"], outcomes.get("sampled", []), seed=run.config.seed)
    record = {"step": policy.step, "policy": policy.digest, "set": "heldout", "summary": summary}
    run.ledger.write(run.ledger.evaluation_folder(policy.step), "evaluation", pa.concat_tables(tables), record)
    run.ledger.time(policy.step, "evaluation", {"evaluation": time.perf_counter() - start})
    checkpoint.keep_last_and(run.checkpoints, best_step(run))
    return policy


def _outcomes(
    rows: Sequence[Row], samples: int, drawn: Sequence[Sample], grades: Sequence[Grade]
) -> list[statistics.PromptOutcome]:
    """Responses and grades come in the order of the rows, `samples` for each."""
    found = []
    for i, row in enumerate(rows):
        own = range(i * samples, (i + 1) * samples)
        found.append(
            statistics.PromptOutcome(
                row=row.row_id,
                correct=tuple(
                    None if grades[j].status is GradeStatus.UNVERIFIABLE else grades[j].status is GradeStatus.CORRECT
                    for j in own
                ),
                rewards=tuple(float(grades[j].score or 0.0) for j in own),
                statuses=tuple(drawn[j].status for j in own),
            )
        )
    return found


def _evaluation_rows(
    name: str, rows: Sequence[Row], drawn: Sequence[Sample], texts: Sequence[str], grades: Sequence[Grade]
) -> pa.Table:
    import pyarrow as pa

    return pa.table(
        {
            "kind": pa.array([name] * len(rows)),
            "row_id": pa.array([r.row_id for r in rows]),
            "index": pa.array([s.index for s in drawn], pa.int32()),
            "seed": pa.array([s.seed for s in drawn], pa.int64()),
            "prompt": pa.array([r.prompt for r in rows]),
            "answer": pa.array([r.answer for r in rows]),
            "reply": pa.array(texts),
            "ids": pa.array([s.ids for s in drawn], pa.list_(pa.int32())),
            "status": pa.array([s.status.value for s in drawn]),
            "extracted": pa.array([g.extracted for g in grades], pa.string()),
            "grade": pa.array([g.status.value for g in grades]),
            "score": pa.array([g.score for g in grades], pa.float64()),
        }
    )
