"""Creates new definitions for a data directory whose own are lost.

Every queue with messages and every stream is named `recovered.` and its id. There are no users or permissions: an
operator must import them. The old file, if any, and older ones are kept next to the new one.
"""

from typing import Final

from waybill.model.message import MessageFormat
from waybill.storage.check import check_versions
from waybill.storage.definitions import NAME, Definitions
from waybill.storage.filesystem import Filesystem
from waybill.storage.journal import Journal
from waybill.storage.manifest import NAME as MANIFEST_NAME
from waybill.storage.manifest import encode_manifest, read_manifest, write_manifest

OLD_NAME: Final = "definitions.log.lost"
PREFIX: Final = "recovered."
VIRTUAL_HOST: Final = "/"


def rebuild(filesystem: Filesystem, formats: list[MessageFormat]) -> tuple[dict[str, int], list[str]]:
    """Replace the definitions. Returns how many messages each queue has, by name, and the names of streams.

    Raises OSError, and UnsupportedStoreVersion: then nothing was changed.
    """
    check_versions(filesystem)
    names = filesystem.list_directory("")
    if NAME in names:
        filesystem.rename(NAME, _free_name(names))
        filesystem.sync_directory("")
    manifest = read_manifest(filesystem)
    if MANIFEST_NAME in filesystem.list_directory(""):
        # Without the definitions; all other entries stay.
        extents = [extent.encoded() for extent in manifest.extents.values() if extent.name != NAME]
        write_manifest(filesystem, encode_manifest(manifest.next_id, extents, is_clean=False))
    definitions = Definitions(filesystem)
    definitions.begin()
    definitions.close()
    journal = Journal.open(filesystem, formats)
    messages, streams = journal.unclaimed()
    journal.define("seeded", "seeded", {})
    journal.define("virtual_host", VIRTUAL_HOST, {"max_connections": -1, "max_queues": -1})
    for queue_id in sorted(messages):
        _define_queue(journal, queue_id, {})
    for stream_id in streams:
        _define_queue(journal, stream_id, {"x-queue-type": "stream"})
    journal.close()
    return {f"{PREFIX}{queue_id}": count for queue_id, count in sorted(messages.items())}, [
        f"{PREFIX}{stream_id}" for stream_id in streams
    ]


def _free_name(names: list[str]) -> str:
    """Where to keep the old file."""
    name = OLD_NAME
    number = 1
    while name in names:
        number += 1
        name = f"{OLD_NAME}.{number}"
    return name


def _define_queue(journal: Journal, queue_id: int, arguments: dict[str, object]) -> None:
    name = f"{PREFIX}{queue_id}"
    journal.define(
        "queue",
        f"{VIRTUAL_HOST}\0{name}",
        {"virtual_host": VIRTUAL_HOST, "name": name, "id": queue_id, "auto_delete": False, "arguments": arguments},
    )
