"""From a source to a cleaned dataset in the store.

plan = plan_data(source="problems.jsonl", prompt_template="{question} Answer in \\\\boxed{}.", seed=0, eval_share=0.1,
eval_rows=200) ref = prepare(plan)            # from the store if nothing changed, else cleaned and stored dataset =
open_dataset(ref)    # checked; dataset.train_rows([3, 1]), dataset.evaluation_rows, dataset.manifest
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from relax_core import digests, paths
from relax_core.code_version import code_version
from relax_core.data import cleaning, schema, sources, split
from relax_core.data.store import SIDES, Dataset, SideWriter, Store
from relax_core.errors import DataError
from relax_core.refs import DatasetRef

RULES = (*cleaning.ROW_RULES, *split.SET_RULES)

Progress = Callable[[str, int], None]


class RuleVersion(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    version: int


class DataIdentity(BaseModel):
    """All that decides what a dataset holds, and nothing else: no path, no name of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: sources.SourceSpec
    evaluation: sources.SourceSpec | None
    prompt_template: str
    seed: int
    eval_share: float | None
    eval_rows: int | None
    rules: list[RuleVersion]
    code: str

    @property
    def key(self) -> str:
        """Digest of the identity: the name of this derivation in the store's index."""
        return digests.of_value(self.model_dump(mode="json"))


