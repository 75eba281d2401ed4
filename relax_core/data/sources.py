r"""Where problems come from: a person's file or the built-in generator, read as batches of text in bounded memory.

Files: Parquet, JSONL (one object per line) and CSV (commas, a header line), told by their ending. Forms, told by the
columns and, for GSM8K, by the `####` in the answers:

    gsm8k        question, answer       the answer is worked and ends in `#### 42`
    plain        question, answer       the answer is the answer; a column of worked solutions is kept
    boxed        question, solution     the worked solution holds the answer as \boxed{42}
    arithmetic   built in               see relax_core.data.arithmetic

Column names count in any case: question, problem, prompt or query; answer, final_answer or target; solution,
rationale or worked_solution; level. Of several names for one role the first listed here is taken. Other columns are
not used, but belong to the digest of their row.

Cells are text or missing. No type is guessed: "007" keeps its zeros, a number in JSON keeps the digits it was written
with, and null, an empty CSV field and NaN are missing. A whole number that Parquet stores as a float is written
without a point (7, not 7.0).
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from relax_core import digests
from relax_core.code_version import code_version
from relax_core.data.schema import RAW
from relax_core.errors import DataError

ARITHMETIC = "arithmetic"

BATCH_ROWS = 1024
# So many rows tell the columns (JSONL) and the form of a file.
SAMPLE_ROWS = 1024

_ALIASES = {
    "question": ("question", "problem", "prompt", "query"),
    "answer": ("answer", "final_answer", "target"),
    "solution": ("solution", "rationale", "worked_solution"),
    "level": ("level",),
}
_ACCEPTED = (
    "Accepted: GSM8K (question, answer that ends in `#### 42`), plain (question, answer), "
    "boxed (question, solution with \\boxed{42}). "
    + "; ".join(f"the {role} may be named {', '.join(names)}" for role, names in _ALIASES.items() if len(names) > 1)
    + "."
)

# From here on a float no longer holds every whole number.
_EXACT_FLOAT = 2.0**53

RawRow = dict[str, Any]
Form = Literal["gsm8k", "plain", "boxed", "arithmetic"]


class ArithmeticSpec(BaseModel):
    """What the generator is asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    levels: list[int]
    templates: list[str] = []
    count: int


