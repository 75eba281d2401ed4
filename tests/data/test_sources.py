"""Reading: every format and form, text always, and an error that says where."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relax_core.data import sources
from relax_core.data.schema import RAW
from relax_core.data.sources import ArithmeticSpec, inspect, read, read_unchanged, source_digest
from relax_core.errors import DataError

BIG = "1234567890123456789012345678901234567890"


def rows(path: Path, **kwargs: Any) -> list[dict[str, Any]]:
    spec = inspect(str(path))
    batches = list(read(spec, str(path), **kwargs))
    assert all(batch.schema.equals(RAW) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def answers(path: Path) -> list[str | None]:
    return [row["answer"] for row in rows(path)]


# ---- text, always (S-23, S-24) ----


def test_s23_a_mixed_column_is_text_and_null_is_missing(tmp_path: Path) -> None:
    lines = [
        '{"question": "a", "answer": 7}',
        '{"question": "b", "answer": 8}',
        '{"question": "c", "answer": "\\\\frac{1}{2}"}',
        '{"question": "d", "answer": 0.5}',
        '{"question": "e", "answer": null}',
    ]
    path = write(tmp_path / "x.jsonl", "\n".join(lines))
    assert answers(path) == ["7", "8", "\\frac{1}{2}", "0.5", None]


def test_s24_digits_survive(tmp_path: Path) -> None:
    values = ['"9007199254740993"', "9007199254740993", f'"{BIG}"', BIG, '"007"', "1e3", "7.0", "-0", "true"]
    path = write(
        tmp_path / "x.jsonl", "".join(f'{{"question": "q{i}", "answer": {v}}}\n' for i, v in enumerate(values))
    )
    assert answers(path) == ["9007199254740993", "9007199254740993", BIG, BIG, "007", "1e3", "7.0", "-0", "true"]


def test_s24_digits_survive_in_csv_and_parquet(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", f"question,answer\na,007\nb,{BIG}\nc,9007199254740993\nd,\n")
    assert answers(path) == ["007", BIG, "9007199254740993", None]
    table = pa.table({"question": ["a", "b"], "answer": pa.array([9007199254740993, None], pa.int64())})
    pq.write_table(table, tmp_path / "x.parquet")
    assert answers(tmp_path / "x.parquet") == ["9007199254740993", None]


def test_nan_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", '{"question": "a", "answer": NaN}\n{"question": "b", "answer": Infinity}\n')
    assert answers(path) == [None, "Infinity"]


def test_a_float_column_of_parquet_says_whole_numbers_without_a_point(tmp_path: Path) -> None:
    table = pa.table({"question": list("abcd"), "answer": [7.0, 0.5, float("nan"), -3.0]})
    pq.write_table(table, tmp_path / "x.parquet")
    assert answers(tmp_path / "x.parquet") == ["7", "0.5", None, "-3"]


def test_a_float_that_may_have_lost_digits_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": ["a", "b"], "answer": [1.0, 2.0**53]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"row 2: column 'answer' is of floats .* as text"):
        answers(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        (pa.array(["1", None]).dictionary_encode(), ["1", None]),
        (pa.array(["1", None], pa.large_string()), ["1", None]),
        (pa.array(["1.50", None]).cast(pa.decimal128(5, 2)), ["1.50", None]),
        (pa.array([True, None]), ["true", None]),
        (pa.array([255, None], pa.uint8()), ["255", None]),
    ],
)
def test_types_of_parquet(tmp_path: Path, column: pa.Array, texts: list[str | None]) -> None:
    pq.write_table(pa.table({"question": ["a", "b"], "answer": column}), tmp_path / "x.parquet")
    assert answers(tmp_path / "x.parquet") == texts


def test_pandas_mixed_frame(tmp_path: Path) -> None:
    import pandas as pd

    pd.DataFrame({"question": ["a", "b"], "answer": ["7", None]}).to_parquet(tmp_path / "x.parquet")
    assert answers(tmp_path / "x.parquet") == ["7", None]


# ---- rows ----


def test_the_digest_of_a_row_is_that_of_what_it_says_in_every_format(tmp_path: Path) -> None:
    table = pa.table(
        {"question": ["q, with comma"], "answer": [7], "extra": ["é"], "nothing": pa.nulls(1, pa.string())}
    )
    pq.write_table(table, tmp_path / "x.parquet")
    write(tmp_path / "x.csv", 'extra,question,answer,nothing\né,"q, with comma",7,\n')
    write(tmp_path / "x.jsonl", '{"answer": 7, "question": "q, with comma", "extra": "é"}\n')
    write(tmp_path / "y.jsonl", '{"answer": 7, "question": "q, with comma", "extra": "e"}\n')
    x, y, z, other = (
        rows(tmp_path / name)[0]["source_digest"] for name in ("x.parquet", "x.csv", "x.jsonl", "y.jsonl")
    )
    assert x == y == z != other


def test_order_and_batches(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "question,answer\n" + "".join(f"q{i},{i}\n" for i in range(10)))
    small, large = rows(path, batch_rows=3), rows(path)
    assert small == large
    assert [row["source_index"] for row in large] == list(range(10))
    assert [batch.num_rows for batch in read(inspect(str(path)), str(path), 3)] == [3, 3, 3, 1]


def test_csv_quotes_line_ends_and_mark(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", b'\xef\xbb\xbfquestion,answer\r\n"two\r\nlines, ""quoted""",1\r\n\r\nb,2\r\n')
    assert [(row["question"], row["answer"]) for row in rows(path)] == [('two\r\nlines, "quoted"', "1"), ("b", "2")]