class DataPlan(BaseModel):
    """What to make (`identity`) and where its sources lie (`eval_source`: "" for a share of the source)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: DataIdentity
    source: str
    eval_source: str

    @property
    def key(self) -> str:
        return self.identity.key


def data_code_version() -> str:
    """Version of the code that makes datasets: this module and what it imports."""
    return code_version(["relax_core.data.prepare"])


# ---- plan ----------------------------------------------------------------------------------------


def plan_data(
    *,
    source: str,
    eval_data: str = "",
    prompt_template: str,
    seed: int,
    eval_share: float,
    eval_rows: int | None,
    arithmetic_levels: Sequence[int] = (1,),
    arithmetic_count: int = 2000,
    arithmetic_templates: Sequence[str] = (),
) -> DataPlan:
    """Look at the sources and settle what the dataset is. Reads the files once, for their digests; writes nothing.

    source, eval_data: a file or `arithmetic`; an empty eval_data means a share `eval_share` of the source's prompts,
    by digest. prompt_template: text that holds {question} once. seed: of the generator and of the share. eval_rows:
    at most so many evaluation rows; None: no limit. Raises DataError with everything that is wrong, one line each.
    """
    problems = _wrong_parameters(prompt_template, eval_share, eval_rows, shared=not eval_data)
    arithmetic = sources.ArithmeticSpec(
        seed=seed, levels=list(arithmetic_levels), count=arithmetic_count, templates=list(arithmetic_templates)
    )
    specs = {}
    for name in (source, eval_data):
        if name and name not in specs:
            try:
                specs[name] = sources.inspect(name, arithmetic if name == sources.ARITHMETIC else None)
            except DataError as e:
                problems.append(str(e))
    if problems:
        raise DataError("\n".join(problems))
    identity = DataIdentity(
        train=specs[source],
        evaluation=specs[eval_data] if eval_data else None,
        prompt_template=prompt_template,
        seed=seed,
        eval_share=None if eval_data else eval_share,
        eval_rows=eval_rows,
        rules=[RuleVersion(name=rule.name, version=rule.version) for rule in RULES],
        code=data_code_version(),
    )
    return DataPlan(identity=identity, source=source, eval_source=eval_data)


def _wrong_parameters(template: str, eval_share: float, eval_rows: int | None, *, shared: bool) -> list[str]:
    problems = []
    if template.count("{question}") != 1:
        problems.append(
            f"data.prompt_template {template!r} must hold {{question}} exactly once: there the question is put in"
        )
    if shared and not 0 < eval_share < 1:
        problems.append(
            f"evaluation.eval_share {eval_share} must be above 0 and below 1, or name a file of evaluation data"
        )
    if eval_rows is not None and eval_rows < 1:
        problems.append(f"evaluation.eval_rows {eval_rows} must be at least 1")
    return problems


# ---- prepare -------------------------------------------------------------------------------------


def prepare(plan: DataPlan, progress: Progress | None = None) -> DatasetRef:
    """The dataset of a plan: from the store if it is there and whole, else cleaned and stored. Safe in several
    processes at once.

    progress: called with (what is being done, rows done). Raises DataError if a source cannot be read, has changed
    since the plan, or leaves one of the two sides empty; nothing is stored then.
    """
    store = Store(paths.datasets())
    if found := store.lookup(plan.key):
        return found
    if plan.identity.code != data_code_version():
        raise DataError(
            "the plan was made by another version of the code than the one that runs here; make the plan again"
        )
    with store.workspace() as workspace:
        making = _Making(plan, workspace, progress or (lambda what, rows: None))
        sides, derivation = making.run()
        return store.put(making.shards, sides, plan.key, derivation)


def open_dataset(ref: DatasetRef) -> Dataset:
    """Open a dataset of the store. IntegrityError, with the remedy, if it is missing or not what was stored."""
    return Store(paths.datasets()).open(ref)


class _Making:
    """One pass from sources to shards: clean into spools, decide where every row goes, write the sides."""

    def __init__(self, plan: DataPlan, workspace: Path, progress: Progress) -> None:
        self._identity = plan.identity
        self._sources = {"train": plan.source, "eval": plan.eval_source}
        self._workspace = workspace
        self.shards = workspace / "shards"
        self._progress = progress
        self._reports: dict[str, cleaning.Report] = {}

    def run(self) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """Fill the folder `shards`; return the manifest's entries of the two sides, and the derivation."""
        self.shards.mkdir()
        spools = self._spools()
        sides = {
            "train": self._write(split.Side.TRAIN, *spools["train"]),
            "eval": self._write(split.Side.EVAL, *spools.get("eval", spools["train"])),
        }
        for side, entry in sides.items():
            if not entry["rows"]:
                raise DataError(self._emptied(side))
        return sides, self._derivation()

    def _spools(self) -> dict[str, tuple[split.Spool, npt.NDArray[np.uint8]]]:
        """The cleaned rows of each source, with the side that each row goes to."""
        identity = self._identity
        train = self._clean("train", identity.train)
        kept = self._one_row_per_prompt("train", train)
        report = self._reports["train"]
        if identity.evaluation is None:
            assert identity.eval_share is not None
            sides = split.share(train, kept, identity.seed, identity.eval_share, identity.eval_rows, report)
            return {"train": (train, sides)}
        evaluation = self._clean("eval", identity.evaluation)
        eval_kept = self._one_row_per_prompt("eval", evaluation)
        keys = {p.key for p in evaluation.problems() if eval_kept[p.position]}
        eval_sides = split.limit_evaluation(
            evaluation, eval_kept, identity.seed, identity.eval_rows, self._reports["eval"]
        )
        return {"train": (train, split.without_evaluation(train, kept, keys, report)), "eval": (evaluation, eval_sides)}

    def _clean(self, side: str, spec: sources.SourceSpec) -> split.Spool:
        report = self._reports[side] = cleaning.Report(RULES)
        spool = split.Spool(self._workspace / f"spool-{side}.parquet")
        batches = sources.read_unchanged(spec, self._sources[side])
        spool.write(self._counted(f"cleaning the {_NAMES[side]} data", cleaning.clean(batches, spec.form, report)))
        if not spool.rows:
            raise DataError(f"{self._sources[side]}: no usable answers. {report.drops()}. {_SEE}")
        return spool

    def _one_row_per_prompt(self, side: str, spool: split.Spool) -> npt.NDArray[np.bool_]:
        kept = split.one_row_per_prompt(spool, self._reports[side])
        if not kept.any():
            raise DataError(f"{self._sources[side]}: no usable answers. {self._reports[side].drops()}. {_SEE}")
        return kept

    def _counted(self, what: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            self._progress(what, rows)
            yield batch

    def _write(self, side: split.Side, spool: split.Spool, sides: npt.NDArray[np.uint8]) -> dict[str, Any]:
        name = SIDES[side - 1]
        writer = SideWriter(self.shards, name)
        start = 0
        for batch in self._counted(f"writing the {_NAMES[name]} side", spool.batches()):
            here = sides[start : start + batch.num_rows] == side
            start += batch.num_rows
            writer.write(self._rows(batch.filter(pa.array(here))))
        return writer.close()

    def _rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of schema RAW as rows of schema ROW: with their id and prompt."""
        columns = {name: batch.column(name) for name in batch.schema.names}
        ids = [schema.row_id(source_digest) for source_digest in columns["source_digest"].to_pylist()]
        # Not str.format: the template and the questions are full of braces.
        before, _, after = self._identity.prompt_template.partition("{question}")
        prompts = [f"{before}{question}{after}" for question in columns["question"].to_pylist()]
        columns |= {"row_id": pa.array(ids, pa.string()), "prompt": pa.array(prompts, pa.string())}
        return pa.RecordBatch.from_arrays([columns[field.name] for field in schema.ROW], schema=schema.ROW)

    def _emptied(self, side: str) -> str:
        drops = ". ".join(f"{self._sources[name]}: {report.drops()}" for name, report in self._reports.items())
        identity = self._identity
        if identity.evaluation is not None:
            cause = (
                "every prompt of the training data is in the evaluation data" if side == "train" else "nothing was left"
            )
        else:
            cause = f"eval_share {identity.eval_share} and eval_rows {identity.eval_rows} took all prompts"
        return f"the {_NAMES[side]} side is empty: {cause}. {drops}. Give other data, or change the share"

    def _derivation(self) -> dict[str, Any]:
        """How the dataset was made, for lineage."""
        identity = self._identity
        specs = {"train": identity.train, "eval": identity.evaluation}
        return {
            "key": identity.key,
            "sources": [
                {
                    "side": side,
                    "name": Path(self._sources[side]).name,
                    "rows": self._reports[side].read,
                    **spec.model_dump(mode="json"),
                }
                for side, spec in specs.items()
                if spec is not None
            ],
            "rules": {side: report.as_json() for side, report in self._reports.items()},
            "parameters": identity.model_dump(
                mode="json", include={"prompt_template", "seed", "eval_share", "eval_rows"}
            ),
            "code": identity.code,
        }


_NAMES = {"train": "training", "eval": "evaluation"}
_SEE = "Every row lost an answer or a question on the way: check the columns and the form of the answers"
