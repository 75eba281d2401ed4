"""What travels between the nodes of a workflow: small frozen values that name content by digest, never files."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Ref(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DatasetRef(Ref):
    """A cleaned dataset in the store (train and evaluation side together)."""

    digest: str


class ModelRef(Ref):
    """A base model in the store, as a Hugging Face folder."""

    digest: str


class RunRef(Ref):
    """A run and its ledger."""

    id: str


class BatchRef(Ref):
    """What one step has so far: the record of its newest stage (rollout or advantages)."""

    run: str
    step: int
    digest: str


class PolicyRef(Ref):
    """The weights of a run after `step` updates (0: the base model)."""

    run: str
    step: int
    digest: str
