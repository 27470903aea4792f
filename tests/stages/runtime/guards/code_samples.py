"""Ways in which a forward runs code: what stands before the class M, and what M returns."""

from __future__ import annotations

_HEAD = """
import collections, contextlib, dataclasses, enum, functools, typing
import torch
from torch import nn
{before}
class M({base}):
    def __init__(s):
        super().__init__()
        s.l = nn.Linear(3, 3)
    {inside}
    def forward(s, x):
        {result}
"""

_FUNCTION = """
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 1.0
    @staticmethod
    def backward(ctx, g): return g * {k}
"""
_METACLASS = """
class T(type):
    def __call__(c, x): return x * {k}
class H(metaclass=T): pass
"""
_DISPATCH = """
@functools.singledispatch
def f(x): return x
@f.register
def _(x: torch.Tensor): return x * {k}
"""
_NESTED = """
def made(x):
    class H(nn.Module):
        def forward(s, x): return x * {k}
    return H()(x)
"""
_CONTEXT = """
@contextlib.contextmanager
def scaled(k): yield k
@scaled({k})
def f(x): return x * 1.0
"""

_FORMS: dict[str, tuple[str, str, str, str]] = {
    "the backward of a function": (_FUNCTION, "nn.Module", "", "return A.apply(s.l(x))"),
    "a base's forward": (
        "class B(nn.Module):\n    def forward(s, x): return s.l(x) * {k}",
        *("B", "", "return super().forward(x)"),
    ),
    "a method of a helper": (
        "class H:\n    def run(s, x): return x * {k}",
        *("nn.Module", "", "return H().run(s.l(x))"),
    ),
    "a static method": (
        "class H:\n    @staticmethod\n    def run(x): return x * {k}",
        *("nn.Module", "", "return H.run(s.l(x))"),
    ),
    "a call of a global": (
        "class H:\n    def __call__(s, x): return x * {k}\nh = H()",
        *("nn.Module", "", "return h(s.l(x))"),
    ),
    "a layer made in the forward": (_NESTED, "nn.Module", "", "return made(s.l(x))"),
    "a metaclass": (_METACLASS, "nn.Module", "", "return H(s.l(x))"),
    "single dispatch": (_DISPATCH, "nn.Module", "", "return f(s.l(x))"),
    "no_grad": (
        "@torch.no_grad()\ndef f(x): return x * {k}",
        *("nn.Module", "", "return s.l(x) + f(x)"),
    ),
    "the mode of a decorator": (
        "@torch.set_grad_enabled({k} > 2)\ndef f(x): return x * 2",
        *("nn.Module", "", "return f(s.l(x)) + s.l(x)"),
    ),
    "autocast": (
        "class B(nn.Module):\n    @torch.autocast('cpu', enabled=False)\n"
        "    def forward(s, x): return s.l(x) * {k}",
        *("B", "", "return super().forward(x)"),
    ),
    "vmap": (
        "@torch.func.vmap\ndef f(x): return x * {k}",
        *("nn.Module", "", "return f(s.l(x))"),
    ),
    "a context": (
        "@contextlib.contextmanager\ndef f(): yield {k}",
        *("nn.Module", "", "with f() as k: return s.l(x) * k"),
    ),
    "the argument of a context": (_CONTEXT, "nn.Module", "", "return f(s.l(x))"),
    "a cache": (
        "@functools.lru_cache\ndef f(n): return n * {k}",
        *("nn.Module", "", "return s.l(x) * f(2)"),
    ),
    "a cached property": (
        *("", "nn.Module", "@functools.cached_property\n    def k(s): return {k}"),
        "return s.l(x) * s.k",
    ),
    "a partial method": (
        "",
        "nn.Module",
        "def times(s, x, k): return x * k\n    t = functools.partialmethod(times, k={k})",
        "return s.t(s.l(x))",
    ),
    "what a member holds": (
        "class E(enum.Enum):\n    A = {k}",
        *("nn.Module", "", "return s.l(x) * E.A.value"),
    ),
    "the default of a named tuple": (
        "class P(typing.NamedTuple):\n    k: float = {k}",
        *("nn.Module", "", "return s.l(x) * P().k"),
    ),
    "the default of a dataclass": (
        "@dataclasses.dataclass\nclass D:\n    k: list = dataclasses.field("
        "default_factory=lambda: [{k}])",
        *("nn.Module", "", "return s.l(x) * D().k[0]"),
    ),
    "a text that is run": ("f = eval('lambda x: x * {k}')", "nn.Module", "", "return f(s.l(x))"),
}


def source(form: str, k: float) -> str:
    """The text of a module with a class M that multiplies by k somewhere."""
    before, base, inside, result = (part.replace("{k}", str(k)) for part in _FORMS[form])
    return _HEAD.format(before=before, base=base, inside=inside, result=result)


FORMS = list(_FORMS)
