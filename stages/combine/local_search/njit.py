"""How functions that take a state are compiled.

A state is a named tuple of arrays, each of which is seven arguments of a compiled function. What
Python calls takes the tuple and passes its address on (`reference_to`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from numba import njit, types
from numba.core import cgutils
from numba.core.datamodel.models import PrimitiveModel
from numba.core.imputils import impl_ret_borrowed, lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, register_model

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Fields = TypeVar("_Fields")
_NJIT_OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "_nrt": False,
    "no_cfunc_wrapper": True,
}
_INTERNAL_OPTIONS: dict[str, Any] = {**_NJIT_OPTIONS, "no_cpython_wrapper": True}


def njit_internal(function: _Function) -> _Function:
    """Compiles a function as `njit_no_refcount` does, for compiled ones only to call."""
    compiled: _Function = njit(**_INTERNAL_OPTIONS)(function)
    return compiled


def njit_no_refcount(function: _Function) -> _Function:
    """Compiles a function that makes no array, without the counting of references, which for the
    many arrays of a state takes ten times as long as a move."""
    compiled: _Function = njit(**_NJIT_OPTIONS)(function)
    return compiled


class TupleReference(types.Type):
    """The address of a named tuple in the frame of a compiled function."""

    def __init__(self, fields: Any) -> None:
        self.fields = fields
        super().__init__(f"TupleReference({fields})")


@register_model(TupleReference)
class _TupleReferenceModel(PrimitiveModel):
    def __init__(self, models: Any, reference: TupleReference) -> None:
        pointer = models.lookup(reference.fields).get_value_type().as_pointer()
        super().__init__(models, reference, pointer)


def _type_reference(_context: Any, fields: types.Type) -> Any:
    """See `reference_to`."""
    if not isinstance(fields, types.BaseNamedTuple):
        return fields(fields), lambda _context, _builder, _signature, args: args[0]
    return TupleReference(fields)(fields), _store_tuple


def _store_tuple(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
    return cgutils.alloca_once_value(builder, args[0])


if TYPE_CHECKING:

    def reference_to(fields: _Fields) -> _Fields:
        """The address of a named tuple, which has the fields of the tuple, for as long as the
        function runs that makes it; of what is no named tuple, that itself."""
        return fields

else:
    reference_to = intrinsic(_type_reference)


@infer_getattr
class _TupleReferenceFields(AttributeTemplate):
    key = TupleReference

    def generic_resolve(  # type: ignore[override]
        self, reference: TupleReference, name: str
    ) -> types.Type | None:
        known = dict(zip(reference.fields.fields, reference.fields.types, strict=True))
        return known.get(name)


@lower_getattr_generic(TupleReference)
def _load_field(
    context: Any, builder: Any, reference: TupleReference, address: Any, name: str
) -> Any:
    place = reference.fields.fields.index(name)
    field = _load_scalars(builder, cgutils.gep_inbounds(builder, address, 0, place))
    return impl_ret_borrowed(context, builder, reference.fields.types[place], field)


def _load_scalars(builder: Any, address: Any) -> Any:
    """What lies at an address, scalar by scalar: those that nobody uses are left out."""
    kind = address.type.pointee
    if not hasattr(kind, "elements") and not hasattr(kind, "count"):
        return builder.load(address)
    whole = cgutils.get_null_value(kind)
    for place in range(len(kind)):
        part = _load_scalars(builder, cgutils.gep_inbounds(builder, address, 0, place))
        whole = builder.insert_value(whole, part, place)
    return whole
