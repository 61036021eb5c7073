"""What the terminal shows while the jobs run: a small panel that renews itself, or plain lines where there is none."""

import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.demo.processes import BrokerProcess
from examples.demo.progress import Progress

REFRESHES_PER_SECOND: Final = 8
PLAIN_LINE_SECONDS: Final = 2.0
BAR_WIDTH: Final = 40


class Display:
    """Shows progress inside of its context. Milestones stay on the screen above what renews itself."""

    def __init__(self, console: Console, progress: Progress, broker: BrokerProcess) -> None:
        """Show `progress` and the state of `broker` on `console`."""
        self._console = console
        self._progress = progress
        self._broker = broker
        self._next_line = 0.0
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                console=console,
                get_renderable=self._panel,
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=False,
            )

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state on the screen."""
        if self._live is not None:
            self._live.stop()
        else:
            self._console.print(self._line())

    def tick(self) -> None:
        """Print a plain line if it is time for one."""
        if self._live is None and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + PLAIN_LINE_SECONDS
            self._console.print(self._line())

    def _panel(self) -> RenderableType:
        progress = self._progress
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=max(progress.total, 1), completed=progress.ended_count, width=BAR_WIDTH),
            f"{progress.ended_count:,} of {progress.total:,}",
            Text(f"{progress.rate:,.0f} jobs/s", style="cyan"),
        )
        return Group(Text(), bar, self._counts(), self._broker_state())

    def _counts(self) -> Text:
        progress = self._progress
        return Text.assemble(
            (f"{len(progress.pushed):,}", "bold"),
            " pushed   ",
            (f"{len(progress.completed):,}", "bold green"),
            " completed   ",
            (f"{len(progress.waiting):,}", "bold yellow"),
            " waiting for a retry   ",
            (f"{len(progress.discarded):,}", "bold red"),
            " dead letters",
        )

    def _broker_state(self) -> Text:
        pid = self._broker.pid
        if pid is None:
            return Text.assemble("broker ", ("down", "bold red"))
        return Text.assemble("broker ", ("up", "bold green"), (f"   process {pid}, port {self._broker.port}", "dim"))

    def _line(self) -> Text:
        progress = self._progress
        share = 100 * progress.ended_count // max(progress.total, 1)
        state = "up" if self._broker.pid is not None else "down"
        return Text.assemble(f"  {share:3} %  ", self._counts(), f"   {progress.rate:,.0f} jobs/s   broker {state}")
