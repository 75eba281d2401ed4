"""The digest of a table's content: every cell, column name and type, whatever the files and batches it is cut into.

Each column is fed, row after row, into a few hashes (which cells are there, how long they are, their bytes). As the
streams do not know where a batch ends, the digest is that of the rows in order, and hashing keeps pace with reading.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from relax_core import digests
from relax_core.data.schema import describe


class ContentDigest:
    """Fed with the batches of a table in order, it gives the digest of the whole."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._columns = [_Column(field.type) for field in schema]
        self.rows = 0

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch; its schema must be the declared one."""
        if not batch.schema.equals(self._schema):
            raise TypeError(f"batch of schema\n{batch.schema}\nfor a digest of schema\n{self._schema}")
        for column, array in zip(self._columns, batch.columns, strict=True):
            column.update(array)
        self.rows += batch.num_rows

    def hexdigest(self) -> str:
        columns = [column.value() for column in self._columns]
        return digests.of_value({"columns": columns, "rows": self.rows, "schema": describe(self._schema)})


def of_table(table: pa.Table) -> str:
    digest = ContentDigest(table.schema)
    for batch in table.to_batches():
        digest.update(batch)
    return digest.hexdigest()


class _Column:
    """The hashes of one column; nested types have columns of their own below."""

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._valid = hashlib.sha256()
        self._lengths = hashlib.sha256()
        self._values = hashlib.sha256()
        self._children: list[_Column] = []
        if pa.types.is_list(type_) or pa.types.is_large_list(type_):
            self._children = [_Column(type_.value_type)]
        elif pa.types.is_struct(type_):
            self._children = [_Column(type_.field(i).type) for i in range(type_.num_fields)]
        elif not (
            _is_text(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_)
        ):
            raise TypeError(f"no content digest is defined for columns of type {type_}")

    def update(self, array: pa.Array) -> None:
        self._valid.update(_numbers(array.is_valid(), np.uint8))
        if pa.types.is_struct(self._type):
            for child, part in zip(self._children, array.flatten(), strict=True):
                child.update(part)
        elif self._children:
            self._lengths.update(_numbers(pc.list_value_length(array).fill_null(0), np.int64))
            self._children[0].update(array.flatten())
        elif _is_text(self._type):
            self._lengths.update(_numbers(pc.binary_length(array).fill_null(0), np.int64))
            self._values.update(_text_bytes(array))
        else:
            present = array.drop_null()
            self._values.update(np.ascontiguousarray(present.to_numpy(zero_copy_only=False)).tobytes())

    def value(self) -> list[Any]:
        own = [self._valid.hexdigest(), self._lengths.hexdigest(), self._values.hexdigest()]
        return [own, [child.value() for child in self._children]]


def _is_text(type_: pa.DataType) -> bool:
    return any(
        is_a(type_)
        for is_a in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _numbers(array: pa.Array, dtype: Any) -> bytes:
    return np.ascontiguousarray(array.to_numpy(zero_copy_only=False), dtype=dtype).tobytes()


def _text_bytes(array: pa.Array) -> memoryview:
    """The bytes of all cells of a text or binary array, one after the other, without copying them cell by cell."""
    array = array.drop_null()
    wide = array.type in (pa.large_string(), pa.large_binary())
    _, offsets_buffer, data = array.buffers()
    if len(array) == 0 or data is None:
        return memoryview(b"")
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64 if wide else np.int32)
    first, last = int(offsets[array.offset]), int(offsets[array.offset + len(array)])
    return memoryview(data)[first:last]
