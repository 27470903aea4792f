"""The code of modules whose text many packages have."""

from __future__ import annotations

import functools
import marshal
from types import CodeType


def code_of(source: bytes, path: str) -> CodeType:
    """The code of a module at a path, as `compile` makes it; a text that came before, at any path,
    is not compiled again."""
    return _placed(marshal.loads(_compiled(source)), path)


@functools.lru_cache(maxsize=512)
def _compiled(source: bytes) -> bytes:
    return marshal.dumps(compile(source, "<source>", "exec", dont_inherit=True))


def _placed(code: CodeType, path: str) -> CodeType:
    parts = (_placed(part, path) if isinstance(part, CodeType) else part for part in code.co_consts)
    return code.replace(co_filename=path, co_consts=tuple(parts))
