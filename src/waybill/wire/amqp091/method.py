"""What all methods have in common. The methods themselves are in `methods_*`, all of them together in `methods`."""

from typing import ClassVar, TypeVar

from librt.strings import BytesWriter
from mypy_extensions import mypyc_attr

from waybill.wire.amqp091.arguments import Arguments
from waybill.wire.amqp091.octets import write_unsigned


@mypyc_attr(native_class=False)
class Method:
    """One method of the protocol: a frozen dataclass whose attributes are the arguments, but for reserved ones.

    `NAME` is the spec's ("queue.declare"). With `HAS_CONTENT` a content header and body frames follow. Methods stay
    ordinary classes when this is compiled: the dataclasses that mypyc makes take class variables for arguments. What
    comes once a message is encoded by the engines, not by these.
    """

    CLASS_ID: ClassVar[int] = 0
    METHOD_ID: ClassVar[int] = 0
    NAME: ClassVar[str] = ""
    HAS_CONTENT: ClassVar[bool] = False
    ARGUMENTS: ClassVar[Arguments] = Arguments()

    def encode(self) -> bytes:
        """Encode as the payload of a method frame: class id, method id, arguments. Raises EncodeError."""
        out = BytesWriter()
        write_unsigned(out, self.CLASS_ID, 2)
        write_unsigned(out, self.METHOD_ID, 2)
        self.ARGUMENTS.encode(out, self)
        return out.getvalue()


MethodT = TypeVar("MethodT", bound=Method)


class method:  # noqa: N801 - used as a decorator
    """Class decorator that says which method a dataclass is: ids, name, and arguments as `Arguments` reads them."""

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
        return cls
