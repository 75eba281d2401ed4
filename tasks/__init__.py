"""How Flyte runs the system: thin tasks whose bodies call relax_core.

Importing this package keeps flytekit and the libraries below it from writing outside RELAX_ARTIFACTS: Flyte's local cache moves
there, temporary files go into a folder that is removed at the end, and so are the two that flytekit makes when it is imported.
"""

from __future__ import annotations

from pathlib import Path

from flytekit import FlyteContextManager
from flytekit.core import data_persistence, local_cache

from relax_core import cleanup, paths, surroundings

local_cache.CACHE_LOCATION = str(paths.artifacts() / "flyte" / "local-cache")


def _forget_temporary_folders() -> None:
    parameters = FlyteContextManager.current_context().user_space_params
    folders = [Path(data_persistence.flyte_tmp_dir)]
    if parameters is not None:
        folders.append(Path(parameters.working_directory).parent)
    for folder in folders:
        cleanup.remove_at_end(folder)


surroundings.keep_inside()
cleanup.use_own_temporary_folder()
_forget_temporary_folders()
