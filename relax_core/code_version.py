"""The version of the code that makes an artifact: a digest of the modules it is made by, found without importing them.

Editing a module that took part changes the version; editing any other one does not, so a change of the report does
not throw away a base model.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from relax_core import digests, paths


def code_version(entry_modules: Sequence[str], *, root: Path | None = None, package: str = "relax_core") -> str:
    """Digest of the source of the entry modules and of every module of `package` that they import, directly or not.

    Imports are read from the syntax tree, those inside functions and type-checking blocks included; `from package.x
    import y` follows y too where it is a module, and the `__init__` of every package on the way counts, as Python
    runs it. Not seen: modules named by a text at run time. A named module that has no file counts as missing, and the
    version changes when it appears.

    root: the folder that holds `package`; by default this project. The answer is remembered for the life of the
    process (the code that runs does not change either).
    """
    return _code_version(tuple(sorted(set(entry_modules))), root or paths.PROJECT, package)


def modules_of(
    entry_modules: Sequence[str], *, root: Path | None = None, package: str = "relax_core"
) -> tuple[str, ...]:
    """The names of the modules whose source makes up `code_version`, sorted."""
    return tuple(sorted(_sources(tuple(entry_modules), root or paths.PROJECT, package)))


@lru_cache(maxsize=32)
def _code_version(entry_modules: tuple[str, ...], root: Path, package: str) -> str:
    sources = _sources(entry_modules, root, package)
    return digests.of_value(
        {name: None if source is None else digests.of_bytes(source) for name, source in sources.items()}
    )


def _sources(entry_modules: tuple[str, ...], root: Path, package: str) -> dict[str, bytes | None]:
    """Module name -> source (None: no such file) of everything that can be reached from the entry modules."""
    sources: dict[str, bytes | None] = {}
    waiting = list(entry_modules)
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        waiting += _parents(name)
        path = _file_of(name, root)
        sources[name] = path.read_bytes() if path else None
        if path is None:
            continue
        for imported in _imports(name, path, root):
            if imported == package or imported.startswith(f"{package}."):
                waiting.append(imported)
    return sources


def _file_of(name: str, root: Path) -> Path | None:
    base = root.joinpath(*name.split("."))
    for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _imports(name: str, path: Path, root: Path) -> Iterator[str]:
    """Absolute names of the modules that a module imports, members of a `from` import that are modules included."""
    own_package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = own_package[: len(own_package) - node.level + 1] if node.level else []
            module = ".".join([*start, *(node.module.split(".") if node.module else [])])
            yield module
            for alias in node.names:
                if _file_of(f"{module}.{alias.name}", root):
                    yield f"{module}.{alias.name}"
