"""The `relax` command: look at what will run, at what ran, and talk to what was trained. Training itself is `pyflyte run`."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from relax_core import surroundings
from relax_core.errors import RelaxError, UserError

P = ParamSpec("P")
T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
runs_app = typer.Typer(invoke_without_command=True, help="The runs below the artifacts.")
app.add_typer(runs_app, name="runs")

surroundings.keep_inside()

Json = Annotated[bool, typer.Option("--json", help="print JSON for machines")]


def plain_errors(command: Callable[P, T]) -> Callable[P, T]:
    """Errors of ours as lines: exit code 2 for wrong input, 1 for anything else."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except RelaxError as error:
            for line in str(error).splitlines():
                print(f"error: {line}", file=sys.stderr)
            raise typer.Exit(2 if isinstance(error, UserError) else 1) from None

    return wrapped


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, ensure_ascii=False))


# -- plan -------------------------------------------------------------------------------------------------------------


@app.command()
@plain_errors
def plan(
    run: Annotated[str, typer.Argument(help="ALGORITHM:RECIPE, for example rloo:tiny")],
    against: Annotated[str, typer.Option(help="another ALGORITHM:RECIPE: show in what the two differ")] = "",
    set_: Annotated[str, typer.Option("--set", help="JSON object of dotted keys that override the recipe")] = "",
    all_: Annotated[bool, typer.Option("--all", help="every key, also those that have their default")] = False,
    as_json: Json = False,
) -> None:
    """Show a run before it starts: the resolved recipe, where each value came from, and the nodes it will have."""
    from relax_core import plan as planning

    made = planning.make(*_named(run), set_)
    if against:
        other = planning.make(*_named(against), set_)
        _show_differences(run, against, planning.differences(made, other), as_json)
        return
    dataset, model, known = planning.known_run(made)
    if as_json:
        known_refs = {"dataset": dataset, "base_model": model, "run": known}
        exists = {name: ref.model_dump() if ref else None for name, ref in known_refs.items()}
        _print_json({**made.model_dump(mode="json"), "nodes": _nodes(made), "exists": exists})
        return
    _show_plan(made, dataset, model, known, all_)


def _named(run: str) -> tuple[str, str]:
    algorithm, colon, recipe = run.partition(":")
    if not colon or not algorithm or not recipe:
        raise UserError(f"{run}: a run is named ALGORITHM:RECIPE, for example rloo:tiny")
    return algorithm, recipe


def _nodes(made: Any) -> list[tuple[str, int]]:
    """The nodes of the workflow, in order, with how often each runs."""
    schedule = made.run.schedule
    steps = (
        [("rollout", schedule.steps), ("leave_one_out_advantages", schedule.steps), ("update_actor", schedule.steps)]
        if schedule.steps_per_node == 1
        else [("train_steps", len(schedule.node_ends))]
    )
    return [
        ("plan_run", 1),
        ("clean_dataset", 1),
        ("base_model", 1),
        ("open_run", 1),
        ("evaluate", 2 + len(schedule.evaluated)),
        *steps,
        ("report", 1),
    ]


def _show_plan(made: Any, dataset: Any, model: Any, known: Any, everything: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from relax_core.config import flat
    from relax_core.ledger.ledger import Ledger

    console = Console()
    console.print(f"[bold]{made.run.name}[/bold]  {made.run.config.description}", highlight=False)
    table = Table("key", "value", "came from", box=None, pad_edge=False)
    values = flat.flatten(made.run.config.model_dump(mode="json"))
    for key, value in values.items():
        origin = made.run.origins[key]
        if key != "description" and (everything or origin != "default"):
            table.add_row(key, _text(value), origin)
    console.print(table)
    if not everything:
        console.print(
            f"{sum(o == 'default' for o in made.run.origins.values())} more keys have their default (--all shows them)"
        )
    console.print()
    console.print(
        "nodes     " + " -> ".join(f"{name} x{n}" if n > 1 else name for name, n in _nodes(made)), soft_wrap=True
    )
    console.print(
        f"resources {made.run.config.resources.threads} CPU threads; trainer and engine take turns", highlight=False
    )
    console.print(f"dataset   {_known(dataset)}", highlight=False)
    console.print(f"base      {_known(model)}", highlight=False)
    if known is None:
        console.print("run       its id follows from dataset and base model, once they are made")
    else:
        ledger = Ledger(known)
        done = ledger.last_step() if ledger.exists() else 0
        state = "finished" if ledger.is_finished() else f"{done} of {made.run.schedule.steps} steps done"
        console.print(f"run       {known.id} ({state})", highlight=False)
    for note in made.run.notes:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)


def _text(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)


def _known(ref: Any) -> str:
    return f"{ref.digest[:12]} (in the store)" if ref else "will be made"


