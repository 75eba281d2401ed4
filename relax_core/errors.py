"""Every error that a person can meet. A message names the value, the rule and the remedy."""

from __future__ import annotations

from collections.abc import Sequence


class RelaxError(Exception):
    """Root of the errors of this project."""


class UserError(RelaxError):
    """Wrong input: the command prints the message and leaves with exit code 2, and nothing has been written."""


class ConfigError(UserError):
    """One or more violated configuration rules, all of them at once."""

    def __init__(self, violations: Sequence[str]) -> None:
        self.violations = tuple(violations)
        super().__init__("\n".join(self.violations))


class DataError(UserError):
    """A source of data that cannot be used: missing, empty, of unknown form, without a usable answer."""


class ModelError(UserError):
    """A base model that cannot be used: missing, incomplete, of an unsupported architecture."""


class IntegrityError(RelaxError):
    """Bytes in the artifacts that do not have the digest they were stored under."""


class RunError(RelaxError):
    """A run that cannot go on: too many groups lost, a dead role, weights that do not replay to their digest."""
