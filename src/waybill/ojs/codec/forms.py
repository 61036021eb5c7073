"""The JSON of annotated types, and back.

msgspec knows most of them: dataclasses, its own structs, attrs, TypedDict, NamedTuple, times, UUID, Decimal, Enum,
bytes (Base64), and collections of all these. Paths are text. Pydantic models have their own JSON. Other types of an
application need a codec (`CustomTypes.add`).

msgspec calls a hook for unknown types. Types that it refuses, or does not validate enough, are replaced in the
annotation by a generated class, a stand-in, so that the hook is called for them, too.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from pathlib import PurePath
from typing import Annotated, Any, Final, NewType, TypeVar, Union, get_args, get_origin

import msgspec

from waybill.ojs.codec.instances import Check, instance_check

Encode = Callable[[Any], object]
Decode = Callable[[Any], object]

_PLAIN: Final = (str, int, float, bool, type(None))
_PYDANTIC_METADATA: Final = ("pydantic", "annotated_types")


class CustomTypes:
    """Types of an application with custom JSON codecs."""

    def __init__(self) -> None:
        self._codecs: dict[type, tuple[Encode, Decode]] = {}

    def add(self, kind: type, encode: Encode, decode: Decode) -> None:
        """Register a type. Raises TypeError for one with a built-in JSON form."""
        if _is_known(kind):
            raise TypeError(f"{kind.__qualname__} has a built-in JSON form, so a codec for it would never be used")
        self._codecs[kind] = (encode, decode)

    def find(self, kind: type) -> tuple[Encode, Decode] | None:
        """Return the functions of a type, or of its nearest registered base class."""
        return next((self._codecs[base] for base in kind.__mro__ if base in self._codecs), None)


class _StandIn(type):
    """The base class of stand-ins: msgspec accepts any object from the hook for one."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class Form:
    """The JSON of one annotated type."""

    def __init__(self, hint: Any, custom: CustomTypes) -> None:  # noqa: ANN401 - an annotation
        """Raises TypeError for a type without a JSON form."""
        self.hint = hint
        self.is_plain = hint in _PLAIN
        """Whether it is a type of JSON with one class in Python."""
        self._custom = custom
        self._stand_ins: dict[type, Decode] = {}
        self._is_ambiguous = False
        self.native = self._rewritten(hint)
        """The same annotation for msgspec; its hook is `decode_hook`."""
        self._is_json = _is_json(self.native)
        self._check: Check | None = None if _is_pydantic(hint) and not _is_class(hint) else instance_check(hint)

    def encode(self, value: object) -> object:
        """Return an object as JSON. Raises ValueError, TypeError if it has another type."""
        if self._check is not None and not self._check(value):
            raise TypeError(f"expects {shown_type(self.hint)}, got {_shown(value)}")
        written = self.written(value)
        back = self.decode(written)
        if self._is_ambiguous and not (type(back) is type(value) and back == value):
            raise ValueError(f"{_shown(value)} would arrive as {_shown(back)}: {shown_type(self.hint)} is ambiguous")
        return written

    def written(self, value: object) -> object:
        """Return an object or a JSON value as JSON, unchecked. Raises TypeError for anything else."""
        return value if self._is_json else msgspec.to_builtins(value, enc_hook=self.encode_hook, str_keys=True)

    def decode(self, value: object) -> object:
        """Return the object from its JSON. Raises ValueError (msgspec's has the path), TypeError."""
        return msgspec.convert(value, self.native, dec_hook=self.decode_hook, str_keys=True)

    def encode_hook(self, value: object) -> object:
        """Encode an object that msgspec does not know."""
        kind = type(value)
        codec = self._custom.find(kind)
        if codec is not None:
            return _by_codec(codec[0], value)
        if isinstance(value, PurePath):
            return str(value)
        if hasattr(kind, "model_dump"):
            return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)  # type: ignore[attr-defined]
        if _is_pydantic(kind):
            return _adapter(kind).dump_python(value, mode="json", warnings=False)
        raise TypeError(f"{kind.__qualname__} is not a JSON type")

    def decode_hook(self, kind: type, value: object) -> object:
        """Decode a type that msgspec does not know."""
        stand_in = self._stand_ins.get(kind)
        if stand_in is not None:
            return stand_in(value)
        if kind is object:
            return value
        codec = self._custom.find(kind)
        if codec is not None:
            return _by_codec(codec[1], value)
        if issubclass(kind, PurePath):
            if not isinstance(value, str):
                raise TypeError(f"expected `{kind.__qualname__}`, got {_shown(value)}")
            return kind(value)
        if _is_pydantic(kind):
            return _by_pydantic(kind)(value)
        raise TypeError(f"there is no codec for {kind.__qualname__}, got {_shown(value)}")

    # --- types that msgspec needs help with ---

    def _rewritten(self, hint: Any) -> Any:  # noqa: ANN401 - an annotation; one line a kind
        if hint is object or isinstance(hint, (TypeVar, str)):
            return Any
        if isinstance(hint, NewType):
            return self._rewritten(hint.__supertype__)
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            if _is_pydantic(hint):
                return self._stand_in(_by_pydantic(hint))
            inner = self._rewritten(arguments[0])
            return Annotated[(inner, *arguments[1:])]
        if origin is Union or origin is types.UnionType:
            return self._union([self._rewritten(one) for one in arguments])
        if origin is not None and arguments and isinstance(origin, type) and _is_collection(origin):
            collection: Any = origin
            return collection[tuple(one if one is Ellipsis else self._rewritten(one) for one in arguments)]
        if isinstance(hint, type) and origin is None:
            return self._class(hint)
        return hint

    def _class(self, kind: type) -> Any:  # noqa: ANN401 - an annotation
        if _is_pydantic(kind) and not hasattr(kind, "model_validate"):
            return self._stand_in(_by_pydantic(kind))
        if hasattr(kind, "__attrs_attrs__"):
            return self._stand_in(lambda value: _validated(msgspec.convert(value, kind, dec_hook=self.decode_hook)))
        if not _is_known(kind) and not self._has_codec(kind):
            raise TypeError(f"there is no JSON for {kind.__qualname__}: register a codec for it, Jobs.codec")
        return kind

    def _has_codec(self, kind: type) -> bool:
        return issubclass(kind, PurePath) or _is_pydantic(kind) or self._custom.find(kind) is not None

    def _union(self, members: list[Any]) -> Any:  # noqa: ANN401 - an annotation
        union: Any = Union[tuple(members)]  # noqa: UP007 - of members that are known at run time
        try:
            msgspec.json.Decoder(union)
        except TypeError:
            # Strings last: any other form may be written as text.
            ordered = sorted(members, key=lambda one: one is str)
            self._is_ambiguous = True
            return self._stand_in(lambda value: self._first_that_fits(value, ordered))
        return union

    def _first_that_fits(self, value: object, members: list[Any]) -> object:
        reasons = []
        for member in members:
            try:
                return msgspec.convert(value, member, dec_hook=self.decode_hook, str_keys=True)
            except (ValueError, TypeError) as error:
                reasons.append(str(error))
        raise ValueError("; ".join(reasons))

    def _stand_in(self, decode: Decode) -> type:
        made = _StandIn("BrokerSubstitute", (), {})
        self._stand_ins[made] = decode
        return made


