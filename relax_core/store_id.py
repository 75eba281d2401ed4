"""The name of a store: a random text, made once with the store, that tells one RELAX_ARTIFACTS from another.

It is an input of the tasks that Flyte caches, so that a cached answer never points into a store that is gone.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path

from relax_core import files
from relax_core.errors import IntegrityError


def store_id(root: Path) -> str:
    """The id of the store in folder `root`. The first call makes it; several at once all return the same one."""
    folder = root / "store"
    path = folder / "id"
    if not path.exists():
        with files.atomic_folder(folder) as temporary:
            (temporary / "id").write_text(uuid.uuid4().hex, encoding="utf-8")
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        text = ""
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        raise IntegrityError(
            f"{path} holds no store id (32 hexadecimal signs); remove the folder {folder} and run again"
        )
    return text
