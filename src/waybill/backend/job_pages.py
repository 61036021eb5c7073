"""Reads many jobs, a page at a time, so that others need not wait for the store."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator

from waybill.ojs.coordinator.job_store import JobDetail, JobFilter, JobStore
from waybill.ojs.coordinator.job_view import JobView


async def pages(
    view: JobView, wanted: JobFilter, size: int, most: int, oldest: str = ""
) -> AsyncGenerator[list[JobDetail]]:
    """Yield the newest jobs that may match, at most `size` at a time, until about `most` were examined.

    Jobs with ids below `oldest` are not looked for.
    """
    before, examined = "", 0
    while examined < most:
        found, before = await view.read(functools.partial(_page, wanted, before, size))
        examined += size if wanted.is_looked_for else len(found)
        yield found
        if not before or before < oldest:
            break


def _page(wanted: JobFilter, before: str, size: int, store: JobStore) -> tuple[list[JobDetail], str]:
    return store.search(wanted, before, size, size)
