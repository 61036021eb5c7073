"""Reading the event stream can be paused at any time, and goes on where it was."""

from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from waybill.client import BasicProperties
from waybill.ojs.coordinator.event_reader import EventReader
from waybill.ojs.coordinator.stream_identity import StreamMark


def delivery(offset: int) -> Mock:
    return Mock(body=b"{}", properties=BasicProperties(headers={"x-stream-offset": offset}))


@pytest.mark.plain_source
async def test_a_pause_before_the_answer_of_the_broker_loses_nothing() -> None:
    """The first messages may come before it."""
    taken: list[int] = []
    consumers: list[AsyncMock] = []

    def take(mark: StreamMark, _: object) -> None:
        taken.append(mark.offset)
        reader.folded(mark)
        if len(taken) == 2:
            reader.pause()

    async def consume(_: str, callback: Any, *, arguments: dict[str, object]) -> AsyncMock:
        consumers.append(AsyncMock(arguments=arguments))
        for offset in range(1 if len(consumers) > 1 else 0, 4):
            callback(delivery(offset))
        return consumers[-1]

    reader = EventReader(take, lambda: None)
    reader._channel = Mock(consume=consume, qos=AsyncMock())
    await reader.begin(0, None)
    assert reader.is_paused
    assert taken == [0, 1]
    await reader.resume(1)
    consumers[0].cancel.assert_awaited_once()
    assert not reader.is_paused
    assert taken == [0, 1, 2, 3]
    reader.close()
