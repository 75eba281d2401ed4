"""What every rollout engine can do. Two real implementations: transformers (in process) and, later, SGLang."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from relax_core.rollout.types import Request, Sample

if TYPE_CHECKING:
    import torch


class Engine(Protocol):
    def load(self, folder: Path, version: int) -> None:
        """Take the weights of a Hugging Face folder as policy version `version`."""

    def generate(self, requests: Sequence[Request]) -> Iterator[Sample]:
        """Draw a sample for each request; they come as they finish, in any order, each exactly once."""

    def update_weights(self, version: int, weights: Mapping[str, torch.Tensor] | Path) -> None:
        """Swap in the weights of policy version `version`: by Hugging Face name, or from a folder."""

    def pause(self) -> None:
        """Hold generation (weights may be swapped meanwhile); memory that only generation needs is given back."""

    def resume(self) -> None: ...

    def abort(self, rows: Sequence[str]) -> None:
        """End the running samples of these rows with status aborted."""

    def health(self) -> bool: ...
