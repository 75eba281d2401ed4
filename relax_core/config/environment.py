"""The environment names of the source system, as configuration. Only `plan` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_WHOLE_NUMBERS = {
    "NUM_ROLLOUT": "rollout.num_rollout",
    "ROLLOUT_BATCH_SIZE": "rollout.rollout_batch_size",
    "N_SAMPLES": "rollout.n_samples_per_prompt",
    "GLOBAL_BATCH_SIZE": "training.global_batch_size",
}


def read(
    environ: Mapping[str, str], recipe: Mapping[str, Any], algorithm: str
) -> tuple[dict[str, tuple[Any, str]], list[str]]:
    """Dotted keys that the environment sets, each with the variable's name, and what is wrong with the rest.

    `recipe` is the flat configuration so far: MODEL_DIR and DATA_DIR may be folders that hold what it names.
    """
    values: dict[str, tuple[Any, str]] = {}
    wrong: list[str] = []
    for name, key in _WHOLE_NUMBERS.items():
        text = environ.get(name, "")
        if not text:
            continue
        try:
            values[key] = (int(text), name)
        except ValueError:
            wrong.append(f"{name}={text} ({key}): not a whole number; give one or unset {name}")
    for name, key, place in (("MODEL_DIR", "base.model", _model_in), ("DATA_DIR", "data.source", _data_in)):
        text = environ.get(name, "")
        if not text:
            continue
        found = place(Path(text), str(recipe.get(key, "")))
        if found is None:
            what = "a model folder (config.json)" if name == "MODEL_DIR" else "a file"
            wrong.append(
                f"{name}={text} ({key}): neither {what} nor a folder that holds {recipe.get(key) or 'one'}; "
                f"correct {name} or unset it"
            )
        else:
            values[key] = (str(found), name)
    estimator = environ.get("ADVANTAGE_ESTIMATOR", "")
    if estimator and estimator != algorithm:
        wrong.append(
            f"ADVANTAGE_ESTIMATOR={estimator}: this workflow runs {algorithm}, whose stages are its own; "
            f"run `pyflyte run workflows/{estimator}.py {estimator}` where that exists, or unset ADVANTAGE_ESTIMATOR"
        )
    return values, wrong


def _model_in(folder: Path, name: str) -> Path | None:
    for place in (folder, folder / Path(name).name):
        if (place / "config.json").is_file():
            return place
    return None


def _data_in(place: Path, name: str) -> Path | None:
    if place.is_file():
        return place
    inside = place / Path(name).name
    return inside if inside.is_file() else None
