"""What functions keep that keep their results (functools.cache, functools.lru_cache).

The file travels with a generated package and needs only PyTorch.
"""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from .encode import instance_fields

LRU_CACHE_WRAPPER = functools._lru_cache_wrapper
_MAX_DEPTH = 4


def cached_results(function: Any) -> Iterator[tuple[Any, Any]]:
    """What a function keeps: the keys of its calls and what it returned."""
    found = gc.get_referents(function)
    tables = [one for one in found if type(one) is dict and one is not vars(function)]
    if function.cache_info().maxsize is None:
        yield from list(tables[0].items() if tables else ())
        return
    table = next((one for one in tables if _is_cache_table(one)), {})
    for key, value in itertools.pairwise(found):
        if key.__hash__ is not None and value is not table and _is_key_of(key, table):
            yield key, value


def _is_cache_table(found: dict[Any, Any]) -> bool:
    """True for the dictionary in which a function has its calls, and not one that it returned."""
    return bool(found) and all(type(one).__name__ == "_lru_list_elem" for one in found.values())


def _is_key_of(key: Any, table: dict[Any, Any]) -> bool:
    try:
        return key in table
    except TypeError:  # a tuple of what cannot be a key
        return False


def nested_tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in a value, in containers and in fields of objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _MAX_DEPTH:
        inside = value if isinstance(value, list | tuple | set) else instance_fields(value).values()
        for item in value.values() if isinstance(value, dict) else inside:
            yield from nested_tensors(item, depth + 1)
