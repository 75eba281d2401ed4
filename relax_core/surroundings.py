"""Settings that libraries read from the environment when they are imported, so that they write below the artifacts alone."""

from __future__ import annotations

import os

from relax_core import paths


def keep_inside() -> None:
    """Set them for this process and those that it starts; what a person has set stays."""
    scratch = paths.temporary()
    for name, value in {
        "HF_HOME": str(scratch / "huggingface"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "torchinductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
    }.items():
        os.environ.setdefault(name, value)
