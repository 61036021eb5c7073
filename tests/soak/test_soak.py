"""A few quick rounds of what `make soak` does for long."""

import asyncio
from pathlib import Path

from tests.conformance.requirement import requirement
from tests.soak.ledger import Figures
from tests.soak.rounds import soak

ROUNDS = 5


@requirement("M010-014", "M010-041", "M010-062", "X010-043")
async def test_five_kills_break_no_promise(tmp_path: Path) -> None:
    seen: list[int] = []

    def after_round(figures: Figures) -> None:
        seen.append(figures.rounds)

    async with asyncio.timeout(100):
        figures = await soak(tmp_path, 5, ROUNDS, 0.8, after_round)
    assert seen == list(range(1, ROUNDS + 1))
    assert (figures.lost, figures.came_back) == (0, 0)
    assert (
        min(figures.confirmed, figures.settled, figures.transactions, figures.moved, figures.appended, figures.branches)
        > 0
    )
