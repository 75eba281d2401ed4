"""Nested configuration as dotted keys and back. A key's value is a leaf where the models say so, not where the data does."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from relax_core.config.models import RunConfig


def _block_of(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any, Any]]:
    for name, field in model.model_fields.items():
        block = _block_of(field.annotation)
        if block is not None:
            yield from _walk(block, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field, model


@cache
def fields() -> dict[str, Any]:
    """Every dotted key of a run's configuration with its pydantic field, in the order of the models."""
    return {key: field for key, field, _ in _walk(RunConfig, "")}


def type_name(key: str) -> str:
    """The type of a key as a person would say it."""
    annotation = fields()[key].annotation
    arguments = typing.get_args(annotation)
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return " or ".join("unset" if a is type(None) else _plain(a) for a in arguments)
    return _plain(annotation)


def _plain(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return " | ".join(str(a) for a in typing.get_args(annotation))
    if typing.get_origin(annotation) is list:
        return "list of " + _plain(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is dict:
        return "mapping"
    return {int: "whole number", float: "number", str: "text", bool: "true | false"}.get(annotation, str(annotation))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; a mapping that is the value of a key stays whole. Dotted keys may be mixed in."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key not in fields():
            flat.update(flatten(value, f"{key}."))
        else:
            flat[key] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *path, name = key.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[name] = value
    return tree


def unknown_key(key: str, origin: str) -> str:
    """The message for a key that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(key, fields(), n=1) or [
        k for k in fields() if k.endswith(f".{key.rsplit('.', 1)[-1]}")
    ]
    hint = f"did you mean {near[0]}?" if near else "`relax plan` lists the keys."
    return f"{key} ({origin}): there is no such key; {hint}"
