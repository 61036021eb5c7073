"""What is cut out of tables, and read of them, against the codec that decodes them whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.amqp091.strategies import tables
from waybill.wire.amqp091.errors import DecodeError
from waybill.wire.amqp091.field_table import MAX_VALUES, decode_table, encode_table
from waybill.wire.amqp091.table_edit import edited_table, some_fields


@given(tables, tables, st.data())
def test_an_edited_table_is_that_of_the_edited_mapping(
    table: dict[str, object], added: dict[str, object], data: st.DataObject
) -> None:
    removed = data.draw(st.lists(st.sampled_from(list(table)))) if table else []
    octets = b"before" + encode_table(table) + b"after"
    left = {name: value for name, value in table.items() if name not in removed and name not in added}
    edited = edited_table(octets, 6, removed, added)
    assert edited == encode_table(left | added)
    assert some_fields(octets, 6, removed) == {name: decode_table(octets, 6)[0][name] for name in removed}


def test_the_last_value_of_a_repeated_name_counts_and_all_are_removed() -> None:
    fields = b"\x01at\x00\x01bt\x01\x01at\x01"
    octets = len(fields).to_bytes(4, "big") + fields
    assert some_fields(octets, 0, ["a"]) == {"a": True}
    assert edited_table(octets, 0, ["a"], {}) == encode_table({"b": True})


def test_an_edited_table_has_no_more_values_than_a_table_may_have() -> None:
    full = encode_table({"": [None] * (MAX_VALUES - 1)})
    assert decode_table(edited_table(full, 0, [""], {"a": 1}), 0)[0] == {"a": 1}
    with pytest.raises(DecodeError, match="more than"):
        edited_table(full, 0, [], {"a": 1})
