"""Base models: the built-in `tiny`, or any Llama/Qwen3-style Hugging Face folder. Planned, then made once and stored."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from relax_core import digests
from relax_core.code_version import code_version
from relax_core.config.models import RunConfig, WarmupConfig
from relax_core.errors import ModelError
from relax_core.models import store
from relax_core.refs import ModelRef
from relax_core.training import architecture

BUILT_IN = ("tiny",)
_WARMUP_PROBLEMS, _CHECK_PROBLEMS = 4000, 200  # at most; fewer where there are no more
_SUFFIXES = (".json", ".safetensors", ".model", ".txt", ".jinja")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


class BasePlan(BaseModel):
    """What base model is wanted, wherever it lies."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str  # a built-in name, or "folder"
    content: str  # digest of the folder's files, or of the code that builds a built-in model
    seed: int
    threads: int
    warmup: WarmupConfig | None
    prompt_template: str
    levels: list[int]
    templates: list[str]

    @property
    def key(self) -> str:
        return digests.of_value(self.model_dump(mode="json"))


def plan_base(config: RunConfig) -> BasePlan:
    """Check the base model of a configuration and say what it is. ModelError names what is wrong with a folder."""
    base = config.base
    if base.model in BUILT_IN:
        return BasePlan(
            model=base.model,
            content=code_version([f"relax_core.models.{base.model}"]),
            seed=base.seed,
            threads=config.resources.threads,
            warmup=base.warmup,
            prompt_template=config.data.prompt_template,
            levels=list(config.data.arithmetic.levels),
            templates=list(config.data.arithmetic.templates),
        )
    folder = Path(base.model)
    names = _files_of(folder)
    return BasePlan(
        model="folder",
        content=digests.of_files(folder, names),
        seed=0,
        threads=0,
        warmup=None,
        prompt_template="",
        levels=[],
        templates=[],
    )


def _files_of(folder: Path) -> list[str]:
    """The files of a Hugging Face folder that belong to the model."""
    if not folder.is_dir():
        raise ModelError(
            f"base model {folder}: neither a built-in model ({', '.join(BUILT_IN)}) nor a folder that exists; "
            "give one of them with --base_model"
        )
    architecture.read(folder)
    names = sorted(p.name for p in folder.iterdir() if p.is_file() and p.suffix in _SUFFIXES)
    for wanted, what in ((_WEIGHTS, "weights as safetensors"), (_TOKENIZERS, "a tokenizer")):
        if not set(wanted) & set(names):
            raise ModelError(
                f"base model {folder}: has no {what} ({' or '.join(wanted)}); save the model and its "
                "tokenizer there with save_pretrained"
            )
    return names


def prepare(plan: BasePlan, source: str, say: Callable[[str], None] = lambda text: None) -> ModelRef:
    """The base model of a plan: out of the store, else made. source: its folder, where it is one; `say` hears of a warm-up."""
    return store.lookup(plan.key) or store.put(
        plan.key, plan.model_dump(mode="json"), lambda folder: _build(plan, Path(source), folder, say)
    )


def _build(plan: BasePlan, source: Path, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    from relax_core.training import hf_weights

    facts: dict[str, Any] = {}
    if plan.model == "folder":
        for name in _files_of(source):
            shutil.copyfile(source / name, folder / name)
        if digests.of_files(folder, _files_of(folder)) != plan.content:
            raise ModelError(f"base model {source}: its files changed while they were read; start again when they rest")
    else:
        facts["warmup"] = _warm_up(plan, folder, say)
    weights = hf_weights.read(folder)
    names = hf_weights.shapes(architecture.read(folder))
    # As the trainer and the engine hold them: float32, without the copy of a tied embedding.
    facts["weights"] = hf_weights.digest({name: weights[name].float() for name in names})
    return facts


def _warm_up(plan: BasePlan, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Make the built-in model, from problems that no run is trained or evaluated on."""
    from relax_core.data import arithmetic
    from relax_core.models import tiny

    assert plan.warmup is not None

    def some(split: arithmetic.Split, most: int) -> list[arithmetic.Problem]:
        return list(islice(arithmetic.problems(0, split, levels=plan.levels, templates=plan.templates), most))

    say(f"warming up the base model {plan.model}: {plan.warmup.steps} steps of supervised learning, once")
    metrics = tiny.build(
        folder,
        seed=plan.seed,
        problems=some("warmup", _WARMUP_PROBLEMS),
        check=some("test", _CHECK_PROBLEMS),
        prompt_template=plan.prompt_template,
        warm_up=tiny.WarmUp(**plan.warmup.model_dump()),
        threads=plan.threads,
    )
    say(
        f"base model {plan.model}: greedy accuracy {metrics.accuracy:.1%} on {metrics.checked} problems that it has not seen"
    )
    return dataclasses.asdict(metrics)
