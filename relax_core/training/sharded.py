"""Trainer state in Megatron's distributed checkpoint format (torch_dist), written by this process itself.

The format is what moves between layouts (tensor, pipeline, data parallel). Megatron's own way to write it starts a manager
process and forks a writer per file, which costs seconds, re-imports the main module and has no place inside a worker; torch's
writer gives the same files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.strategies.base import SaveShardedStrategy
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as write_files

from relax_core.training.policy import Policy


class WriteHere(SaveShardedStrategy):  # type: ignore[misc]
    """Writes torch_dist version 1 with torch's file writer, synchronously."""

    def __init__(self) -> None:
        super().__init__("torch_dist", 1)

    @property
    def can_handle_sharded_objects(self) -> bool:
        return True

    def check_backend_compatibility(self, loaded_backend: str) -> bool:
        return bool(loaded_backend == self.backend)

    def check_version_compatibility(self, loaded_version: int) -> bool:
        return bool(loaded_version == self.version)

    def save(self, sharded_state_dict: Any, checkpoint_dir: Path) -> None:
        flat, _mapping, _renamed = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, True)
        write_files(
            mcore_to_pyt_state_dict(flat, False),
            storage_writer=FileSystemWriter(checkpoint_dir, thread_count=1),
            planner=MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
        )


def save(folder: Path, policy: Policy) -> None:
    """Weights, optimizer, schedule and random states into an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save(_sharded(policy, loading=False), str(folder), WriteHere())


def load(folder: Path, policy: Policy) -> None:
    """Bring a policy of the same architecture and optimizer into the state of a folder."""
    assert policy.optimizer is not None
    state = dist_checkpointing.load(_sharded(policy, loading=True), str(folder))
    policy.bare.load_state_dict(state["model"], strict=True)
    policy.optimizer.megatron.load_state_dict(state["optimizer"])
    policy.optimizer.schedule.num_steps = 0  # load_state_dict adds the saved steps to those taken
    policy.optimizer.schedule.load_state_dict(state["schedule"])
    _set_random(state["random"])


def _sharded(policy: Policy, *, loading: bool) -> dict[str, Any]:
    assert policy.optimizer is not None
    metadata = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    model = policy.bare.sharded_state_dict(metadata=metadata)
    return {
        "model": model,
        "optimizer": policy.optimizer.megatron.sharded_state_dict(model, is_loading=loading, metadata=metadata),
        "schedule": policy.optimizer.schedule.state_dict(),
        "random": _random(),
    }


def _random() -> dict[str, Any]:
    return {"torch": torch.get_rng_state(), "megatron": get_cuda_rng_tracker().get_states()}


def _set_random(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    get_cuda_rng_tracker().set_states(state["megatron"])
