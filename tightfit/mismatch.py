"""The error of a call that a plan was not made for.

A generated package that was imported before has put this module in its place: see
`stages/runtime/mismatch.py`.
"""


class PlanMismatch(RuntimeError):  # noqa: N818
    """The call differs from what the plan was made for; the message is one sentence."""
