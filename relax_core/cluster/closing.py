"""The last stage of a run: its report, tracking, and the lines that tell a person what there is now."""

from __future__ import annotations

from pathlib import Path

from relax_core import files, follow, paths, tracking
from relax_core.cluster import nodes, roles, session
from relax_core.cluster.run import Run
from relax_core.errors import RunError
from relax_core.progress import shown
from relax_core.refs import PolicyRef, RunRef
from relax_core.report import run_report
from relax_core.report.from_ledger import nearest
from relax_core.report.from_ledger import run_report as report_of


def close_run(policy: PolicyRef) -> Path:
    """Write the report of a run that went through, once; the same answer, from the ledger, at every later call.

    RunError: the run has not done all its steps.
    """
    run = nodes.enter(RunRef(id=policy.run))
    steps = run.config.rollout.num_rollout
    if policy.step != steps or run.ledger.last_step() != steps:
        raise RunError(
            f"run {policy.run}: {run.ledger.last_step()} of {steps} steps are done; start the same command again"
        )
    shown.stop()
    path = run.ledger.report()
    if path is None:
        roles.end(run)
        session.shutdown()
        path = paths.reports() / f"{run.ref.id}.html"
        files.write_text(path, run_report.render(report_of(run.ledger, model_folder(run, policy))))
        follow.sync(run.ledger, artifacts=(path,))
        run.ledger.finish(path)
    run.give_up()
    _last_words(run, policy, path)
    return path


def model_folder(run: Run, policy: PolicyRef) -> Path:
    """The Hugging Face folder of a policy that is stored. RunError if it is not."""
    folder = run.policy_folder(policy)
    if folder is None:
        raise RunError(
            f"run {policy.run}: there is no complete checkpoint after step {policy.step} below {run.checkpoints}"
        )
    return folder


def _last_words(run: Run, policy: PolicyRef, path: Path) -> None:
    """Run id, accuracy before and after, model folder, report, and how to open MLflow."""
    shown.say(f"run       {run.ref.id} ({run.ledger.name}), weights {policy.digest[:12]}")
    evaluated = run.ledger.evaluated_steps()
    for word, step in (("before", evaluated[0]), ("after", evaluated[-1])):
        record = run.ledger.evaluation(step)
        assert record is not None
        accuracy = record["summary"]["greedy_accuracy"]
        if accuracy["value"] is not None:
            shown.say(
                f"{word:9} greedy accuracy {accuracy['value']:.1%} on {accuracy['n']} held-out problems "
                f"(95 % interval {accuracy['low']:.1%} to {accuracy['high']:.1%})"
            )
    shown.say(f"model     {nearest(model_folder(run, policy))}")
    shown.say(f"report    {nearest(path)}")
    if run.config.tracking.uri != tracking.NO_TRACKING:
        shown.say(f"mlflow    {tracking.open_command(run.config.tracking.uri)}")
