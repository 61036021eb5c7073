"""Definitions that can be read and make no sense: the node says which, and does not start."""

import os

import pytest

from tests.storage.support import new_disk, open_journal
from waybill.model.errors import DefinitionsLost
from waybill.node.node import Node, NodeOptions

SENSELESS: dict[str, tuple[str, dict[str, object]]] = {
    "queue": ("q", {"name": "q"}),
    "exchange": ("x", {"virtual_host": "nowhere", "name": "x"}),
    "binding": ("b", {"virtual_host": "/"}),
}


@pytest.mark.parametrize("kind", SENSELESS)
def test_a_definition_that_makes_no_sense_is_named(kind: str) -> None:
    disk = new_disk()
    options = NodeOptions("n", "0", os.urandom, 1 << 20)
    node = Node.open(disk, options, 1.0)
    node.close()
    journal = open_journal(disk)
    journal.define(kind, *SENSELESS[kind])
    journal.close()
    with pytest.raises(DefinitionsLost, match=r"invalid definition of .*waybill store rebuild"):
        Node.open(disk, options, 2.0)
    assert disk.open_files == 0
