"""Checks at run time whether a Python object is of an annotated type, like a type checker would for `push`.

Only an object itself and the elements of collections are checked here; the fields of an object are checked when its
JSON is read back.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NewType, TypeVar, Union, get_args, get_origin

Check = Callable[[object], bool]

_NO_SEQUENCES: Final = (str, bytes, bytearray)


def instance_check(hint: Any) -> Check | None:  # noqa: ANN401, PLR0911 - an annotation; one line a kind
    """Return a function that checks whether an object has the annotated type; None if any object has."""
    if hint is Any or hint is object or isinstance(hint, (TypeVar, str)):
        return None
    if hint is None or hint is type(None):
        return lambda value: value is None
    if isinstance(hint, NewType):
        return instance_check(hint.__supertype__)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return instance_check(arguments[0])
    if origin is Union or origin is types.UnionType:
        return _union(arguments)
    if origin is Literal:
        return lambda value: any(value == one and type(value) is type(one) for one in arguments)
    if origin is not None:
        return _collection(origin, arguments) if isinstance(origin, type) else None
    if not isinstance(hint, type) or getattr(hint, "_is_protocol", False):
        return None
    if typing.is_typeddict(hint):
        return lambda value: isinstance(value, dict)
    return _plain(hint)


def _plain(kind: type) -> Check:
    if kind is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        return lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)
    return lambda value: isinstance(value, kind)


def _union(members: tuple[Any, ...]) -> Check | None:
    checks = [instance_check(one) for one in members]
    known = [check for check in checks if check is not None]
    if len(known) < len(checks):
        return None
    return lambda value: any(check(value) for check in known)


def _collection(origin: type, arguments: tuple[Any, ...]) -> Check:
    """Return the check of a generic class, including the elements if it is a collection."""
    if issubclass(origin, tuple) and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        checks = [instance_check(one) for one in arguments]
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(checks)
            and all(check is None or check(one) for check, one in zip(checks, value, strict=True))
        )
    if issubclass(origin, Mapping):
        keys, values = (instance_check(one) for one in arguments)
        return lambda value: (
            isinstance(value, origin)
            and all((keys is None or keys(key)) and (values is None or values(one)) for key, one in value.items())
        )
    if issubclass(origin, Collection) or issubclass(list, origin):
        element = instance_check(arguments[0])
        return lambda value: (
            isinstance(value, origin)
            and isinstance(value, Iterable)
            and not (isinstance(value, _NO_SEQUENCES) and issubclass(Sequence, origin))
            and (element is None or all(element(one) for one in value))
        )
    return lambda value: isinstance(value, origin)
