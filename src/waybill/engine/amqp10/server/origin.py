"""The annotations that every delivery has besides those of the message, as in RabbitMQ 4.

`x-exchange` and `x-routing-key` say where the message was published, `x-stream-offset` where it is in a stream. Clients
of RabbitMQ 4 expect every delivery to have annotations.
"""

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.model.message import Address
from waybill.wire.amqp10 import codes, descriptors
from waybill.wire.amqp10.descriptors import read_descriptor, read_map, write_descriptor
from waybill.wire.amqp10.encode import write_sized, write_string, write_symbol, write_ulong


class Origin:
    """The encoded annotations for all messages of one address."""

    def __init__(self, address: Address) -> None:
        self.address = address
        pairs = BytesWriter()
        write_symbol(pairs, "x-exchange")
        write_string(pairs, _text(address.exchange))
        write_symbol(pairs, "x-routing-key")
        write_string(pairs, _text(address.routing_key))
        self._pairs = pairs.getvalue()
        self.section = _section(self._pairs, 4)

    def annotate(self, content: bytes, offset: i64) -> bytes:
        """Add the annotations to `content`, and `x-stream-offset` unless `offset` is negative."""
        pairs = self._pairs
        count = 4
        if offset >= 0:
            out = BytesWriter()
            out.write(pairs)
            write_symbol(out, "x-stream-offset")
            write_ulong(out, int(offset))
            pairs = out.getvalue()
            count = 6
        elif not has_annotations(content):
            return self.section + content
        if not has_annotations(content):
            return _section(pairs, count) + content
        end: i64 = len(content)
        _, value = read_descriptor(content, 0, end)
        own, start, after = read_map(content, value, end)
        return _section(content[start:after] + pairs, int(own) + count) + content[after:]


def has_annotations(content: bytes) -> bool:
    """Whether content without header and delivery annotations begins with message annotations."""
    size: i64 = len(content)
    if size < 3:
        return False
    if content[1] == codes.SMALL_ULONG:
        return content[2] == descriptors.MESSAGE_ANNOTATIONS
    code, _ = read_descriptor(content, 0, size)
    return code == descriptors.MESSAGE_ANNOTATIONS


def _section(pairs: bytes, count: int) -> bytes:
    out = BytesWriter()
    write_descriptor(out, descriptors.MESSAGE_ANNOTATIONS)
    write_sized(out, codes.MAP_8, count, pairs)
    return out.getvalue()


def _text(name: str) -> str:
    """A name as text. Octets that are not UTF-8 are escaped."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
