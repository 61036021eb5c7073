"""The manifest for a backup of a running node, and the files that it lists."""

from waybill.node.node import Node
from waybill.storage.journal import Journal


def write_manifest(node: Node) -> None:
    """Record with the next commit which data are durable then. Call `work` afterwards."""
    store = node.runtime.store
    if isinstance(store, Journal):
        store.want_mark()


def durable_files(node: Node) -> list[str]:
    """The names of the store's files, as its manifest lists them, and of the manifest. Raises OSError."""
    store = node.runtime.store
    return store.durable_files() if isinstance(store, Journal) else []
