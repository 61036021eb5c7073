"""The layout of one record, the unit that carries a checksum.

    offset  bytes  field
    0       8      digest: xxh3-64 of the content, seeded with the xxh3-64 of everything between this field and it
    8       4      length of the whole record, digest included
    12      1      kind
    13      1      flags (bit 0: durable)
    14      1      code of the message format
    15      1      priority
    16      ...    fields, by kind

A record with a message (PUT, SPILL, ENTRY) continues like this; all integers are big-endian:

    16      8      queue id (ENTRY: timestamp in Unix milliseconds)
    24      8      sequence (ENTRY: offset in the stream)
    32      8      published at, seconds, IEEE 754 double
    40      8      time to live in milliseconds, -1 for none
    48      2      length of the exchange's name
    50      2      length of the routing key
    52      ...    exchange, routing key, content

With two chained digests, a message's content is checksummed in place: putting a message copies no content. Records do
not contain their own location, so compaction can move them unchanged.
"""

from array import array
from typing import Final

from librt.strings import BytesWriter, read_f64_be, read_i64_be, write_f64_be, write_i64_be
from mypy_extensions import i64
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from waybill.model.errors import DamagedMessage
from waybill.model.message import Address, Message, MessageFormat

# Compiled code finds constants faster than the names of other modules.
DIGEST: Final = xxh3_64_digest
INT_DIGEST: Final = xxh3_64_intdigest

PUT: Final = 1  # a message for a queue
REFERENCE: Final = 2  # a message of this batch is for this queue, too: queue id, sequence, bytes back to its PUT
SETTLE: Final = 3  # any number of (queue id, sequence)
REQUEUE: Final = 4  # queue id, sequence, delivery count, what consumers have changed in the message
PURGE: Final = 5  # queue id, highest sequence gone, any number of kept sequences
MARK: Final = 6  # queue id, delivering and redelivered up to these sequences, any number of redelivered sequences
SPILL: Final = 7  # a message that need not outlive the process
ATOMIC_BEGIN: Final = 8
ATOMIC_END: Final = 9
START: Final = 10  # a segment begins: the marks in force follow, older ones do not count
CLEAN: Final = 11  # a clean stop
ENTRY: Final = 12  # a message of a stream
DEFINE: Final = 13  # a definition or its end, as MessagePack
VOID: Final = 14  # what repair writes in place of a damaged record
MANIFEST: Final = 16  # the files of a data directory, see `manifest`
GIVEN: Final = 15  # queue id, the highest sequence by which a consumer of a former process may know a message

DIGEST_SIZE: Final = 8
RECORD_HEAD_SIZE: Final = 16
MESSAGE_HEAD_SIZE: Final = 52
KIND_OFFSET: Final = 12
MAX_NAME_BYTES: Final = 0xFFFF
MAX_RECORD_BYTES: Final = 0x7FFFFFFF
MAX_MENDED_BYTES: Final = 32 << 10
MAX_NUMBER: Final = 1 << 62  # of sequences, offsets and ids
SECTOR_BYTES: Final = 512
MAX_CACHED_ADDRESSES: Final = 4096


def encode_address(address: Address) -> bytes:
    """The four length bytes and the two names, as a record with a message has them. ValueError over 65,535 bytes."""
    exchange = address.exchange.encode("utf-8", "surrogateescape")
    routing_key = address.routing_key.encode("utf-8", "surrogateescape")
    if len(exchange) > MAX_NAME_BYTES or len(routing_key) > MAX_NAME_BYTES:
        msg = "exchange name and routing key may have at most 65535 bytes each"
        raise ValueError(msg)
    writer = BytesWriter()
    for name in (exchange, routing_key):
        writer.append(len(name) >> 8)
        writer.append(len(name) & 0xFF)
    writer.write(exchange)
    writer.write(routing_key)
    return writer.getvalue()


def small_record(kind: i64, fields: bytes) -> bytes:
    """A whole record without a message."""
    writer = BytesWriter()
    write_i64_be(writer, ((RECORD_HEAD_SIZE + len(fields)) << 32) | (kind << 24))
    writer.write(fields)
    head = writer.getvalue()
    return DIGEST(head) + head


def integers(values: list[int]) -> bytes:
    """Eight bytes each, as the fields of a small record."""
    writer = BytesWriter()
    for value in values:
        write_i64_be(writer, value)
    return writer.getvalue()


def message_record(
    writer: BytesWriter, kind: i64, queue_id: i64, sequence: i64, message: Message, address: bytes, pieces: list[bytes]
) -> i64:
    """Append the pieces of a record with a message to `pieces`. Returns its length. `writer` is scratch space.

    This is the hot path of storage: one buffer for the head, two digests, no copy of the content.
    """
    content = message.content
    length: i64 = 48 + len(address) + len(content)
    if length > MAX_RECORD_BYTES:
        msg = f"a message of {len(content)} bytes is too large to store"
        raise ValueError(msg)
    flags: i64 = 0x10000 if message.durable else 0
    writer.truncate(0)
    write_i64_be(writer, (length << 32) | (kind << 24) | flags | (message.format.code << 8) | message.priority)
    write_i64_be(writer, queue_id)
    write_i64_be(writer, sequence)
    write_f64_be(writer, message.published_at)
    write_i64_be(writer, message.ttl_ms)
    writer.write(address)
    head = writer.getvalue()
    pieces.append(DIGEST(content, INT_DIGEST(head)))
    pieces.append(head)
    pieces.append(content)
    return length


