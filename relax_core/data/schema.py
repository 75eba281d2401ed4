"""The columns of a cleaned dataset, declared once; no type is ever guessed.

Answers are text, always. A later format may add nullable columns; a reader takes the columns that it knows, by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import pyarrow as pa

from relax_core import digests
from relax_core.errors import IntegrityError

FORMAT = 1

# What a source delivers: text or null, in the order of the source.
RAW = pa.schema(
    [
        pa.field("source_index", pa.int64(), nullable=False),
        pa.field("source_digest", pa.string(), nullable=False),
        pa.field("question", pa.string()),
        pa.field("answer", pa.string()),
        pa.field("solution", pa.string()),
        pa.field("level", pa.string()),
        pa.field("template", pa.string()),
    ]
)

# What the store holds.
ROW = pa.schema(
    [
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("question", pa.string(), nullable=False),
        pa.field("answer", pa.string(), nullable=False),
        pa.field("solution", pa.string()),
        pa.field("level", pa.string()),
        pa.field("template", pa.string()),
        pa.field("source_index", pa.int64(), nullable=False),
        pa.field("source_digest", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A cleaned problem.

    row_id: identity, independent of where the row stands (see `row_id`). prompt: what is asked, the instruction about
    the box included, before any chat template. question: without the instruction. answer: the gold, as text.
    solution: worked, if the source has one. level, template: kind of problem, if the source names one. source_index:
    position in the source (from 0). source_digest: of all that the source says in this row.
    """

    row_id: str
    prompt: str
    question: str
    answer: str
    solution: str | None = None
    level: str | None = None
    template: str | None = None
    source_index: int
    source_digest: str


def row_id(source_digest: str, occurrence: int = 0) -> str:
    """Identity of a row: the digest of its content in the source and which one of the identical rows it is.

    The position is left out, so that a row keeps its id when others are added before it or the file is converted.
    Cleaning keeps one row per prompt, hence only occurrence 0; the number keeps two kept copies of a row apart (two
    rows, two groups).
    """
    return digests.of_value({"occurrence": occurrence, "source_digest": source_digest})


def describe(schema: pa.Schema) -> list[dict[str, object]]:
    """A schema as a JSON value: names, types and nullability, in order."""
    return [{"name": field.name, "nullable": field.nullable, "type": str(field.type)} for field in schema]


def check(schema: pa.Schema, where: str) -> None:
    """Raise IntegrityError if a declared column is missing from `schema` or has another type."""
    for field in ROW:
        index = schema.get_field_index(field.name)
        if index < 0 or schema.field(index).type != field.type:
            found = "is missing" if index < 0 else f"has type {schema.field(index).type}"
            raise IntegrityError(f"{where}: column {field.name} {found}, the declared type is {field.type}")


def rows_of(table: pa.Table) -> Iterator[Row]:
    """The rows of a table that has (at least) the declared columns."""
    names = [field.name for field in fields(Row)]
    for values in zip(*(table.column(name).to_pylist() for name in names), strict=True):
        yield Row(**dict(zip(names, values, strict=True)))
