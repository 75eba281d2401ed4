"""The Ray session: a light local Ray, started at the first call that needs an actor, shared by all, always ended.

It joins no cluster that it was not told to join.
"""

from __future__ import annotations

import os
import secrets
import sys
from typing import Any

from relax_core import cleanup

NAMESPACE = "relax"
_OBJECT_STORE_BYTES = 200 * 1024 * 1024


def ray(threads: int) -> Any:
    """The ray module, with a session running. `threads`: CPU threads that an actor of ours may use."""
    if "ray" not in sys.modules:
        # Read once, when Ray's library is loaded. Ray listens on all addresses of the machine: only who has this session's
        # token gets in, and nothing is written to $HOME.
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray as module

    if not module.is_initialized():
        _start(module, threads)
    return module


def running() -> bool:
    module = sys.modules.get("ray")
    return module is not None and module.is_initialized()


def _start(module: Any, threads: int) -> None:
    folder = cleanup.use_own_temporary_folder() / "ray"
    os.environ["OMP_NUM_THREADS"] = str(threads)  # Ray would give every actor one thread
    module.init(
        address="local",
        namespace=NAMESPACE,
        num_cpus=threads,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=str(folder),
    )
    cleanup.call_at_end(shutdown)


def shutdown() -> None:
    """End every actor of this session, which are detached, and then Ray."""
    if running():
        import ray as module

        for name in module.util.list_named_actors():
            module.kill(module.get_actor(name))
        module.shutdown()