def record_length(data: bytes, index: i64, end: i64) -> i64:
    """The length of the record at `index`, or -1 if it is impossible."""
    if end - index < RECORD_HEAD_SIZE:
        return -1
    length: i64 = read_i64_be(data, index + DIGEST_SIZE) >> 32
    if length < RECORD_HEAD_SIZE or length > end - index:
        return -1
    return length


def record_is_whole(data: bytes, index: i64, length: i64) -> bool:
    """Whether the record's digest matches its bytes."""
    stop = index + length
    if stop > len(data):
        return False
    kind: i64 = data[index + KIND_OFFSET]
    if kind in (PUT, ENTRY, SPILL):
        if length < MESSAGE_HEAD_SIZE:
            return False
        head_end = content_index(data, index)
        if head_end > stop:
            return False
        seed = INT_DIGEST(data[index + DIGEST_SIZE : head_end])
        return DIGEST(data[head_end:stop], seed) == data[index : index + DIGEST_SIZE]
    return DIGEST(data[index + DIGEST_SIZE : stop]) == data[index : index + DIGEST_SIZE]


def record_fits(data: bytes, index: i64, length: i64) -> bool:
    """Whether the fields of a record with a matching digest are plausible.

    A digest does not protect against an attacker who can write to the disk: check numbers before using them.
    """
    kind: i64 = data[index + KIND_OFFSET]
    first = index + RECORD_HEAD_SIZE
    if kind in (PUT, ENTRY):
        # A timestamp may be anything.
        numbers = read_i64_be(data, first + 8) | (read_i64_be(data, first) if kind == PUT else 0)
        return 0 <= numbers <= MAX_NUMBER
    size = length - RECORD_HEAD_SIZE
    if kind == SETTLE:
        return size % 16 == 0
    if kind == REFERENCE:
        return (
            size == 24
            and 0 <= read_i64_be(data, first) | read_i64_be(data, first + 8) <= MAX_NUMBER
            and 0 < read_i64_be(data, first + 16) <= index
        )
    if kind == REQUEUE:
        return size >= 24
    if kind == PURGE:
        return size >= 16 and size % 8 == 0 and read_i64_be(data, first + 8) <= MAX_NUMBER
    if kind == MARK:
        return size >= 24 and size % 8 == 0 and _are_numbers(data, first + 8, first + 24)
    if kind == GIVEN:
        return size == 16 and _are_numbers(data, first + 8, first + 16)
    return True


def _are_numbers(data: bytes, start: i64, stop: i64) -> bool:
    """Whether all integers in a range of bytes are sequences, or -1 for none."""
    while start < stop:
        if not -1 <= read_i64_be(data, start) <= MAX_NUMBER:
            return False
        start += 8
    return True


def is_flipped(record: bytes, *, is_last: bool) -> bool:
    """Whether a record is bad because of a single wrong bit. `is_last`: nothing follows it.

    A crash hardly ever causes that: it leaves zeros or older bytes in whole sectors, or cuts the end.
    """
    if bytes(SECTOR_BYTES) in record:
        return False
    if mended_length(record, 0, len(record)) == len(record):
        return True
    good = mended(record)
    return good is not None and not (is_last and lacks_end(record, good))


def lacks_end(data: bytes, good: bytes) -> bool:
    """Whether `data` differs from `good` only by zeros in place of its end."""
    end = len(data.rstrip(b"\0"))
    return data[:end] == good[:end]


def mended_length(data: bytes, index: i64, end: i64) -> i64:
    """The length of a record with a single wrong bit, in its length; -1 if that is not the case."""
    if end - index < RECORD_HEAD_SIZE:
        return -1
    claimed: i64 = read_i64_be(data, index + DIGEST_SIZE) >> 32 & 0xFFFFFFFF
    for bit in range(32):
        length: i64 = claimed ^ (1 << bit)
        if RECORD_HEAD_SIZE <= length <= end - index:
            head = data[index : index + DIGEST_SIZE] + int(length).to_bytes(4, "big")
            if record_is_whole(head + data[index + 12 : index + length], 0, length):
                return length
    return -1


def mended(record: bytes) -> bytes | None:
    """A bad record with its one wrong bit corrected. None if more bits are wrong, or if it is too long to try."""
    length: i64 = len(record)
    if not RECORD_HEAD_SIZE <= length <= MAX_MENDED_BYTES:
        return None
    octets = bytearray(record)
    for index in range(len(record)):
        for bit in range(8):
            octets[index] ^= 1 << bit
            tried = bytes(octets)
            if record_length(tried, 0, length) == length and record_is_whole(tried, 0, length):
                return tried
            octets[index] ^= 1 << bit
    return None


