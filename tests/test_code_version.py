"""The code version follows imports, and nothing else."""

import sys
import time
from pathlib import Path

import pytest

from relax_core import code_version as module
from relax_core.code_version import code_version, modules_of

FILES = {
    "pkg/__init__.py": "",
    "pkg/a/__init__.py": "from pkg.a import first\n",
    "pkg/a/first.py": "",
    "pkg/a/made.py": "def f():\n    from pkg.b import helper\n    return helper\n",
    "pkg/b/__init__.py": "",
    "pkg/b/helper.py": "import json\nimport pkg.c\nfrom . import sibling as s\nfrom ..d import value\n",
    "pkg/b/sibling.py": "try:\n    import pkg.e\nexcept ImportError:\n    from pkg import f\n",
    "pkg/b/unused.py": "",
    "pkg/c.py": "import pkg.a.made  # a circle\n",
    "pkg/d.py": "value = 1\n",
    "pkg/e.py": "match 1:\n    case 1:\n        from pkg.not_yet import x\n",
    "pkg/f.py": "",
    "pkg/g.py": "",
    "other/__init__.py": "",
}
FOLLOWED = {"pkg/__init__.py", "pkg/a/__init__.py", "pkg/a/first.py", "pkg/a/made.py", "pkg/b/__init__.py"}
FOLLOWED |= {"pkg/b/helper.py", "pkg/b/sibling.py", "pkg/c.py", "pkg/d.py", "pkg/e.py", "pkg/f.py"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def version(tree: Path) -> str:
    module._code_version.cache_clear()
    return code_version(["pkg.a.made"], root=tree, package="pkg")


@pytest.mark.parametrize("name", sorted(FILES))
def test_editing_a_module_changes_the_version_if_and_only_if_it_is_followed(tree: Path, name: str) -> None:
    before = version(tree)
    (tree / name).write_text(FILES[name] + "# edited\n")
    assert (version(tree) != before) == (name in FOLLOWED)


def test_a_module_that_appears_changes_the_version(tree: Path) -> None:
    before = version(tree)
    (tree / "pkg/not_yet.py").write_text("x = 1\n")
    assert version(tree) != before


def test_the_folder_is_no_part_of_the_version(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "moved"
    before = version(tree)
    tree.rename(elsewhere)
    assert version(elsewhere) == before


def test_the_names_are_those_of_the_modules(tree: Path) -> None:
    assert modules_of(["pkg.g"], root=tree, package="pkg") == ("pkg", "pkg.g")


def test_it_is_remembered_in_the_process(tree: Path) -> None:
    before = version(tree)
    (tree / "pkg/d.py").write_text("value = 2\n")
    assert code_version(["pkg.a.made"], root=tree, package="pkg") == before


def test_of_this_project_it_is_quick_and_imports_nothing() -> None:
    loaded = set(sys.modules)
    module._code_version.cache_clear()
    start = time.process_time()
    code_version(["relax_core.data.prepare"])
    assert time.process_time() - start < 0.5  # 0.03 s on an idle machine
    assert set(sys.modules) == loaded


def test_the_data_modules_that_make_no_dataset_are_not_in_the_version_of_datasets() -> None:
    followed = modules_of(["relax_core.data.prepare"])
    assert "relax_core.data.cleaning" in followed
    assert "relax_core.rewards.equality" in followed  # it decides what can be verified
    assert "relax_core.data.order" not in followed
    assert modules_of(["relax_core.data.arithmetic"]) == (
        "relax_core",
        "relax_core.data",
        "relax_core.data.arithmetic",
        "relax_core.errors",
    )
