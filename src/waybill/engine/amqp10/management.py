"""The management node: HTTP over AMQP, as in RabbitMQ 4. Clients use it to declare, bind, query, purge and delete.

A request is a message whose `subject` is the method, whose `to` is the path, and whose body is an amqp-value: a map or
null. The response has the status as its `subject`, the request's message-id as its correlation-id, and again an
amqp-value: a map, a list, null, or a text that explains an error. See `resources` for the paths.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.engine.amqp10.resources import BAD_REQUEST, Answer, Failure, Resources
from waybill.engine.host import Host, User
from waybill.model.errors import AccessRefused, ModelError, NotAllowed, NotFound, PreconditionFailed, ResourceLocked
from waybill.model.virtual_host import VirtualHost
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.descriptors import read_descriptor
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.errors import DecodeError, EncodeError
from waybill.wire.amqp10.message import Properties
from waybill.wire.amqp10.sections import (
    decode_body,
    decode_properties,
    encode_amqp_value,
    encode_application_properties,
)
from waybill.wire.amqp10.skip import skip_value

FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409

EXPLANATION_MAX: Final = 1000
"""An explanation may repeat the path, escaped."""

_VERSION: Final = {"http:response": "1.1"}


class Management:
    """The management node of one connection, which owns the exclusive queues that it declares."""

    def __init__(self, host: Host, user: User, virtual_host: VirtualHost, connection: object) -> None:
        self._resources = Resources(host, user, virtual_host, connection)

    def handle(self, request: bytes) -> bytes:
        """Answer a request. Returns the sections of the response, without a header.

        Never raises for what a peer sends. The effects are durable after the next commit.
        """
        properties = Properties()
        try:
            found = _sections(request)
            if descriptors.PROPERTIES in found:
                start, end = found[descriptors.PROPERTIES]
                properties = decode_properties(request, start, end)
            body: object = None
            if descriptors.AMQP_VALUE in found:
                start, end = found[descriptors.AMQP_VALUE]
                body = decode_body(request, start, end)[0]
            answer = self._answer(properties, body)
        except (DecodeError, Failure, ModelError) as error:
            answer = Answer(_status(error), str(error)[:EXPLANATION_MAX])
        return _response(properties, answer)

    def _answer(self, properties: Properties, body: object) -> Answer:
        if properties.to is None or properties.subject is None:
            raise Failure(BAD_REQUEST, "a request has a method in its subject and a path in to")
        return self._resources.answer(properties.subject, properties.to, body)


def _sections(request: bytes) -> dict[i64, tuple[i64, i64]]:
    """The start and end of each section, by its code. Raises DecodeError.

    Any order is accepted: RabbitMQ's client for Python writes an empty body before the properties.
    """
    found: dict[i64, tuple[i64, i64]] = {}
    end: i64 = len(request)
    offset: i64 = 0
    while offset < end:
        code, value = read_descriptor(request, offset, end)
        after = skip_value(request, value, end)
        found[code] = (offset, after)
        offset = after
    return found


def _status(error: Exception) -> int:
    if isinstance(error, Failure):
        return error.status
    if isinstance(error, NotFound):
        return NOT_FOUND
    if isinstance(error, (AccessRefused, NotAllowed)):
        return FORBIDDEN
    if isinstance(error, (PreconditionFailed, ResourceLocked)):
        return CONFLICT
    return BAD_REQUEST


def _response(request: Properties, answer: Answer) -> bytes:
    out = BytesWriter()
    out.write(
        encode_value(Properties(to=request.reply_to, subject=str(answer.status), correlation_id=request.message_id))
    )
    out.write(encode_application_properties(_VERSION))
    try:
        out.write(encode_amqp_value(answer.body))
    except EncodeError as error:
        out.write(encode_amqp_value(str(error)))
    return out.getvalue()
