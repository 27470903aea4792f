"""The error of a call that a plan was not made for.

A generated package that was imported before has put this module in its place: see
`stages/runtime/mismatch.py`.
"""


class PlanMismatch(RuntimeError):  # noqa: N818
    """The call differs from what the plan was made for; the message says how, in one sentence.

    Example:
        >>> module, plan = tightfit.plan(model, (torch.randn(8, 16),))
        >>> module(torch.randn(5, 16))
        Traceback (most recent call last):
        tightfit.mismatch.PlanMismatch: input has shape (5, 16), the plan was made for (8, 16); ...
    """
