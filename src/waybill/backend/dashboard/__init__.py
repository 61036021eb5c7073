"""The dashboard's files: plain modules and one style sheet, without a build step.

All files are served from here, and the content security policy allows nothing else: no inline scripts or styles, no
`eval`, no other host. The API key is sent in a header of each request, which other sites cannot make a browser send, so
CSRF is impossible.
"""

from __future__ import annotations

import gzip
import hashlib
from importlib import resources
from typing import Final, NamedTuple

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
INDEX: Final = "index.html"

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Page(NamedTuple):
    """A file: its content, the compressed content, the media type, and the entity tag."""

    content: bytes
    compressed: bytes
    media_type: str
    tag: str


def read_files() -> dict[str, Page]:
    """Return all files by name."""
    found = {}
    for one in resources.files(__name__).iterdir():
        media_type = _TYPES.get("." + one.name.rpartition(".")[2])
        if media_type is not None:
            content = one.read_bytes()
            # Without a timestamp, so that equal files have equal bytes.
            compressed = gzip.compress(content, 9, mtime=0)
            found[one.name] = Page(content, compressed, media_type, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return found
