"""What all methods have in common. The methods themselves are in `methods_*`, all of them together in `methods`."""

from typing import ClassVar

from librt.strings import BytesWriter

from waybill.wire.amqp091.arguments import Arguments
from waybill.wire.amqp091.octets import write_unsigned


class Method:
    """One method of the protocol: a frozen dataclass whose attributes are the arguments, but for reserved ones.

    `NAME` is the spec's ("queue.declare"). With `HAS_CONTENT` a content header and body frames follow.
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
