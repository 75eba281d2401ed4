"""How Flyte runs the system: thin tasks whose bodies call relax_core.

Importing this package keeps flytekit and the libraries below it from writing outside RELAX_ARTIFACTS: Flyte's local cache moves
there, and the two temporary folders that flytekit makes when it is imported are removed at the end.
"""

from __future__ import annotations

import os
from pathlib import Path

from flytekit import FlyteContextManager
from flytekit.core import data_persistence, local_cache

from relax_core import cleanup, paths

local_cache.CACHE_LOCATION = str(paths.artifacts() / "flyte" / "local-cache")


def _quiet_libraries() -> None:
    """Settings that the libraries read when they are imported; what a person has set stays."""
    for name, value in {
        "HF_HOME": str(paths.temporary() / "huggingface"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "MPLCONFIGDIR": str(paths.temporary() / "matplotlib"),
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
    }.items():
        os.environ.setdefault(name, value)


def _forget_temporary_folders() -> None:
    parameters = FlyteContextManager.current_context().user_space_params
    folders = [Path(data_persistence.flyte_tmp_dir)]
    if parameters is not None:
        folders.append(Path(parameters.working_directory).parent)
    for folder in folders:
        cleanup.remove_at_end(folder)


_quiet_libraries()
_forget_temporary_folders()
