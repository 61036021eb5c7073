"""The management node: HTTP over AMQP, as RabbitMQ 4 has it. Its clients declare, bind, query, purge and delete by it.

A request is a message whose `subject` is the method, whose `to` is the path, and whose body is an amqp-value: a map or
null. The response has the status as its `subject`, the request's message-id as its correlation-id, and again an
amqp-value: a map, a list, null, or a text that explains an error. `resources` has the paths.
"""

from typing import Final

from librt.strings import BytesWriter

from waybill.engine.amqp10.resources import BAD_REQUEST, Answer, Failure, Resources
from waybill.engine.host import Host, User
from waybill.model.errors import AccessRefused, ModelError, NotAllowed, NotFound, PreconditionFailed, ResourceLocked
from waybill.model.virtual_host import VirtualHost
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.errors import DecodeError, EncodeError
from waybill.wire.amqp10.message import Properties
from waybill.wire.amqp10.scan import ABSENT
from waybill.wire.amqp10.sections import (
    MessageFacts,
    decode_body,
    decode_properties,
    encode_amqp_value,
    encode_application_properties,
    scan_message,
)

FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409

_VERSION: Final = {"http:response": "1.1"}


class Management:
    """The node as one connection sees it: `connection` owns the exclusive queues that it declares."""

    def __init__(self, host: Host, user: User, virtual_host: VirtualHost, connection: object) -> None:
        self._resources = Resources(host, user, virtual_host, connection)

    def handle(self, request: bytes) -> bytes:
        """Do what a request asks for; the sections of the response, without a header.

        Never raises for what a peer sends. What the response tells of is durable only with the next commit.
        """
        properties = Properties()
        try:
            facts = MessageFacts()
            scan_message(request, 0, len(request), facts)
            if facts.properties != ABSENT:
                properties = decode_properties(request, facts.properties, facts.properties_end)
            answer = self._answer(properties, _body(request, facts))
        except (DecodeError, Failure, ModelError) as error:
            answer = Answer(_status(error), str(error))
        return _response(properties, answer)

    def _answer(self, properties: Properties, body: object) -> Answer:
        if properties.to is None or properties.subject is None:
            raise Failure(BAD_REQUEST, "a request has a method in its subject and a path in to")
        return self._resources.answer(properties.subject, properties.to, body)


def _body(request: bytes, facts: MessageFacts) -> object:
    """What the amqp-value holds; None without a body. The octets of a body of data are no request."""
    if facts.body_kind != descriptors.AMQP_VALUE:
        return None
    return decode_body(request, facts.body, facts.body_end)[0]


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