def test_jsonl_mark_and_blank_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.jsonl", b'\xef\xbb\xbf{"question": "a", "answer": "1"}\n\n  \n{"question": "b", "answer": "2"}'
    )
    assert answers(path) == ["1", "2"]


def test_nested_columns_count_in_the_digest_of_a_row(tmp_path: Path) -> None:
    digests = set()
    for image in (b"1", b"2"):
        table = pa.table({"question": ["a"], "answer": ["1"], "images": [[{"bytes": image, "path": None}]]})
        pq.write_table(table, tmp_path / "x.parquet")
        digests.add(rows(tmp_path / "x.parquet")[0]["source_digest"])
    assert len(digests) == 2


# ---- forms ----


@pytest.mark.parametrize(
    ("line", "form", "columns"),
    [
        ({"question": "q", "answer": "w\n#### 4"}, "gsm8k", {"question": "question", "answer": "answer"}),
        ({"question": "q", "answer": "4"}, "plain", {"question": "question", "answer": "answer"}),
        ({"Problem": "q", "Answer": "4", "ID": "1"}, "plain", {"question": "Problem", "answer": "Answer"}),
        (
            {"prompt": "q", "target": 4, "rationale": "w"},
            "plain",
            {"question": "prompt", "answer": "target", "solution": "rationale"},
        ),
        ({"query": "q", "final_answer": "4"}, "plain", {"question": "query", "answer": "final_answer"}),
        ({"problem": "q", "solution": "\\boxed{4}"}, "boxed", {"question": "problem", "solution": "solution"}),
        ({"question": "q", "answer": "4", "prompt": "other"}, "plain", {"question": "question", "answer": "answer"}),
    ],
)
def test_forms(tmp_path: Path, line: dict[str, Any], form: str, columns: dict[str, str]) -> None:
    spec = inspect(str(write(tmp_path / "x.jsonl", json.dumps(line))))
    assert spec.form == form
    assert spec.columns == columns
    assert set(spec.other_columns) == set(line) - set(columns.values())


def test_gsm8k_is_told_by_most_answers(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "question,answer\na,1\nb,use #### marks\nc,3\n")
    assert inspect(str(path)).form == "plain"


def test_columns_of_jsonl_are_those_of_its_first_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", '{"question": "a"}\n{"question": "b", "answer": "2"}\n')
    assert answers(path) == [None, "2"]


