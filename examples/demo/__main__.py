"""Waybill at work on real files, with a crash in the middle: `make demo`, or `make demo DIR=...`.

One job for each file of a directory: read it, parse it as Python, count. Two worker processes do them. Half-way the
broker is killed and started again. In the end every job must be accounted for, and Spark turns the jobs' events into
tables and a report, whose totals must be the same.
"""

import asyncio
import fcntl
import logging
import shutil
import signal
import sys
import sysconfig
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TextIO

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from examples.demo import evidence
from examples.demo.files import MAX_FILE_BYTES, MAX_FILES, select_files
from examples.demo.processes import REPOSITORY, ProcessFailed
from examples.demo.run import Run, Stalled, do_jobs
from waybill.client import ClientError
from waybill.ojs import JobsError

MARKER = "made-by-make-demo"
RESULTS_SHOWN = 5
LOG_WIDTH = 120


@click.command()
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=sysconfig.get_path("stdlib"),
    help="The files to work on.  [default: the standard library of this Python]",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=REPOSITORY / "demo-data",
    help="Where everything is kept; emptied first.  [default: demo-data]",
)
@click.option("--keep", is_flag=True, help="Leave broker and dashboard up in the end, until Ctrl-C.")
def main(directory: Path, data: Path, *, keep: bool) -> None:
    """Run the demo. Exit code 1: a job is lost, or two accounts differ."""
    # A log file has no width of its own.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
    directory = directory.resolve()
    paths = choose(console, directory)
    with prepare(data):
        logging.basicConfig(
            filename=data / "demo.log", format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO
        )
        sys.exit(work(console, directory, data, paths, keep=keep))


def work(console: Console, directory: Path, data: Path, paths: list[Path], *, keep: bool = False) -> int:
    """Run the demo and say how it ended; return the exit code."""
    try:
        with asyncio.Runner() as runner:
            problems = runner.run(demo(console, directory, data, paths, keep=keep))
    except (ProcessFailed, Stalled, ClientError, JobsError) as error:
        problems = [str(error)]
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("\nstopped, and all processes with it")
        return 130
    for problem in problems:
        console.print(f"[bold red]✗ {escape(problem)}[/]")
    if problems:
        console.print(f"  logs: {shown(data)}", markup=False)
    return 1 if problems else 0


def choose(console: Console, directory: Path) -> list[Path]:
    """Say which files are taken, and return them."""
    selection = select_files(directory)
    if not selection.paths:
        raise click.UsageError(f"there is no file below {directory}")
    console.print(
        f"[bold]Waybill demo[/]: one job for each of {len(selection.paths):,} files below {escape(str(directory))}"
    )
    left_out = f"; left out: {selection.left_out:,}" if selection.left_out else ""
    limits = f"at most {MAX_FILES:,}, each up to {MAX_FILE_BYTES // 2**20} MiB"
    console.print(f"[dim]without caches, hidden and third-party directories; {limits}{left_out}[/]\n")
    return selection.paths


def prepare(data: Path) -> TextIO:
    """Make an empty directory, and return the lock on it. One that no demo made, or that one uses, stays untouched."""
    marker = data / MARKER
    if marker.exists():
        with marker.open("a", encoding="utf-8") as file:
            lock(file)
            shutil.rmtree(data)
    elif data.exists() and any(data.iterdir()):
        raise click.UsageError(f"{data} is not empty, and no demo has made it")
    data.mkdir(parents=True, exist_ok=True)
    file = marker.open("a", encoding="utf-8")
    lock(file)
    return file


def lock(file: TextIO) -> None:
    """Lock a file until it is closed, or say that somebody else has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise click.UsageError(f"another demo is at work in {Path(file.name).parent}") from None


async def demo(console: Console, directory: Path, data: Path, paths: list[Path], *, keep: bool = False) -> list[str]:
    """Run it, from the broker's start to the report; return what is wrong in the end."""
    began = time.monotonic()
    task = asyncio.current_task()
    if task is not None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async with AsyncExitStack() as stack:
        run = await do_jobs(stack, console, data, paths)
        problems = run.disagreements()
        show_account(console, run)
        show_results(console, run, directory)
        if problems:
            return problems
        problems = await report(console, data, run)
        if keep and not problems:
            console.print("\n[bold]Broker and dashboard stay up[/] until Ctrl-C.")
            await asyncio.Event().wait()
    if not problems:
        console.print("[green]✓[/] the report's totals are those of the workers and queues")
        console.print(f"\ntables      {shown(data / 'tables')}")
        console.print(f"page        {shown(data / 'report.html')}")
        console.print(f"\n[bold green]No job was lost.[/] [dim]All in {time.monotonic() - began:.0f} s.[/]")
    return problems


async def report(console: Console, data: Path, run: Run) -> list[str]:
    """Run the pipeline and compare its totals."""
    code = await run.report(data / "tables", data / "report.html", data / "totals.json")
    if code:
        return [f"the pipeline failed with exit code {code}: see {shown(data / 'spark.log')}"]
    console.print()
    return evidence.report_differences(data / "totals.json", run.evidence)


def show_account(console: Console, run: Run) -> None:
    """Show that nothing is lost, and what came twice."""
    found = run.evidence
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold")
    table.add_row(f"{len(found.pushed):,}", "pushed", "[dim]ids confirmed to the producer[/]")
    table.add_row(f"{len(found.done):,}", "completed", "[dim]results in the two workers' own notebooks[/]")
    table.add_row(f"{len(found.dead):,}", "discarded", "[dim]messages in the dead letter queue[/]")
    table.add_row(f"{len(found.lost):,}", "lost", "[dim]pushed - completed - discarded[/]")
    table.add_row(
        f"{found.redelivered:,}",
        "redelivered",
        "[dim]deliveries flagged so after the crash: the broker cannot know more[/]",
    )
    table.add_row(
        f"{found.done_twice:,}",
        "done twice",
        "[dim]in full, by both workers or by one: the promise is at least once[/]",
    )
    console.print()
    console.print(table)
    console.print()


def show_results(console: Console, run: Run, directory: Path) -> None:
    """Show what some of the jobs have returned."""
    table = Table(title="Results: the most functions", title_justify="left", title_style="bold", header_style="dim")
    table.add_column("file", overflow="ellipsis", no_wrap=True)
    for name in ("lines", "functions"):
        table.add_column(name, justify="right")
    table.add_column("sha256")
    results = [(one.path, one.result) for one in run.evidence.done.values() if one.result is not None]
    results.sort(key=lambda one: (-one[1]["functions"], one[0]))
    for path, result in results[:RESULTS_SHOWN]:
        name = escape(str(Path(path).relative_to(directory)))
        table.add_row(name, f"{result['lines']:,}", f"{result['functions']:,}", f"{str(result['sha256'])[:12]}")
    console.print(table)
    console.print()


def shown(path: Path) -> str:
    """Return a path as it is shortest to read from here."""
    path = path.resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    main()