class SourceSpec(BaseModel):
    """What a source is, wherever it lies. The path is no part of it; the digest of the content is.

    It travels between nodes: flytekit has no type for tuples, hence lists.

    columns: the column of a file that plays each role; other_columns: those that have no role. arithmetic: set for the generator
    alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["parquet", "jsonl", "csv", "arithmetic"]
    form: Form
    digest: str
    columns: dict[str, str] = {}
    other_columns: list[str] = []
    arithmetic: ArithmeticSpec | None = None


# ---- what a source is ----------------------------------------------------------------------------


def source_digest(source: str, arithmetic: ArithmeticSpec | None = None) -> str:
    """Digest of a source as it is now: of the file's bytes, or of the generator's parameters and code. Never cached."""
    if source != ARITHMETIC:
        return digests.of_file(_existing(source))
    if arithmetic is None:
        raise ValueError("the generator has no digest without its parameters")
    code = code_version(["relax_core.data.arithmetic"])
    return digests.of_value({"code": code, "name": ARITHMETIC, "parameters": arithmetic.model_dump(mode="json")})


def inspect(source: str, arithmetic: ArithmeticSpec | None = None) -> SourceSpec:
    """Look at a source: its kind, columns and form, and its digest.

    Raises DataError for a file that is missing, empty, of unknown ending, unreadable, or without the columns of a
    known form.
    """
    if source == ARITHMETIC:
        digest = source_digest(source, arithmetic)
        return SourceSpec(kind="arithmetic", form="arithmetic", digest=digest, arithmetic=arithmetic)
    path = _existing(source)
    kind = _kind(path)
    columns, sample = _head(path, kind)
    roles = _roles(columns)
    form = _form(path, columns, roles, sample)
    if form == "gsm8k":
        roles.pop("solution", None)  # the answer holds the work
    return SourceSpec(
        kind=kind,
        form=form,
        digest=digests.of_file(path),
        columns=roles,
        other_columns=[name for name in columns if name not in roles.values()],
    )


def _existing(source: str) -> Path:
    path = Path(source).expanduser()
    if not path.exists():
        raise DataError(f"{source}: there is no such file. Name a Parquet, JSONL or CSV file, or `{ARITHMETIC}`")
    if not path.is_file():
        raise DataError(f"{source}: this is a folder, and a file is needed. Name one Parquet, JSONL or CSV file")
    if not os.access(path, os.R_OK):
        raise DataError(f"{source}: the file may not be read by this user. Change its permissions")
    if path.stat().st_size == 0:
        raise DataError(f"{source}: the file is empty (0 bytes). Name a file with at least two problems")
    return path


def _kind(path: Path) -> Literal["parquet", "jsonl", "csv"]:
    match path.suffix.lower():
        case ".parquet":
            return "parquet"
        case ".jsonl":
            return "jsonl"
        case ".csv":
            return "csv"
    hint = "; write one object per line and call it .jsonl" if path.suffix.lower() == ".json" else ""
    raise DataError(
        f"{path}: the ending {path.suffix or '(none)'} is not known. Endings read: .parquet, .jsonl, .csv{hint}"
    )


def _head(path: Path, kind: str) -> tuple[list[str], list[RawRow]]:
    """The columns and the first rows of a file; at least one row, or a DataError."""
    sample: list[RawRow] = []
    for _, row in _READERS[kind](path):
        sample.append(row)
        if len(sample) == SAMPLE_ROWS:
            break
    if not sample:
        raise DataError(f"{path}: the file holds no rows. Name a file with at least two problems")
    columns: dict[str, None] = {}
    for row in sample:
        columns.update(dict.fromkeys(row))
    return list(columns), sample


def _roles(columns: list[str]) -> dict[str, str]:
    """Role -> the column that plays it."""
    roles = {}
    for role, names in _ALIASES.items():
        for name in names:
            found = [column for column in columns if column.strip().lower() == name]
            if found:
                roles[role] = name if name in found else found[0]
                break
    return roles


def _form(path: Path, columns: list[str], roles: dict[str, str], sample: list[RawRow]) -> Form:
    if "question" not in roles or not {"answer", "solution"} & roles.keys():
        raise DataError(f"{path}: the columns found ({', '.join(map(repr, columns))}) make no known form. {_ACCEPTED}")
    if "answer" not in roles:
        return "boxed"
    answers = [answer for row in sample if isinstance(answer := row.get(roles["answer"]), str)]
    marked = sum("####" in answer for answer in answers)
    return "gsm8k" if marked and marked * 2 >= len(answers) else "plain"


# ---- reading -------------------------------------------------------------------------------------


def read(spec: SourceSpec, source: str, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """The rows of a source in order, as batches of schema RAW. Raises DataError naming the line that cannot be read."""
    rows = _generated(spec.arithmetic) if spec.arithmetic else _file_rows(spec, Path(source).expanduser())
    batch: list[RawRow] = []
    for row in rows:
        batch.append(row)
        if len(batch) == batch_rows:
            yield pa.RecordBatch.from_pylist(batch, schema=RAW)
            batch = []
    if batch:
        yield pa.RecordBatch.from_pylist(batch, schema=RAW)


def _generated(spec: ArithmeticSpec) -> Iterator[RawRow]:
    from relax_core.data import arithmetic

    found = arithmetic.problems(spec.seed, "train", spec.count, levels=spec.levels, templates=spec.templates)
    for index, problem in enumerate(found):
        row: RawRow = {
            "question": problem.question,
            "answer": problem.answer,
            "solution": problem.solution,
            "level": str(problem.level),
            "template": problem.template_id,
        }
        yield {**row, "source_index": index, "source_digest": _row_digest(row)}


def _file_rows(spec: SourceSpec, path: Path) -> Iterator[RawRow]:
    roles = spec.columns
    for index, (place, row) in enumerate(_READERS[spec.kind](path)):
        out: RawRow = {"source_index": index, "source_digest": _row_digest(row)}
        for role, column in roles.items():
            value = row.get(column)
            if value is not None and not isinstance(value, str):
                raise DataError(
                    f"{path}, {place}: column {column!r} holds {_short(value)}; it must hold text, a number or nothing"
                )
            out[role] = value
        yield out


def _row_digest(row: RawRow) -> str:
    """Digest of what a row says: its cells that are there, by column name. The same in every file format."""
    return digests.of_value({name: value for name, value in row.items() if value is not None})


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


# A reader yields (place for messages, row). Cells are text, None, or (nested ones) JSON values.


def _jsonl_rows(path: Path) -> Iterator[tuple[str, RawRow]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            place = f"line {number}"
            line = _decoded(raw, path, place, first=number == 1)
            if not line.strip():
                continue
            try:
                row = json.loads(line, parse_int=str, parse_float=str, parse_constant=_constant)
            except (json.JSONDecodeError, RecursionError) as e:
                raise DataError(f"{path}, {place}: not JSON ({e}). Every line must be one object") from e
            if not isinstance(row, dict):
                raise DataError(f"{path}, {place}: not an object but {_short(row)}. Every line must be one object")
            if "\\ud" in line.lower():
                _refuse_half_characters(row, path, place)
            yield place, {str(name): _json_cell(value) for name, value in row.items()}


def _refuse_half_characters(row: RawRow, path: Path, place: str) -> None:
    """An escape such as \\ud83d without its second half is valid JSON and no text that could be stored."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as e:
        raise DataError(
            f"{path}, {place}: an escape that is half a character ({e.reason}). Write the text as UTF-8"
        ) from e


