"""The document as one HTML page, without scripts and external resources."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any, Final

import msgspec

Json = dict[str, Any]

POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy that the page is served with."""

_STYLE: Final = """
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:60rem;padding:1rem;color:#1b1f24;background:#fff}
h1{font-size:1.6rem}h2{margin-top:2rem;border-bottom:1px solid #d0d7de;text-transform:capitalize}
details{border:1px solid #d0d7de;border-radius:6px;margin:.5rem 0;padding:.4rem .8rem}
summary{cursor:pointer}code,pre{font:13px/1.45 ui-monospace,monospace}
pre{background:#f6f8fa;padding:.6rem;overflow:auto;border-radius:6px}
.method{display:inline-block;min-width:4.5rem;font-weight:600}
table{border-collapse:collapse}td,th{border:1px solid #d0d7de;padding:.2rem .5rem;text-align:left;vertical-align:top}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}pre{background:#161b22}
details,td,th,h2{border-color:#30363d}a{color:#58a6ff}}
"""


def page_of(document: Json) -> str:
    """Return the page."""
    info = document["info"]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{escape(info['title'])}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(info['title'])}</h1><p>Version {escape(info['version'])}. {escape(info['description'])}",
            'The <a href="openapi.json">OpenAPI document</a> is the machine-readable version.</p>',
            *_operations(document),
            "<h2>Schemas</h2>",
            *_schemas(document["components"]["schemas"]),
            "</body></html>",
        ]
    )


def _operations(document: Json) -> Iterator[str]:
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2>"
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    yield from _operation(method, path, operation)


def _operation(method: str, path: str, operation: Json) -> Iterator[str]:
    yield f'<details id="{escape(operation["operationId"])}"><summary>'
    yield f'<span class="method">{escape(method.upper())}</span> <code>{escape(path)}</code>'
    yield f"{escape(operation['summary'])}</summary><p>{escape(operation.get('description', ''))}</p>"
    if operation["parameters"]:
        yield "<table><tr><th>Parameter<th>In<th>What it is</tr>"
        for one in operation["parameters"]:
            name, place = escape(one["name"]), escape(one["in"])
            yield f"<tr><td><code>{name}</code><td>{place}<td>{escape(one.get('description', ''))}</tr>"
        yield "</table>"
    body = operation.get("requestBody")
    if body is not None:
        yield f"<p>Body: {_schema_of(next(iter(body['content'].values())))}</p>"
    yield "<table><tr><th>Status<th>Answer<th>Body</tr>"
    for status, answer in operation["responses"].items():
        content = next(iter(answer.get("content", {}).values()), None)
        shown = "" if content is None else _schema_of(content)
        yield f"<tr><td>{escape(status)}<td>{escape(answer['description'])}<td>{shown}</tr>"
    yield "</table></details>"


def _schema_of(content: Json) -> str:
    schema = content["schema"]
    if "anyOf" in schema:
        return " or ".join(_schema_of({"schema": one}) for one in schema["anyOf"])
    name = schema.get("$ref", "").rpartition("/")[2]
    if name:
        return f'<a href="#schema-{escape(name)}">{escape(name)}</a>'
    return f"<code>{escape(str(schema.get('type', 'any')))}</code>"


def _schemas(schemas: Json) -> Iterator[str]:
    for name, schema in schemas.items():
        text = msgspec.json.format(msgspec.json.encode(schema), indent=2).decode()
        yield f'<details id="schema-{escape(name)}"><summary><code>{escape(name)}</code>'
        yield f"{escape(schema.get('description', ''))}</summary><pre>{escape(text)}</pre></details>"
