"""The end of a run: its report, as a file, as a deck and in MLflow."""

from __future__ import annotations

from flytekit import Deck, Resources, task
from flytekit.types.file import FlyteFile

from relax_core.refs import PolicyRef
from tasks.people import plain_errors


@task(enable_deck=True, deck_fields=(), requests=Resources(cpu="1", mem="2Gi"))
@plain_errors
def report(policy: PolicyRef) -> FlyteFile:
    """Write the report of a finished run and bring tracking up to date."""
    from relax_core.cluster import closing

    path = closing.close_run(policy)
    Deck("report", path.read_text(encoding="utf-8"))
    return FlyteFile(str(path))
