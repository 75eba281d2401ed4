"""From a recipe, an algorithm's block, the environment, --set and the typed scalars to one checked configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from relax_core.config import environment, flat, recipes, rules
from relax_core.config.models import NOT_IDENTITY, RunConfig

# The scalars that people type, and the keys that they set. "" and -1 mean: as the recipe says.
SCALARS = {
    "data": "data.source",
    "eval_data": "evaluation.eval_data",
    "base_model": "base.model",
    "num_rollout": "rollout.num_rollout",
    "rollout_batch_size": "rollout.rollout_batch_size",
    "n_samples_per_prompt": "rollout.n_samples_per_prompt",
    "global_batch_size": "training.global_batch_size",
    "seed": "seed",
}

_SET_EXAMPLE = "write for example '{\"optimizer.lr\": 1e-3}'"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration, where each of its values came from, what is worth a note, and what is wrong with it."""

    name: str  # algorithm:recipe
    config: RunConfig
    origins: dict[str, str]
    notes: tuple[str, ...]
    violations: tuple[str, ...]

    def identity(self) -> dict[str, Any]:
        """The part of the configuration that says what is computed (without NOT_IDENTITY)."""
        everything = flat.flatten(self.config.model_dump(mode="json"))
        return {k: v for k, v in everything.items() if not any(k == n or k.startswith(f"{n}.") for n in NOT_IDENTITY)}


@dataclass(slots=True)
class _Layers:
    """Values by dotted key; a later layer wins. Unknown keys are collected, not dropped."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def add(self, flat_values: Mapping[str, Any], origin: str) -> None:
        for key, value in flat_values.items():
            if key in flat.fields():
                self.values[key] = value
                self.origins[key] = origin
            else:
                self.wrong.append(flat.unknown_key(key, origin))


def resolve(
    algorithm: str,
    recipe: str,
    settings: str | Mapping[str, Any] = "",
    scalars: Mapping[str, str | int] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Resolved:
    """One configuration out of all its sources; precedence: scalars, --set, environment, recipe, block, defaults.

    What is wrong with it (unknown keys, wrong types, broken rules) is collected in `violations`, with the configuration as far
    as it can be read, so that the caller can look for more before it says everything at once. ConfigError: a recipe that
    does not exist or cannot be read.
    """
    layers = _Layers()
    layers.add({key: f.get_default(call_default_factory=True) for key, f in flat.fields().items()}, "default")
    layers.add({f"algorithm.{k}": v for k, v in recipes.block(algorithm).items()}, f"algorithms/{algorithm}.yaml")
    _add_recipe(layers, algorithm, recipe)
    values, wrong = environment.read(os.environ if environ is None else environ, layers.values, algorithm)
    layers.wrong += wrong
    for key, (value, name) in values.items():
        layers.add({key: value}, f"environment {name}")
    _add_settings(layers, settings)
    for name, scalar in (scalars or {}).items():
        if scalar not in ("", -1):
            layers.add({SCALARS[name]: scalar}, f"--{name}")
    return _check(layers, algorithm, f"{algorithm}:{Path(recipe).stem}")


def _add_recipe(layers: _Layers, algorithm: str, recipe: str) -> None:
    tree = recipes.load(recipe)
    origin = f"recipe {recipe}"
    adjusted = tree.pop("algorithms", None) or {}
    own = tree.get("algorithm")
    if isinstance(own, Mapping) and own.get("advantage_estimator", algorithm) != algorithm:
        del tree["algorithm"]  # switching the algorithm is replacing its block
    layers.add(flat.flatten(tree), origin)
    layers.add({f"algorithm.{k}": v for k, v in (adjusted.get(algorithm) or {}).items()}, origin)
    for name in set(adjusted) - set(recipes.algorithms()):
        layers.wrong.append(
            f"algorithms.{name} ({origin}): no such algorithm; choose from {', '.join(recipes.algorithms())}"
        )


def _add_settings(layers: _Layers, settings: str | Mapping[str, Any]) -> None:
    tree: Any = settings
    if isinstance(settings, str):
        if not settings.strip():
            return
        try:
            tree = json.loads(settings)
        except json.JSONDecodeError as error:
            layers.wrong.append(f"--set {settings}: not JSON ({error}); {_SET_EXAMPLE}")
            return
    if not isinstance(tree, Mapping):
        layers.wrong.append(f"--set {settings}: not a JSON object; {_SET_EXAMPLE}")
        return
    layers.add(flat.flatten(tree), "--set")


def _check(layers: _Layers, algorithm: str, name: str) -> Resolved:
    wrong = list(layers.wrong)
    if layers.values["algorithm.advantage_estimator"] != algorithm:
        wrong.append(
            f"algorithm.advantage_estimator={layers.values['algorithm.advantage_estimator']} "
            f"({layers.origins['algorithm.advantage_estimator']}): this workflow runs {algorithm}; leave the key out, "
            f"or run the workflow of that algorithm"
        )
        layers.values["algorithm.advantage_estimator"] = algorithm
    for key, text in _type_errors(layers):
        wrong.append(text)
        layers.values[key] = flat.fields()[key].get_default(call_default_factory=True)
    config = RunConfig.model_validate(flat.nest(layers.values))
    config, filled = rules.fill_defaults(config)
    layers.origins.update(filled)
    violations, notes = rules.check(config)
    wrong += [f"{v} (from {_origins(layers, v)})" for v in violations]
    return Resolved(name, config, layers.origins, tuple(notes), tuple(wrong))


def _type_errors(layers: _Layers) -> list[tuple[str, str]]:
    """Keys whose values have the wrong type or lie outside their range, each with a message."""
    try:
        RunConfig.model_validate(flat.nest(layers.values), strict=False)
    except ValidationError as error:
        found = {}
        for e in error.errors():
            parts = [str(p) for p in e["loc"]]
            key = next(k for n in range(len(parts), 0, -1) if (k := ".".join(parts[:n])) in flat.fields())
            found[key] = (
                f"{key}={layers.values[key]!r} ({layers.origins[key]}): {e['msg'][:1].lower()}{e['msg'][1:]}; "
                f"give a {flat.type_name(key)}"
            )
        return list(found.items())
    return []


def _origins(layers: _Layers, violation: str) -> str:
    """Where the values of the keys that a message names came from."""
    named = [k for k in flat.fields() if f"{k}=" in violation]
    return ", ".join(f"{k}: {layers.origins[k]}" for k in named)