def content_index(data: bytes, index: i64) -> i64:
    """Where the content begins in the record with a message at `index`."""
    sizes = read_i64_be(data, index + 44)
    return index + MESSAGE_HEAD_SIZE + (sizes >> 16 & 0xFFFF) + (sizes & 0xFFFF)


def with_holder(record: bytes, queue_id: i64, sequence: i64) -> bytes:
    """A PUT record with another queue and sequence."""
    head_end = content_index(record, 0)
    writer = BytesWriter()
    writer.write(record[DIGEST_SIZE:RECORD_HEAD_SIZE])
    write_i64_be(writer, queue_id)
    write_i64_be(writer, sequence)
    writer.write(record[32:head_end])
    head = writer.getvalue()
    content = record[head_end:]
    return DIGEST(content, INT_DIGEST(head)) + head + content


class RecordReader:
    """Turns records with a message back into messages; those published to one address share their `Address`."""

    def __init__(self, formats: list[MessageFormat]) -> None:
        self._formats: dict[int, MessageFormat] = {message_format.code: message_format for message_format in formats}
        self._addresses: dict[bytes, Address] = {}

    def whole_messages(self, data: bytes, base: i64, locations: "array[int]", messages: list[Message | None]) -> None:
        """Add the messages of the PUT and SPILL records at `data[location - base]`, up to the first bad one.

        `messages` has those of the first locations already.
        """
        size: i64 = len(data)
        # Neighbours usually have the same traits (kind, flags, format, priority) and address.
        traits: i64 = -1
        durable = False
        priority: i64 = 0
        message_format: MessageFormat | None = None
        name_sizes: i64 = -1
        head_size: i64 = 0
        address: Address | None = None
        address_bytes = b""
        for location in locations[len(messages) :]:
            index: i64 = location - base
            if index < 0 or size - index < MESSAGE_HEAD_SIZE:
                return
            first = read_i64_be(data, index + DIGEST_SIZE)
            if first & 0xFFFFFFFF != traits:
                traits = first & 0xFFFFFFFF
                message_format = self._formats.get(int(traits >> 8 & 0xFF)) if traits >> 24 in (PUT, SPILL) else None
                durable = traits >> 16 & 1 == 1
                priority = traits & 0xFF
            sizes = read_i64_be(data, index + 44) & 0xFFFFFFFF
            if sizes != name_sizes:
                name_sizes = sizes
                head_size = MESSAGE_HEAD_SIZE + (sizes >> 16) + (sizes & 0xFFFF)
            stop: i64 = index + (first >> 32)
            head_end: i64 = index + head_size
            if head_end > stop or stop > size or message_format is None:
                return
            content = data[head_end:stop]
            head = data[index + DIGEST_SIZE : head_end]
            if DIGEST(content, INT_DIGEST(head)) != data[index : index + DIGEST_SIZE]:
                return
            if address is None or head[48 - DIGEST_SIZE :] != address_bytes:
                address_bytes = head[48 - DIGEST_SIZE :]
                address = self._address(address_bytes)
            ttl_ms = read_i64_be(data, index + 40)
            published_at = read_f64_be(data, index + 32)
            messages.append(Message(message_format, content, address, durable, priority, ttl_ms, published_at))

    def message(self, data: bytes, index: i64, length: i64) -> Message:
        """The message of an intact record. Raises DamagedMessage for an unknown format."""
        head_end = content_index(data, index)
        message_format = self._formats.get(data[index + 14])
        if message_format is None:
            raise DamagedMessage(f"message format {data[index + 14]} is unknown")
        return Message(
            message_format,
            data[head_end : index + length],
            self._address(data[index + 48 : head_end]),
            data[index + 13] & 1 == 1,
            data[index + 15],
            read_i64_be(data, index + 40),
            read_f64_be(data, index + 32),
        )

    def _address(self, data: bytes) -> Address:
        address = self._addresses.get(data)
        if address is not None:
            return address
        if len(self._addresses) >= MAX_CACHED_ADDRESSES:
            self._addresses.clear()
        exchange_end = 4 + (data[0] << 8 | data[1])
        address = Address(
            data[4:exchange_end].decode("utf-8", "surrogateescape"),
            data[exchange_end:].decode("utf-8", "surrogateescape"),
        )
        self._addresses[data] = address
        return address


class AddressWriter:
    """Encodes addresses, with a cache of the latest ones by identity."""

    def __init__(self) -> None:
        self._encoded: dict[Address, bytes] = {}

    def encode(self, address: Address) -> bytes:
        encoded = self._encoded.get(address)
        if encoded is None:
            if len(self._encoded) >= MAX_CACHED_ADDRESSES:
                self._encoded.clear()
            encoded = encode_address(address)
            self._encoded[address] = encoded
        return encoded
