"""The base class of all methods. The methods are in `methods_*`; `methods` lists them."""

from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import ClassVar, NoReturn, TypeVar, dataclass_transform

from librt.strings import BytesWriter
from mypy_extensions import mypyc_attr

from waybill.wire.amqp091.method_arguments import Arguments
from waybill.wire.amqp091.octets import write_unsigned


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
@mypyc_attr(native_class=False)
class Method:
    """One method of the protocol: a frozen dataclass whose attributes are the arguments, except reserved ones.

    `NAME` is the spec's ("queue.declare"). With `HAS_CONTENT` a content header and body frames follow. Methods stay
    ordinary classes when this is compiled: the dataclasses that mypyc makes take class variables for arguments. The
    engines themselves encode the methods that come with each message.

    The methods that `dataclass` would generate for each of the 64 classes are written here once: generating them took a
    fifth of the time that a program needs to start.
    """

    CLASS_ID: ClassVar[int] = 0
    METHOD_ID: ClassVar[int] = 0
    NAME: ClassVar[str] = ""
    HAS_CONTENT: ClassVar[bool] = False
    ARGUMENTS: ClassVar[Arguments] = Arguments()
    FIELDS: ClassVar[dict[str, Field[object]]] = {}

    def __init__(self, *values: object, **named: object) -> None:
        """Take the arguments by position or by name; all have defaults. Raises TypeError as any function does."""
        known = self.FIELDS
        attributes = self.__dict__
        if len(values) == len(known) and not named:
            # The decoder and the frequent answers give all of them, which takes a fifth of the time.
            attributes.update(zip(known, values, strict=True))
            return
        attributes.update(zip(known, values, strict=False))
        if len(values) > len(known) or not named.keys() <= known.keys() - attributes.keys():
            raise TypeError(f"{self.NAME} takes {', '.join(known) or 'no arguments'}: not {values!r}, {named!r}")
        attributes.update(named)
        for name, one in known.items():
            if name not in attributes:
                attributes[name] = one.default if one.default_factory is MISSING else one.default_factory()

    def __eq__(self, other: object) -> bool:
        """Compare type and arguments."""
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        """Raise TypeError where an argument is a table."""
        return hash((type(self), *[getattr(self, name) for name in self.FIELDS]))

    def __repr__(self) -> str:
        """Show the arguments, without secrets."""
        shown = [f"{name}={getattr(self, name)!r}" for name, one in self.FIELDS.items() if one.repr]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def encode(self) -> bytes:
        """Encode as the payload of a method frame: class id, method id, arguments. Raises EncodeError."""
        out = BytesWriter()
        write_unsigned(out, self.CLASS_ID, 2)
        write_unsigned(out, self.METHOD_ID, 2)
        self.ARGUMENTS.encode(out, self)
        return out.getvalue()


MethodT = TypeVar("MethodT", bound=Method)


class method:  # noqa: N801 - used as a decorator
    """Class decorator that makes a class a method: ids, name, and arguments as `Arguments` reads them."""

    def __init__(self, class_id: int, method_id: int, name: str, arguments: str = "", *, content: bool = False) -> None:
        self.class_id = class_id
        self.method_id = method_id
        self.name = name
        self.arguments = arguments
        self.content = content

    def __call__(self, cls: type[MethodT]) -> type[MethodT]:
        """Set the class variables."""
        cls.CLASS_ID = self.class_id
        cls.METHOD_ID = self.method_id
        cls.NAME = self.name
        cls.HAS_CONTENT = self.content
        cls.ARGUMENTS = Arguments(self.arguments)
        dataclass(init=False, repr=False, eq=False)(cls)
        cls.FIELDS = {one.name: one for one in fields(cls)}  # type: ignore[arg-type] # by now it is a dataclass
        return cls
