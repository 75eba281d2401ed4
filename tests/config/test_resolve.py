"""Where the values of a run come from, and in which order one source wins over another."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from relax_core.algorithms import table
from relax_core.config import flat, recipes
from relax_core.config.models import AlgorithmConfig, RunConfig
from relax_core.config.resolve import SCALARS, Resolved, resolve
from relax_core.errors import ConfigError


def resolved(
    settings: str = "", scalars: dict | None = None, environ: dict | None = None, recipe: str = "tiny"
) -> Resolved:
    return resolve("rloo", recipe, settings, scalars, environ or {})


def test_every_shipped_recipe_resolves_without_a_violation() -> None:
    for name in recipes.names():
        for algorithm in recipes.algorithms():
            assert resolve(algorithm, name, environ={}).violations == ()


def test_precedence_scalars_then_set_then_environment_then_recipe_then_block_then_default(tmp_path: Path) -> None:
    """One key set in every place; the places are taken away one by one, the strongest first."""
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(yaml.safe_dump({"rollout": {"num_rollout": 4}}))
    scalars, settings, environ = {"num_rollout": 1}, '{"rollout.num_rollout": 2}', {"NUM_ROLLOUT": "3"}
    cases = [
        (resolved(settings, scalars, environ, str(recipe)), 1, "--num_rollout"),
        (resolved(settings, {}, environ, str(recipe)), 2, "--set"),
        (resolved("", {}, environ, str(recipe)), 3, "environment NUM_ROLLOUT"),
        (resolved("", {}, {}, str(recipe)), 4, f"recipe {recipe}"),
    ]
    for found, value, origin in cases:
        assert found.config.rollout.num_rollout == value
        assert found.origins["rollout.num_rollout"] == origin
    assert cases[0][0].origins["algorithm.advantage_estimator"] == "algorithms/rloo.yaml"
    assert cases[0][0].origins["optimizer.adam_eps"] == "default"


def test_minus_one_and_the_empty_text_mean_as_the_recipe_says() -> None:
    plain, asked = (
        resolved(),
        resolved("", {name: "" if name in ("data", "eval_data", "base_model") else -1 for name in SCALARS}),
    )
    assert asked.config == plain.config
    assert asked.origins == plain.origins


def test_set_takes_dotted_keys_and_nested_objects_alike() -> None:
    assert resolved('{"optimizer.lr": 0.5}').config == resolved('{"optimizer": {"lr": 0.5}}').config


def test_a_mapping_that_is_a_value_stays_whole() -> None:
    found = resolved('{"rollout.chat_template": {"enable_thinking": false, "more": "a"}}')
    assert found.config.rollout.chat_template == {"enable_thinking": False, "more": "a"}


def test_unknown_keys_are_refused_with_the_nearest_one(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("optimizer: {lrr: 1.0}\nrolout: {num_rollout: 3}\n")
    found = resolved('{"optimizer.clip": 1}', recipe=str(recipe)).violations
    assert f"optimizer.lrr (recipe {recipe}): there is no such key; did you mean optimizer.lr?" in found
    assert any(v.startswith("rolout.num_rollout") and "rollout.num_rollout?" in v for v in found)
    assert any(v.startswith("optimizer.clip (--set)") for v in found)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    found = resolved(
        '{"seed": "x", "optimizer.lr": -1, "rollout.temperature": 0, "nope": 1}',
        {"n_samples_per_prompt": 1},
        {"NUM_ROLLOUT": "many", "MODEL_DIR": "/no/such/folder", "ADVANTAGE_ESTIMATOR": "ppo"},
    ).violations
    for part in (
        "seed='x'",
        "optimizer.lr=-1",
        "rollout.temperature=0.0",
        "nope (--set)",
        "n_samples_per_prompt=1",
        "NUM_ROLLOUT=many",
    ):
        assert any(part in v for v in found), (part, found)
    assert any(v.startswith("MODEL_DIR=/no/such/folder (base.model)") for v in found)
    assert any("ADVANTAGE_ESTIMATOR=ppo" in v and "workflows/ppo.py" in v for v in found)


@pytest.mark.parametrize("settings", ["{", "[1]", '"text"', "3"])
def test_set_that_is_no_json_object_is_refused(settings: str) -> None:
    (violation,) = resolved(settings).violations
    assert violation.startswith(f"--set {settings}: not ") and "optimizer.lr" in violation


def test_a_recipe_that_does_not_exist_names_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"recipe tinny: there is no such recipe; choose from .*tiny"):
        resolved(recipe="tinny")
    with pytest.raises(ConfigError, match=r"recipe nowhere/x\.yaml: there is no such file"):
        resolved(recipe="nowhere/x.yaml")


def test_a_recipe_that_is_no_mapping_or_no_yaml_is_refused(tmp_path: Path) -> None:
    for text, message in (("- 1\n", "holds a list"), ("a: [1\n", "not valid YAML")):
        path = tmp_path / "bad.yaml"
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            resolved(recipe=str(path))


def test_the_resolved_configuration_is_a_recipe_that_resolves_to_itself(tmp_path: Path) -> None:
    first = resolved('{"optimizer.lr": 0.25, "evaluation.eval_interval": 7}', {"seed": 3})
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(first.config.model_dump(mode="json")))
    second = resolved(recipe=str(path))
    assert second.violations == ()
    assert second.config == first.config
    assert second.identity() == first.identity()


def test_a_recipe_of_another_algorithm_keeps_everything_but_its_block(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("algorithm: {advantage_estimator: grpo, eps_clip: 0.3}\noptimizer: {lr: 0.5}\n")
    found = resolved(recipe=str(path))
    assert found.violations == ()
    assert (found.config.algorithm.advantage_estimator, found.config.algorithm.eps_clip) == ("rloo", 0.2)
    assert found.config.optimizer.lr == 0.5


def test_a_recipe_adjusts_a_block_for_its_algorithm_only(tmp_path: Path) -> None:
    path = tmp_path / "adjusting.yaml"
    path.write_text("algorithms: {rloo: {entropy_coef: 0.5}}\n")
    assert resolved(recipe=str(path)).config.algorithm.entropy_coef == 0.5
    path.write_text("algorithms: {rlooo: {entropy_coef: 0.5}}\n")
    (violation,) = resolved(recipe=str(path)).violations
    assert violation.startswith("algorithms.rlooo")


def test_model_dir_and_data_dir_name_the_thing_or_a_folder_that_holds_it(tmp_path: Path) -> None:
    model, data = tmp_path / "models" / "mine", tmp_path / "data" / "train.jsonl"
    model.mkdir(parents=True)
    data.parent.mkdir()
    (model / "config.json").write_text("{}")
    data.write_text("{}")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("base: {model: hub/mine}\ndata: {source: elsewhere/train.jsonl}\n")
    for model_dir, data_dir in ((model, data), (model.parent, data.parent)):
        found = resolved(environ={"MODEL_DIR": str(model_dir), "DATA_DIR": str(data_dir)}, recipe=str(recipe))
        assert (found.config.base.model, found.config.data.source) == (str(model), str(data))
        assert found.origins["base.model"] == "environment MODEL_DIR"


def test_identity_holds_what_is_computed_and_not_where_or_how() -> None:
    base = resolved().identity()
    same = resolved(
        '{"steps_per_node": 5, "tracking.uri": "none", "checkpoint.save_interval": 3, "description": "x"}'
    ).identity()
    assert same == base
    for settings in ('{"seed": 1}', '{"optimizer.lr": 0.125}', '{"resources.threads": 1}', '{"rollout.top_k": 3}'):
        assert resolved(settings).identity() != base


def test_the_defaults_of_an_algorithms_block_are_those_of_the_table() -> None:
    block = AlgorithmConfig()
    for key, value in table.DEFAULTS.items():
        if key not in ("reduction", "normalize_advantages"):  # unset: each estimator has its own
            assert getattr(block, key) == value, key
    assert set(AlgorithmConfig.model_fields) == {*table.DEFAULTS, "advantage_estimator"}


def test_every_key_has_a_description_or_a_name_that_needs_none() -> None:
    bare = {key for key, field in flat.fields().items() if not field.description}
    assert bare <= {f"optimizer.{k}" for k in ("adam_beta1", "adam_beta2", "adam_eps")} | {
        "evaluation.eval_top_p",
        "evaluation.eval_top_k",
    }


def test_flatten_and_nest_are_inverse() -> None:
    tree = RunConfig().model_dump(mode="json")
    assert flat.nest(flat.flatten(tree)) == tree