def shown_type(hint: Any) -> str:  # noqa: ANN401 - an annotation
    """Return an annotation approximately as its author wrote it."""
    if isinstance(hint, type) and get_origin(hint) is None:
        return f"`{hint.__qualname__.rpartition('.')[2]}`"
    return f"`{str(hint).replace('typing.', '')}`"


def _shown(value: object) -> str:
    return shown_type(type(value)) if value is not None else "`None`"


def _is_class(hint: object) -> bool:
    return isinstance(hint, type) and (hasattr(hint, "model_validate") or hasattr(hint, "__pydantic_fields__"))


def _is_known(kind: type) -> bool:
    """Return whether msgspec supports a class itself."""
    try:
        return not isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
    except TypeError:
        return False


def _is_collection(origin: type) -> bool:
    return origin.__module__ in {"builtins", "collections", "collections.abc"}


def _is_json(hint: Any) -> bool:  # noqa: ANN401 - an annotation
    """Return whether objects of this type are plain JSON values, which need neither encoding nor checks."""
    if hint is Any or hint in _PLAIN:
        return True
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is dict:
        return arguments[0] is str and _is_json(arguments[1])
    if origin is typing.Literal:
        return all(type(one) in _PLAIN for one in arguments)
    if origin is Annotated:
        return _is_json(arguments[0])
    if origin in {Union, types.UnionType, list}:
        return all(_is_json(one) for one in arguments)
    return hint in {list, dict}


# --- pydantic and attrs: neither is imported here, their own classes say what they are ---


def _is_pydantic(hint: Any) -> bool:  # noqa: ANN401 - an annotation
    if get_origin(hint) is Annotated:
        return any(type(one).__module__.partition(".")[0] in _PYDANTIC_METADATA for one in get_args(hint)[1:])
    return hasattr(hint, "__get_pydantic_core_schema__") or hasattr(hint, "__pydantic_validator__")


def _adapter(hint: Any) -> Any:  # noqa: ANN401 - pydantic's TypeAdapter
    from pydantic import TypeAdapter  # noqa: PLC0415 - it is loaded, if a handler has such an annotation

    return TypeAdapter(hint)


def _by_pydantic(hint: Any) -> Decode:  # noqa: ANN401 - an annotation
    adapter = _adapter(hint)

    def decode(value: object) -> object:
        # Strict models accept text for a time only from JSON.
        try:
            return adapter.validate_json(msgspec.json.encode(value))
        except ValueError as error:
            raise ValueError(_reasons(error)) from error

    return decode


def _reasons(error: ValueError) -> str:
    found = getattr(error, "errors", None)
    if found is None:
        return str(error)
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ") for one in found())


def _validated(value: Any) -> object:  # noqa: ANN401 - an object of an attrs class
    """Run the validators of attrs, which msgspec does not run."""
    for attribute in type(value).__attrs_attrs__:
        inner = getattr(value, attribute.name)
        if attribute.validator is not None:
            attribute.validator(value, attribute, inner)
        for one in inner if isinstance(inner, (list, tuple)) else (inner,):
            if hasattr(type(one), "__attrs_attrs__"):
                _validated(one)
    return value


def _by_codec(function: Callable[[Any], object], value: object) -> object:
    try:
        return function(value)
    except (ValueError, TypeError):
        raise
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
