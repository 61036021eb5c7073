"""A short fuzz of every endpoint; `make fuzz-http` is the long one."""

from __future__ import annotations

import pytest

from tests.backend.fuzz import KNOWN, find_schemathesis, fuzz


def test_no_endpoint_fails_or_answers_what_is_not_documented() -> None:
    command = find_schemathesis()
    if command is None:
        pytest.skip("needs schemathesis: pip install 'waybill-amqp[dev]'")
    assert fuzz(command, examples=1, phases="fuzzing", seed=7, rounds=[KNOWN]) == []
