"""Lets PyTorch take apart the key and value caches that transformers' models return."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from torch.utils import _pytree as pytree

_EXPORT = "transformers.integrations.executorch"


def register_caches() -> None:
    """Registers the caches with pytree where transformers has been imported."""
    module = sys.modules.get("transformers.cache_utils")
    if module is None:
        return
    dynamic = getattr(module, "DynamicCache", None)
    if dynamic is not None and dynamic not in pytree.SUPPORTED_NODES:
        # Nothing but PyTorch is needed where transformers is not there.
        importlib.import_module(_EXPORT).register_dynamic_cache_export_support()
    pair = getattr(module, "EncoderDecoderCache", None)
    if pair is not None and pair not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(pair, _parts, lambda parts, _: pair(*parts))


def _parts(cache: Any) -> tuple[list[Any], None]:
    return [cache.self_attention_cache, cache.cross_attention_cache], None
