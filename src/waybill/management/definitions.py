"""Definitions: /api/definitions, for the node and for one virtual host."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from waybill.management.api_context import ApiContext
from waybill.management.call import NO_CONTENT, Answer, Call
from waybill.management.errors import Refused, bad_request
from waybill.management.listing import Item
from waybill.management.overview import VERSION
from waybill.management.router import Route
from waybill.node.definitions import DefinitionImport, export_definitions
from waybill.node.node import Node

VIRTUAL_HOST_SECTIONS: Final = ("parameters", "policies", "queues", "exchanges", "bindings")


class DefinitionRoutes:
    """The routes for definitions."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/definitions", self._export),
            Route("POST", "/definitions", self._import),
            Route("GET", "/definitions/{vhost}", self._export_one),
            Route("POST", "/definitions/{vhost}", self._import_one),
        ]

    async def _export(self, call: Call) -> Answer:
        call.principal.require_administrator()
        values = self._context.administration.parameters.values
        document: Item = {
            "rabbit_version": VERSION,
            "rabbitmq_version": VERSION,
            **export_definitions(self._context.node),
            "global_parameters": [{"name": name, "value": value} for name, value in sorted(values.items())],
        }
        return Answer(200, document, headers=_as_file(call))

    async def _export_one(self, call: Call) -> Answer:
        call.principal.require_administrator()
        host = self._context.virtual_host(call)
        document = export_definitions(self._context.node)
        found: Item = {"rabbit_version": VERSION, "rabbitmq_version": VERSION}
        for section in VIRTUAL_HOST_SECTIONS:
            items: Any = document[section]
            found[section] = [
                {name: value for name, value in item.items() if name != "vhost"}
                for item in items
                if item["vhost"] == host.name
            ]
        return Answer(200, found, headers=_as_file(call))

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


def _items(document: Item, section: str) -> list[Any]:
    """Return the items of a section. Raises Refused."""
    items = document.get(section) or []
    if not isinstance(items, list):
        raise bad_request(f"{section} must be a list")
    return items


def _document(call: Call) -> Item:
    """Return the document of a request: the JSON body, or the file of a form. Raises Refused."""
    kind = call.request.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        return call.body()
    _, _, boundary = kind.partition("boundary=")
    for part in call.request.body.split(b"--" + boundary.strip('"').encode("latin-1")):
        head, _, content = part.partition(b"\r\n\r\n")
        if b'name="file"' in head:
            try:
                found = msgspec.json.decode(content.strip())
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                break
            if isinstance(found, dict):
                return found
    raise Refused(400, "not_json", "bad_request")


def _as_file(call: Call) -> list[tuple[str, str]]:
    name = call.query.get("download", "")
    safe = "".join(one for one in name if one.isalnum() or one in "-_.@ ")
    return [("Content-Disposition", f'attachment; filename="{safe}"')] if safe else []