def _show_differences(run: str, against: str, differences: dict[str, tuple[Any, Any]], as_json: bool) -> None:
    if as_json:
        _print_json({key: {run: left, against: right} for key, (left, right) in differences.items()})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("key", run, against, box=None, pad_edge=False)
    for key, (left, right) in differences.items():
        table.add_row(key, _text(left), _text(right))
    console = Console()
    console.print(table if differences else f"{run} and {against} do not differ")


# -- talk -------------------------------------------------------------------------------------------------------------


@app.command()
@plain_errors
def sample(
    policy: Annotated[str, typer.Argument(help="a run id (its last policy), RUN@STEP, or a Hugging Face folder")],
    prompt: Annotated[str, typer.Argument(help="what to ask; of a run, its prompt template is put around it")],
    n: Annotated[int, typer.Option("-n", min=1, help="replies; more than one are drawn at --temperature")] = 1,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0: greedy; unset: greedy for one reply, 1 for several")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="tokens of a reply at most")] = 256,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Talk to a trained policy."""
    from relax_core import talking

    replies = talking.sample(
        policy,
        prompt,
        n=n,
        temperature=float(n > 1) if temperature is None else temperature,
        max_tokens=max_tokens,
        seed=seed,
    )
    if as_json:
        _print_json(replies)
        return
    for reply in replies:
        print(f"{reply['text']}" + ("" if reply["status"] == "completed" else f"   [{reply['status']}]"))


# -- what is there ----------------------------------------------------------------------------------------------------


@runs_app.callback()
@plain_errors
def runs(context: typer.Context, as_json: Json = False) -> None:
    """List the runs: how far each is, and its accuracy before and after."""
    if context.invoked_subcommand is not None:
        return
    from relax_core import listing

    found = listing.runs()
    if as_json:
        _print_json(found)
        return
    _table(
        ["run", "name", "seed", "steps", "accuracy before", "after", "started"],
        [
            [
                r["run"],
                r["name"],
                str(r["seed"]),
                f"{r['done']}/{r['steps']}",
                _share(r["before"]),
                _share(r["after"]),
                r["started"],
            ]
            for r in found
        ],
        "no runs yet: make rloo",
    )


@runs_app.command("sync")
@plain_errors
def runs_sync(
    run: Annotated[str, typer.Argument(help="a run id; empty: all runs")] = "", as_json: Json = False
) -> None:
    """Copy to MLflow what it lacks of the runs' ledgers."""
    from relax_core import follow, listing
    from relax_core.ledger.ledger import Ledger
    from relax_core.refs import RunRef

    names = [run] if run else [r["run"] for r in listing.runs()]
    copied = {name: follow.sync(Ledger(RunRef(id=name))) for name in names}
    if as_json:
        _print_json(copied)
    else:
        for name, mlflow_run in copied.items():
            print(f"{name}  {mlflow_run or 'not copied'}")
    if names and not all(copied.values()):
        raise typer.Exit(1)


@app.command()
@plain_errors
def datasets(
    digest: Annotated[str, typer.Argument(help="digest of a dataset, or its beginning; empty: list them")] = "",
    as_json: Json = False,
) -> None:
    """List the cleaned datasets, or show where one came from: source, rules with counts, parameters."""
    from relax_core import listing

    if digest:
        manifest = listing.dataset(digest)
        if as_json:
            _print_json(manifest)
        else:
            _show_dataset(manifest)
        return
    found = listing.datasets()
    if as_json:
        _print_json(found)
        return
    _table(
        ["dataset", "source", "train", "evaluation", "created"],
        [[d["digest"][:12], d["source"], f"{d['train']:,}", f"{d['evaluation']:,}", d["created"]] for d in found],
        "no datasets yet: make rloo",
    )


def _show_dataset(manifest: dict[str, Any]) -> None:
    derivation = manifest["derivation"]
    print(f"dataset     {manifest['digest']}")
    for source in derivation["sources"]:
        print(f"{source['side']:11} {source['name']}: {source['rows']:,} rows, sha256 {source['digest']}")
    for side, entry in manifest["sides"].items():
        print(f"kept        {side}: {entry['rows']:,} rows")
    print(f"parameters  {json.dumps(derivation['parameters'], ensure_ascii=False)}")
    print(f"code        {derivation['code']}")
    for side, rules in derivation["rules"].items():
        _table(
            [f"rule ({side})", "version", "changed", "dropped", "what it does"],
            [[r["name"], str(r["version"]), f"{r['changed']:,}", f"{r['dropped']:,}", r["about"]] for r in rules],
            "",
        )


@app.command()
@plain_errors
def report(run: Annotated[str, typer.Argument(help="a run id")], as_json: Json = False) -> None:
    """Where the report of a run lies; of a run that has not ended, it is written as far as the run is."""
    from relax_core import listing

    path = listing.report(run)
    if as_json:
        _print_json({"run": run, "report": str(path)})
    else:
        print(path)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _table(head: list[str], rows: list[list[str]], nothing: str) -> None:
    from rich.console import Console
    from rich.table import Table

    if not rows:
        print(nothing)
        return
    table = Table(*head, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def main() -> None:
    app()