def _constant(name: str) -> str | None:
    """NaN is how some writers say missing; the infinities stay as they are written."""
    return None if name == "NaN" else name


def _json_cell(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _csv_rows(path: Path) -> Iterator[tuple[str, RawRow]]:
    with path.open("rb") as file:
        lines = (_decoded(raw, path, f"line {n}", first=n == 1) for n, raw in enumerate(file, start=1))
        reader = csv.reader(lines, strict=True)
        header: list[str] | None = None
        try:
            for record in reader:
                place = f"line {reader.line_num}"
                if not record:
                    continue
                if header is None:
                    header = record
                    if twice := sorted({name for name in header if header.count(name) > 1}):
                        raise DataError(
                            f"{path}: the header names {', '.join(map(repr, twice))} twice; name each column once"
                        )
                    continue
                if len(record) != len(header):
                    raise DataError(
                        f"{path}, {place}: {len(record)} fields where the header names {len(header)}; "
                        "put fields with commas in quotes"
                    )
                yield place, {name: value or None for name, value in zip(header, record, strict=True)}
        except csv.Error as e:
            raise DataError(f"{path}, line {reader.line_num}: not CSV ({e})") from e


def _decoded(raw: bytes, path: Path, place: str, *, first: bool) -> str:
    try:
        return raw.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as e:
        raise DataError(f"{path}, {place}: not UTF-8 ({e.reason} at byte {e.start}). Save the file as UTF-8") from e


def _parquet_rows(path: Path) -> Iterator[tuple[str, RawRow]]:
    import pyarrow.parquet as pq

    number = 0
    try:
        # A small buffer instead of whole column chunks: memory does not grow with the size of a row group.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    place = f"row {number}"
                    yield place, {name: _parquet_cell(value, path, place, name) for name, value in row.items()}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as e:
        raise DataError(f"{path}: not a readable Parquet file ({e}), noticed after row {number}") from e


def _parquet_cell(value: Any, path: Path, place: str, column: str) -> Any:
    """Text for numbers; JSON values for nested cells, where bytes count by their digest."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _float_text(value, path, place, column)
    if isinstance(value, bytes):
        return {"bytes": digests.of_bytes(value)}
    if isinstance(value, dict):
        return {str(name): _parquet_cell(cell, path, place, column) for name, cell in value.items()}
    if isinstance(value, list | tuple):
        return [_parquet_cell(cell, path, place, column) for cell in value]
    return str(value)  # int, Decimal, dates and times


def _float_text(value: float, path: Path, place: str, column: str) -> str | None:
    if math.isnan(value):
        return None
    if math.isinf(value) or not value.is_integer():
        return repr(value)
    if abs(value) >= _EXACT_FLOAT and column.strip().lower() in _ALIASES["answer"]:
        raise DataError(
            f"{path}, {place}: column {column!r} is of floats and holds {value!r}; from 2^53 on the last "
            "digits may be lost. Write the file again with this column as text"
        )
    return str(int(value))


_READERS: dict[str, Callable[[Path], Iterator[tuple[str, RawRow]]]] = {
    "csv": _csv_rows,
    "jsonl": _jsonl_rows,
    "parquet": _parquet_rows,
}


def read_unchanged(spec: SourceSpec, source: str, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """As `read`, if the source still has the digest of `spec`; a change while it is read shows by size and time."""
    if source_digest(source, spec.arithmetic) != spec.digest:
        raise DataError(f"{source}: its content is no longer what the plan saw. Start the same command again")
    if spec.kind == "arithmetic":
        yield from read(spec, source, batch_rows)
        return
    path = Path(source).expanduser()
    before = path.stat()
    yield from read(spec, source, batch_rows)
    after = path.stat()
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise DataError(f"{source}: the file changed while it was read. Start the same command again")
