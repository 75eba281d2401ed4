"""From a source to a dataset: the whole way, the cache, the lineage record, and the errors."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relax_core import paths
from relax_core.data import prepare as module
from relax_core.data.prepare import DataPlan, open_dataset, plan_data, prepare
from relax_core.errors import DataError, IntegrityError
from relax_core.refs import DatasetRef

TEMPLATE = "{question}\nPut your final answer within \\boxed{}."
ARGUMENTS: dict[str, Any] = {"prompt_template": TEMPLATE, "seed": 0, "eval_share": 0.25, "eval_rows": None}


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RELAX_ARTIFACTS", str(tmp_path / "artifacts"))
    monkeypatch.delenv("RLOO_DATA_CACHE_DIR", raising=False)
    return tmp_path / "artifacts"


def plan(source: Any, **changed: Any) -> DataPlan:
    return plan_data(source=str(source), **{**ARGUMENTS, **changed})


def csv(path: Path, problems: list[tuple[str, str]]) -> Path:
    path.write_text("question,answer\n" + "".join(f'"{q}",{a}\n' for q, a in problems))
    return path


def numbered(path: Path, count: int, start: int = 0) -> Path:
    return csv(path, [(f"What is {i} + 1?", str(i + 1)) for i in range(start, start + count)])


# ---- the whole way ----


def test_gsm8k_file(tmp_path: Path) -> None:
    lines = [{"question": f"How many is {i}? ", "answer": f"It is <<{i}={i}>>{i}.\n#### {i}"} for i in range(40)]
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    dataset = open_dataset(prepare(plan(path)))
    rows = [*dataset.train_rows(list(range(dataset.train.num_rows))), *dataset.evaluation_rows]
    assert sorted(row.source_index for row in rows) == list(range(40))
    row = next(row for row in rows if row.source_index == 7)
    assert row.question == "How many is 7?"
    assert row.prompt == "How many is 7?\nPut your final answer within \\boxed{}."
    assert (row.answer, row.solution) == ("7", "It is <<7=7>>7.")
    assert [r.source_index for r in dataset.evaluation_rows] == sorted(r.source_index for r in dataset.evaluation_rows)


def test_braces_in_questions_and_templates_stay(tmp_path: Path) -> None:
    path = csv(tmp_path / "x.csv", [("{question} {0} \\frac{1}{2}?", "1"), ("b", "2")])
    dataset = open_dataset(prepare(plan(path, prompt_template="{} {question} {x}")))
    prompts = [row.prompt for row in (*dataset.train_rows([0]), *dataset.evaluation_rows)]
    assert sorted(prompts) == ["{} b {x}", "{} {question} {0} \\frac{1}{2}? {x}"]


def test_s23_through_the_store(tmp_path: Path) -> None:
    values = ["7", "8", '"\\\\frac{1}{2}"', "0.5", "null", "1234567890123456789012345678901234567890", '"007"']
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(f'{{"question": "q{i}", "answer": {value}}}' for i, value in enumerate(values)))
    dataset = open_dataset(prepare(plan(path)))
    assert dataset.train.schema.field("answer").type == pa.string()
    stored = {
        r.source_index: r.answer
        for r in (*dataset.train_rows(list(range(dataset.train.num_rows))), *dataset.evaluation_rows)
    }
    assert stored == {
        0: "7",
        1: "8",
        2: "\\frac{1}{2}",
        3: "0.5",
        5: "1234567890123456789012345678901234567890",
        6: "007",
    }
    rule = next(r for r in dataset.manifest["derivation"]["rules"]["train"] if r["name"] == "missing_answer")
    assert rule["dropped_reasons"] == {"no answer": 1}


def test_arithmetic() -> None:
    made = plan("arithmetic", arithmetic_levels=(1, 2), arithmetic_count=60)
    dataset = open_dataset(prepare(made))
    assert dataset.train.num_rows + dataset.evaluation.num_rows == 60
    assert {row.template for row in dataset.evaluation_rows} > set()
    assert plan("arithmetic", arithmetic_levels=(1, 2), arithmetic_count=60, seed=1).key != made.key


def test_evaluation_data_of_its_own(tmp_path: Path) -> None:
    train, evaluation = numbered(tmp_path / "t.csv", 10), numbered(tmp_path / "e.csv", 5, start=7)
    dataset = open_dataset(prepare(plan(train, eval_data=str(evaluation), eval_rows=2)))
    assert dataset.train["source_index"].to_pylist() == list(range(7))  # 7, 8 and 9 are in the evaluation data
    assert dataset.evaluation.num_rows == 2
    rules = dataset.manifest["derivation"]["rules"]
    assert next(r for r in rules["train"] if r["name"] == "in_evaluation")["dropped"] == 3
    assert next(r for r in rules["eval"] if r["name"] == "eval_rows")["dropped"] == 3
    sources = dataset.manifest["derivation"]["sources"]
    assert [(s["side"], s["name"], s["rows"]) for s in sources] == [("train", "t.csv", 10), ("eval", "e.csv", 5)]


def test_the_share_is_ignored_beside_evaluation_data(tmp_path: Path) -> None:
    train, evaluation = numbered(tmp_path / "t.csv", 10), numbered(tmp_path / "e.csv", 5, start=20)
    one, two = (plan(train, eval_data=str(evaluation), eval_share=share) for share in (0.1, 0.2))
    assert one.key == two.key


@pytest.mark.parametrize("rows", [10, 3])
def test_s25_every_evaluation_row_is_there(tmp_path: Path, rows: int) -> None:
    train, evaluation = numbered(tmp_path / "t.csv", 4), numbered(tmp_path / "e.csv", rows, start=50)
    dataset = open_dataset(prepare(plan(train, eval_data=str(evaluation))))
    assert [row.source_index for row in dataset.evaluation_rows] == list(range(rows))


def test_the_manifest_tells_where_the_dataset_is_from(tmp_path: Path) -> None:
    path = numbered(tmp_path / "x.csv", 20)
    made = plan(path)
    manifest = open_dataset(prepare(made)).manifest
    derivation = manifest["derivation"]
    assert derivation["key"] == made.key
    assert derivation["sources"][0]["digest"] == made.identity.train.digest
    assert derivation["sources"][0]["form"] == "plain"
    assert derivation["code"] == made.identity.code
    assert derivation["parameters"] == {**ARGUMENTS}
    assert [(r["name"], r["version"]) for r in derivation["rules"]["train"]] == [
        (r.name, r.version) for r in module.RULES
    ]
    assert str(tmp_path) not in json.dumps(manifest)  # no path of a machine


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    prepare(plan(numbered(tmp_path / "x.csv", 20)), progress=lambda what, rows: told.append((what, rows)))
    assert told == [
        ("cleaning the training data", 20),
        ("writing the training side", 20),
        ("writing the evaluation side", 20),
    ]


# ---- identity and cache ----


def test_the_second_time_it_comes_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = numbered(tmp_path / "x.csv", 20)
    ref = prepare(plan(path))
    monkeypatch.setattr(module, "_Making", None)
    assert prepare(plan(path)) == ref


def test_the_path_is_no_part_of_the_identity(tmp_path: Path) -> None:
    path = numbered(tmp_path / "x.csv", 20)
    (tmp_path / "sub").mkdir()
    copy = shutil.copy(path, tmp_path / "sub" / "y.csv")
    assert plan(path).identity == plan(copy).identity


def test_a_changed_file_at_the_same_path_is_another_dataset(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    before = prepare(plan(numbered(path, 20)))
    assert prepare(plan(numbered(path, 21))) != before


@pytest.mark.parametrize(
    "changed",
    [{"prompt_template": "{question}"}, {"seed": 1}, {"eval_share": 0.5}, {"eval_rows": 2}],
    ids=lambda c: next(iter(c)),
)
def test_a_changed_parameter_is_another_dataset(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = numbered(tmp_path / "x.csv", 20)
    assert plan(path, **changed).key != plan(path).key
    assert prepare(plan(path, **changed)) != prepare(plan(path))


def test_a_changed_rule_version_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = numbered(tmp_path / "x.csv", 20)
    before = plan(path).key
    from dataclasses import replace

    monkeypatch.setattr(module, "RULES", (*module.RULES[:-1], replace(module.RULES[-1], version=99)))
    assert plan(path).key != before


def test_a_damaged_dataset_is_made_anew(tmp_path: Path) -> None:
    made = plan(numbered(tmp_path / "x.csv", 20))
    ref = prepare(made)
    shard = paths.datasets() / ref.digest / "train-00000.parquet"
    shard.write_bytes(shard.read_bytes()[:50])
    with pytest.raises(IntegrityError, match="the shard has 50 bytes"):
        open_dataset(ref)
    assert prepare(made) == ref
    assert open_dataset(ref).train.num_rows > 0


def test_the_cache_folder_can_be_moved(tmp_path: Path, artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLOO_DATA_CACHE_DIR", str(tmp_path / "moved"))
    ref = prepare(plan(numbered(tmp_path / "x.csv", 20)))
    assert (tmp_path / "moved" / ref.digest / "manifest.json").exists()
    assert not artifacts.exists()


def test_a_plan_of_other_code_is_refused(tmp_path: Path) -> None:
    made = plan(numbered(tmp_path / "x.csv", 20))
    stale = made.model_copy(update={"identity": made.identity.model_copy(update={"code": "0" * 64})})
    with pytest.raises(DataError, match="make the plan again"):
        prepare(stale)


def test_a_plan_survives_json(tmp_path: Path) -> None:
    made = plan(numbered(tmp_path / "x.csv", 20))
    again = DataPlan.model_validate_json(made.model_dump_json())
    assert again == made
    assert again.key == made.key


SCRIPT = """
import sys
from relax_core.data import prepare as m
plan = m.plan_data(source=sys.argv[1], prompt_template="{question}", seed=0, eval_share=0.3, eval_rows=None)
hit = m.Store(m.paths.datasets()).lookup(plan.key) is not None
print(m.prepare(plan).digest, "hit" if hit else "miss")
"""


def start(source: Path, root: Path = paths.PROJECT) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(source)], stdout=subprocess.PIPE, text=True, env=env, cwd=root
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    digest, hit = out.split()
    return digest, hit


def test_s28_changed_code_is_a_miss_and_nothing_changed_is_a_hit(tmp_path: Path) -> None:
    """The cleaning step on 3 rows, from a copy of the code in which one rule is then edited."""
    root = tmp_path / "checkout"
    shutil.copytree(paths.PROJECT / "relax_core", root / "relax_core", ignore=shutil.ignore_patterns("__pycache__"))
    path = csv(tmp_path / "x.csv", [("a", "5 apples"), ("b", "6 apples"), ("c", "7 apples")])
    first, hit = finish(start(path, root))
    assert hit == "miss"
    assert finish(start(path, root)) == (first, "hit")

    (root / "relax_core" / "report").mkdir(exist_ok=True)
    (root / "relax_core" / "report" / "page.py").write_text("# not a part of what makes a dataset\n")
    assert finish(start(path, root)) == (first, "hit")

    rules = root / "relax_core" / "data" / "cleaning.py"
    text = rules.read_text()
    edited = text.replace('    return _LINE_EDGES.sub("", text).strip()', "    return text").replace(
        "        return text.strip()\n", '        return text.strip().removesuffix(" apples")\n'
    )
    assert edited != text
    rules.write_text(edited)
    second, hit = finish(start(path, root))
    assert (second != first, hit) == (True, "miss")
    assert finish(start(path, root)) == (second, "hit")

    records = [json.loads(p.read_text()) for p in (paths.datasets() / "index").glob("*.json")]
    assert {record["digest"] for record in records} == {first, second}
    assert len({record["derivation"]["code"] for record in records}) == 2


@pytest.mark.slow
def test_processes_that_clean_at_once_make_one_dataset(tmp_path: Path) -> None:
    path = numbered(tmp_path / "x.csv", 2000)
    running = [start(path) for _ in range(4)]
    assert len({finish(process)[0] for process in running}) == 1
    store = module.Store(paths.datasets())
    (ref,) = store.datasets()
    assert store.open(ref).train.num_rows + store.open(ref).evaluation.num_rows == 2000
    assert {p.name for p in store.root.iterdir()} == {ref.digest, "index", ".lock"}


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_killed_writer_leaves_a_store_that_verifies(tmp_path: Path, after: int) -> None:
    """Killed at a sync of the manifest (1), of a shard (3), or of the record, when the dataset is in place (5)."""
    path = numbered(tmp_path / "x.csv", 50)
    killing = (
        "import os, signal\nfrom relax_core import files\nsynced, real = 0, files._sync_file\n"
        "def sync(path):\n    global synced\n    synced += 1\n"
        f"    os.kill(os.getpid(), signal.SIGKILL) if synced == {after} else real(path)\n"
        "files._sync_file = sync\n"
    )
    env = {**os.environ, "PYTHONPATH": str(paths.PROJECT)}
    killed = subprocess.run([sys.executable, "-c", killing + SCRIPT, str(path)], env=env, cwd=paths.PROJECT)
    assert killed.returncode == -9
    store = module.Store(paths.datasets())
    assert all(store.open(ref) for ref in store.datasets())  # whatever shows is whole
    ref, _ = finish(start(path))
    assert store.open(DatasetRef(digest=ref)).train.num_rows > 0


# ---- errors ----


def test_everything_wrong_is_said_at_once(tmp_path: Path, artifacts: Path) -> None:
    with pytest.raises(DataError) as caught:
        plan(tmp_path / "no.csv", eval_data=str(tmp_path), prompt_template="no place", eval_rows=0)
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert "no.csv: there is no such file" in str(caught.value)
    assert "must hold {question} exactly once" in str(caught.value)
    assert not artifacts.exists()


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
def test_a_share_outside_its_range(tmp_path: Path, share: float) -> None:
    with pytest.raises(DataError, match="must be above 0 and below 1"):
        plan(numbered(tmp_path / "x.csv", 3), eval_share=share)


def test_no_usable_answers(tmp_path: Path, artifacts: Path) -> None:
    path = csv(tmp_path / "x.csv", [("a", ""), ("b", "nan"), ("", "1")])
    with pytest.raises(
        DataError, match=r"no usable answers. 3 rows read; empty_question dropped 1 .*; missing_answer dropped 2"
    ):
        prepare(plan(path))
    assert not list(artifacts.rglob("*.parquet"))
    assert not list(artifacts.rglob("*.tmp"))


def test_only_contradictions(tmp_path: Path) -> None:
    path = csv(tmp_path / "x.csv", [("a", "1"), ("a", "2")])
    with pytest.raises(DataError, match=r"no usable answers. 2 rows read; conflicting_answers dropped 2"):
        prepare(plan(path))


def test_s25_what_emptied_a_side_is_named(tmp_path: Path) -> None:
    train, unusable = numbered(tmp_path / "t.csv", 3), csv(tmp_path / "e.csv", [("a", "")])
    with pytest.raises(DataError, match=r"e.csv: no usable answers. 1 rows read; missing_answer dropped 1"):
        prepare(plan(train, eval_data=str(unusable)))
    with pytest.raises(DataError, match=r"the training side is empty: every prompt .* in_evaluation dropped 3"):
        prepare(plan(train, eval_data=str(numbered(tmp_path / "same.csv", 3))))
    with pytest.raises(
        DataError, match=r"the training side is empty: eval_share 0.25 and eval_rows None took all prompts"
    ):
        prepare(plan(numbered(tmp_path / "one.csv", 1)))


def test_large_row_groups_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"question": [f"q{i}" for i in range(3000)], "answer": pa.array(range(3000))})
    pq.write_table(table, path)
    dataset = open_dataset(prepare(plan(path)))
    assert dataset.train.num_rows + dataset.evaluation.num_rows == 3000
