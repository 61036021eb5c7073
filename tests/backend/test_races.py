"""A few of the races of `tests.backend.races`."""

from tests.backend.races import search


async def test_two_servers_agree_on_what_became_of_a_job() -> None:
    assert await search("waybill", "memory", rounds=12, seed=7) == []
