"""Recipes on disk: `workflows/recipes/NAME.yaml` and the algorithms' blocks beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from relax_core import paths
from relax_core.errors import ConfigError

FOLDER = paths.PROJECT / "workflows" / "recipes"


def names() -> list[str]:
    return sorted(p.stem for p in FOLDER.glob("*.yaml"))


def algorithms() -> list[str]:
    """The algorithms that have a block, and with it a workflow."""
    return sorted(p.stem for p in (FOLDER / "algorithms").glob("*.yaml"))


def block(algorithm: str) -> dict[str, Any]:
    path = FOLDER / "algorithms" / f"{algorithm}.yaml"
    if not path.is_file():
        raise ConfigError(
            [f"algorithm {algorithm}: there is no such algorithm here; choose from {', '.join(algorithms())}"]
        )
    return _load(path)


def find(name: str) -> Path:
    """A recipe by its name, or a YAML file by its path."""
    path = FOLDER / f"{name}.yaml"
    if path.is_file() and "/" not in name:
        return path
    if name.endswith((".yaml", ".yml")):
        if Path(name).is_file():
            return Path(name)
        raise ConfigError([f"recipe {name}: there is no such file; give a YAML file or one of {', '.join(names())}"])
    raise ConfigError(
        [f"recipe {name}: there is no such recipe; choose from {', '.join(names())}, or give a YAML file"]
    )


def load(name: str) -> dict[str, Any]:
    return _load(find(name))


def _load(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([f"recipe {path}: not valid YAML ({error}); mend the file"]) from error
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        raise ConfigError([f"recipe {path}: holds a {type(tree).__name__}; a recipe is a mapping of keys to values"])
    return dict(tree)
