"""Names of the filters of a source (1.0, 3.5.8), which are described values.

The specification defines no filters. Clients use these, by symbol or by number.
"""

from typing import Final

from waybill.wire.amqp10.types import Described, Symbol, ULong

DIRECT_BINDING: Final = "apache.org:legacy-amqp-direct-binding:string"
TOPIC_BINDING: Final = "apache.org:legacy-amqp-topic-binding:string"
HEADERS_BINDING: Final = "apache.org:legacy-amqp-headers-binding:map"
NO_LOCAL: Final = "apache.org:no-local-filter:list"
SELECTOR: Final = "apache.org:selector-filter:string"
PROPERTIES: Final = "amqp:properties-filter"
APPLICATION_PROPERTIES: Final = "amqp:application-properties-filter"
SQL: Final = "amqp:sql-filter"
STREAM_OFFSET: Final = "rabbitmq:stream-offset-spec"
STREAM_FILTER: Final = "rabbitmq:stream-filter"
STREAM_MATCH_UNFILTERED: Final = "rabbitmq:stream-match-unfiltered"

NAMES: Final[dict[int, str]] = {
    0x0000468C_00000000: DIRECT_BINDING,
    0x0000468C_00000001: TOPIC_BINDING,
    0x0000468C_00000002: HEADERS_BINDING,
    0x0000468C_00000003: NO_LOCAL,
    0x0000468C_00000004: SELECTOR,
    0x120: SQL,
    0x173: PROPERTIES,
    0x174: APPLICATION_PROPERTIES,
}
"""Filters by number."""


def filter_name(value: Described) -> str:
    """The symbol of a filter, known or not; empty if its descriptor is neither a symbol nor a known number."""
    descriptor = value.descriptor
    if isinstance(descriptor, Symbol):
        return str(descriptor)
    if isinstance(descriptor, ULong):
        return NAMES.get(int(descriptor), "")
    return ""
