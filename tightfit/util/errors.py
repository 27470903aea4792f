"""The errors a user sees: one clear sentence, exit code 1, no traceback."""

from __future__ import annotations


class TightfitError(Exception):
    """Something outside tightfit is wrong; the message is one sentence naming it."""


class ArtifactError(TightfitError):
    """A file is not the artifact it should be: absent, truncated, changed, of another version."""


class ConfigError(TightfitError):
    """A configuration value is wrong; the message names its key and what was expected."""


class ModelError(TightfitError):
    """A model or its factory cannot be used; the message names the factory or the source line."""


class ScheduleError(TightfitError):
    """Replay refuses a schedule; the message names the step and the rule it breaks."""
