"""The errors a user sees: one clear sentence, exit code 1, no traceback."""

from __future__ import annotations


class TightfitError(Exception):
    """The base of all errors that a user can cause; the message is one sentence.

    Args:
        message: The sentence.
        details: Lines for a log to show below it, such as the calls that led to the error.

    Example:
        >>> try:
        ...     module, plan = tightfit.plan(model, (x,), budget="8GiB")
        ... except tightfit.TightfitError as error:
        ...     print(error)
    """

    def __init__(self, message: str = "", *, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class ArtifactError(TightfitError):
    """A file is missing, truncated, changed, of another version or of another model.

    Example:
        >>> tightfit.load("results/gpt2/auto/196MB/module", another_model)
        Traceback (most recent call last):
        tightfit.util.errors.ArtifactError: results/gpt2/auto/196MB/module: ...
    """


class ConfigError(TightfitError):
    """An argument or a key of the configuration is wrong; the message names it and what was
    expected. A budget that is too small raises it, too, with the smallest one known to work.

    Example:
        >>> tightfit.plan(model, (x,), budget="1kB")
        Traceback (most recent call last):
        tightfit.util.errors.ConfigError: ...
    """


class ModelError(TightfitError):
    """A model cannot be planned; the message names the source line, or the factory, and a remedy.

    Example:
        >>> class Branching(torch.nn.Module):
        ...     def forward(self, x):
        ...         return x if x.sum() > 0 else -x
        >>> tightfit.plan(Branching(), (x,))
        Traceback (most recent call last):
        tightfit.util.errors.ModelError: ...
    """


class ScheduleError(TightfitError):
    """The simulator refuses a schedule; the message names the step and the rule it breaks."""
