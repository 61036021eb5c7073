"""Definitions: /api/definitions, for the node and for one virtual host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Any, Final

from waybill.management.api_context import ApiContext
from waybill.management.call import NO_CONTENT, Answer, Call, object_of
from waybill.management.errors import Refused, bad_request
from waybill.management.listing import Item, encode
from waybill.management.long_answers import LongAnswers
from waybill.management.overview import VERSION
from waybill.management.router import Route
from waybill.node.definitions import DefinitionImport, Export
from waybill.node.node import Node

VERSIONS: Final = {"rabbit_version": VERSION, "rabbitmq_version": VERSION}
BATCH: Final = 50
"""Items to write before other requests are served."""
WEIGHT_MAX: Final = 1_000_000
"""About 75,000 queues: see `waybill.management.call.WEIGHT_MAX`."""
PARTS_MAX: Final = 20
VIRTUAL_HOST_SECTIONS: Final = ("parameters", "policies", "queues", "exchanges", "bindings")


class DefinitionRoutes:
    """The routes for definitions."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/definitions", self._export, is_large=True),
            Route("POST", "/definitions", self._import, is_large=True),
            Route("GET", "/definitions/{vhost}", self._export_one, is_large=True),
            Route("POST", "/definitions/{vhost}", self._import_one, is_large=True),
        ]

    async def _export(self, call: Call) -> Answer:
        call.principal.require_administrator()
        export = Export(self._context.node)
        await _check(call.long_answers, export)
        values = self._context.administration.parameters.values
        head = {
            **VERSIONS,
            **export.head,
            "global_parameters": [{"name": name, "value": value} for name, value in sorted(values.items())],
        }
        return Answer(200, headers=_as_file(call), stream=_written(call.long_answers, head, export.sections()))

    async def _export_one(self, call: Call) -> Answer:
        call.principal.require_administrator()
        host = self._context.virtual_host(call)
        export = Export(self._context.node)
        await _check(call.long_answers, export)
        sections = (
            (section, _without_host(items, host.name))
            for section, items in export.sections()
            if section in VIRTUAL_HOST_SECTIONS
        )
        return Answer(200, headers=_as_file(call), stream=_written(call.long_answers, dict(VERSIONS), sections))

    async def _import(self, call: Call) -> Answer:
        call.principal.require_administrator()
        await self._apply(call, _document(call))
        return Answer(NO_CONTENT)

    async def _import_one(self, call: Call) -> Answer:
        call.principal.require_administrator()
        host = self._context.virtual_host(call)
        document = _document(call)
        taken: Item = {}
        for section in VIRTUAL_HOST_SECTIONS:
            items = _items(document, section)
            taken[section] = [{**item, "vhost": host.name} for item in items if isinstance(item, dict)]
        await self._apply(call, taken)
        return Answer(NO_CONTENT)

    async def _apply(self, call: Call, document: Item) -> None:
        """Import a document. Raises Refused if an item is refused; the other items are imported."""
        rest = {name: value for name, value in document.items() if name != "global_parameters"}
        global_parameters = _items(document, "global_parameters")
        importing = DefinitionImport(self._context.node, rest)
        await self._context.perform(lambda _node: importing)

        def put_parameters(node: Node) -> None:
            for item in global_parameters:
                if isinstance(item, dict) and isinstance(item.get("name"), str):
                    node.administration.parameters.put(item["name"], item.get("value"))

        await self._context.perform(put_parameters)
        errors = importing.report.errors
        if errors:
            raise bad_request("; ".join(errors[:10]))


def _without_host(items: Iterator[Item], host: str) -> Iterator[Item]:
    """Return the items of a virtual host without its name. The others become empty items."""
    for item in items:
        yield {name: value for name, value in item.items() if name != "vhost"} if item["vhost"] == host else {}


async def _check(long_answers: LongAnswers, export: Export) -> None:
    """Read all items, because an error cannot be answered once a part is sent. Raises InvalidArgument."""
    for _, items in export.sections():
        for index, _ in enumerate(items):
            if not index % BATCH:
                await long_answers.step()


async def _written(
    long_answers: LongAnswers, head: Item, sections: Iterator[tuple[str, Iterator[Item]]]
) -> AsyncIterator[bytes]:
    """Write a document; empty items are left out."""
    yield encode(head)[:-1]
    for section, items in sections:
        before = b',"%b":[' % section.encode()
        while batch := list(islice(items, BATCH)):
            if octets := b",".join(encode(item) for item in batch if item):
                yield before + octets
                before = b","
            await long_answers.step()
        yield b"]" if before == b"," else before + b"]"
    yield b"}"


def _items(document: Item, section: str) -> list[Any]:
    """Return the items of a section. Raises Refused."""
    items = document.get(section) or []
    if not isinstance(items, list):
        raise bad_request(f"{section} must be a list")
    return items


def _document(call: Call) -> Item:
    """Return the document of a request: the JSON body, or the file of a form. Raises Refused."""
    octets = call.take_octets(WEIGHT_MAX)
    kind = call.request.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        return object_of(octets) if octets.strip() else {}
    _, _, boundary = kind.partition("boundary=")
    for part in octets.split(b"--" + boundary.strip('"').encode("latin-1"), PARTS_MAX):
        head, _, content = part.partition(b"\r\n\r\n")
        if b'name="file"' in head:
            return object_of(content.strip())
    raise Refused(400, "not_json", "bad_request")


def _as_file(call: Call) -> list[tuple[str, str]]:
    name = call.query.get("download", "")
    safe = "".join(one for one in name if one.isalnum() or one in "-_.@ ")
    return [("Content-Disposition", f'attachment; filename="{safe}"')] if safe else []