# ---- errors ----


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b"", "the file is empty"),
        ("x.jsonl", b"\n\n", "the file holds no rows"),
        ("x.csv", b"question,answer\n", "the file holds no rows"),
        ("x.txt", b"a", r"the ending .txt is not known. Endings read: .parquet, .jsonl, .csv"),
        ("x.json", b"[]", "one object per line"),
        ("noending", b"a", r"the ending \(none\) is not known"),
        (
            "x.csv",
            b"frage,antwort\na,b\n",
            r"columns found \('frage', 'antwort'\) make no known form. Accepted: GSM8K .*plain",
        ),
        ("x.csv", b"question;answer\na;b\n", r"columns found \('question;answer'\)"),
        ("x.csv", b"question,label\na,b\n", r"columns found \('question', 'label'\)"),
        ("x.csv", b"question,answer,answer\na,b,c\n", "names 'answer' twice"),
        ("x.csv", b"question,answer\na,1\nb,2,3\n", "line 3: 3 fields where the header names 2"),
        ("x.csv", b'question,answer\na,1\n"b,2\n', "line 3: not CSV"),
        ("x.csv", b"question,answer\na,\xff\n", "line 2: not UTF-8"),
        ("x.jsonl", b'{"question": "a", "answer": "1"}\n{"question": \n', "line 2: not JSON"),
        ("x.jsonl", b'{"question": "a", "answer": "1"}\n[1]\n', "line 2: not an object"),
        ("x.jsonl", b'{"question": "a", "answer": "\xe9"}\n', "line 1: not UTF-8"),
        ("x.jsonl", b'{"question": "a", "answer": "\\ud83d"}\n', "line 1: an escape that is half a character"),
        ("x.jsonl", b"[" * 100_000, "line 1: not JSON"),
        ("x.parquet", b"PAR1 this is not parquet", "not a readable Parquet file"),
    ],
)
def test_what_cannot_be_used_is_refused_when_it_is_looked_at(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        inspect(str(write(tmp_path / name, content)))


def test_a_file_that_is_not_there_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        inspect(str(tmp_path / "x.csv"))
    with pytest.raises(DataError, match="this is a folder"):
        inspect(str(tmp_path))


def test_a_list_is_no_answer(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", '{"question": "a", "answer": "1"}\n{"question": "b", "answer": ["1", "2"]}\n')
    with pytest.raises(DataError, match=r"line 2: column 'answer' holds \[\"1\", \"2\"\]; it must hold text"):
        rows(path)


def test_a_parquet_file_that_breaks_off(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"question": [f"q{i}" for i in range(5000)], "answer": ["1"] * 5000}), path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="not a readable Parquet file"):
        inspect(str(path))


def test_a_line_that_breaks_beyond_the_sample_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SAMPLE_ROWS", 2)
    path = write(tmp_path / "x.jsonl", '{"question": "a", "answer": "1"}\n' * 3 + "{\n")
    with pytest.raises(DataError, match="line 4: not JSON"):
        rows(path)


# ---- digests ----


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.csv", "question,answer\na,1\n"), write(tmp_path / "b.csv", "question,answer\na,1\n")
    assert source_digest(str(one)) == source_digest(str(two))
    assert inspect(str(one)) == inspect(str(two))
    write(one, "question,answer\na,2\n")
    assert source_digest(str(one)) != source_digest(str(two))


def test_the_digest_of_the_generator_is_of_its_parameters_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ArithmeticSpec(seed=0, levels=[1], count=20)
    assert source_digest("arithmetic", spec) == source_digest("arithmetic", spec)
    assert source_digest("arithmetic", spec) != source_digest("arithmetic", spec.model_copy(update={"count": 21}))
    before = source_digest("arithmetic", spec)
    monkeypatch.setattr(sources, "code_version", lambda modules: "edited")
    assert source_digest("arithmetic", spec) != before


def test_the_generator_as_a_source() -> None:
    spec = inspect("arithmetic", ArithmeticSpec(seed=3, levels=[1, 2], count=20))
    read_rows = [row for batch in read(spec, "arithmetic") for row in batch.to_pylist()]
    assert len(read_rows) == 20
    assert all(row["solution"].endswith(f"\\boxed{{{row['answer']}}}") for row in read_rows)
    assert {row["level"] for row in read_rows} == {"1", "2"}


def test_a_file_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "question,answer\na,1\n")
    spec = inspect(str(path))
    write(path, "question,answer\na,2\n")
    with pytest.raises(DataError, match="no longer what the plan saw"):
        list(read_unchanged(spec, str(path)))


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "question,answer\na,1\nb,2\n")
    batches = read_unchanged(inspect(str(path)), str(path), batch_rows=1)
    next(batches)
    with path.open("a") as file:
        file.write("c,3\n")
    with pytest.raises(DataError, match="changed while it was read"):
        list(batches)
