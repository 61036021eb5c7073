"""Compare Waybill with RabbitMQ: the same load, on the same machine, in the same run.

    python -m benchmarks.broker [--quick] [--rounds N] [--scenario NAME]... [--broker NAME]... [--json FILE]

Every round starts each broker afresh and runs every scenario on one broker after the other, so that a noisy minute hits
all of them. The load generators are tools/amqpbench.c and, for AMQP 1.0, tools/amqp10bench.c; their README explains the
names of the scenarios.
"""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.contenders import REPOSITORY, Contender, RabbitMQContender, UnavailableError, WaybillContender
from benchmarks.page import write_part
from benchmarks.report import markdown, print_table
from benchmarks.results import Results

TOOLS: Final = REPOSITORY / "benchmarks" / "tools"
PAGE: Final = REPOSITORY / "docs" / "benchmarks" / "broker.md"
RUN_TIMEOUT_S: Final = 300.0
QUICK_SECONDS: Final = 1.0
QUICK_COUNT: Final = 20_000
# Columns of the table where the output is no terminal.
PLAIN_WIDTH: Final = 140

# The name of a scenario, and what amqpbench is asked for.
SCENARIOS: Final[dict[str, list[str]]] = {
    "pub-pcc-1k": ["pub-pcc-1k"],
    "con-pcc-1k-a1": ["con-pcc-1k-a1"],
    "both-pcc-1k-a1": ["both-pcc-1k-a1"],
    "both-tnc-1k-a1": ["both-tnc-1k-a1"],
    "both-pcc-10k-a1": ["both-pcc-10k-a1"],
    "one-at-a-time": ["both-pcc-1k-a1", "--window", "1", "--prefetch", "1"],
    "lat-pcc-1k": ["lat-pcc-1k"],
    "pub-dur-1k": ["pub-dur-1k"],
    "con-dur-1k-a1": ["con-dur-1k-a1"],
    "both-dur-1k-a1": ["both-dur-1k-a1"],
    "both-set-1k-a1": ["both-set-1k-a1"],
    "both-dur-10k-a1": ["both-dur-10k-a1"],
}
# The modes of amqp10bench, in the middle of a scenario's name.
AMQP10_MODES: Final = frozenset({"set", "dur", "durq"})


def contenders() -> list[Contender]:
    return [RabbitMQContender(), WaybillContender(compiled=True), WaybillContender(compiled=False)]


def build_tools() -> None:
    try:
        subprocess.run(["make", "-s", "-C", str(TOOLS), "amqpbench", "amqp10bench"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise click.ClickException(f"the load generator needs make and gcc: {error}") from error


def is_amqp10(arguments: list[str]) -> bool:
    return arguments[0].split("-")[1] in AMQP10_MODES


def run_scenario(contender: Contender, arguments: list[str]) -> dict[str, Any]:
    """One run of a load generator: its JSON line. Raises `UnavailableError` if it does not end well."""
    tool = "amqp10bench" if is_amqp10(arguments) else "amqpbench"
    command = [str(TOOLS / tool), *arguments, "--port", str(contender.port), "--pid", str(contender.pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"no end within {RUN_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        raise UnavailableError(f"{done.stdout.strip()} {done.stderr.strip()}")
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def run_round(
    running: list[Contender],
    scenarios: dict[str, list[str]],
    results: Results,
    progress: Progress,
    quick: bool,  # noqa: FBT001
) -> None:
    task = progress.add_task("", total=len(running) * (len(scenarios) + 1))
    with ExitStack() as stack:
        for contender in running:
            progress.update(task, description=f"start {contender.name}")
            stack.callback(contender.stop)
            seconds = contender.start()
            results.add_start(contender.name, seconds, resident_mb(contender.pid))
            progress.advance(task)
        for scenario, arguments in scenarios.items():
            shortened = [*arguments, *quick_options(arguments)] if quick else arguments
            for contender in running:
                progress.update(task, description=f"{scenario} {contender.name}")
                if is_amqp10(arguments) and not contender.has_amqp10:
                    progress.advance(task)
                    continue
                try:
                    results.add_run(scenario, contender.name, run_scenario(contender, shortened))
                except UnavailableError as error:
                    results.failures.append(f"{contender.name}, {scenario}: {error}")
                progress.advance(task)
    progress.remove_task(task)


def quick_options(arguments: list[str]) -> list[str]:
    if arguments[0].startswith("con"):
        return ["--count", str(QUICK_COUNT)]
    return ["--seconds", str(QUICK_SECONDS)]


def prepare(names: tuple[str, ...], results: Results, console: Console) -> list[Contender]:
    """The contenders that can run here, with their versions noted."""
    running = []
    for contender in contenders():
        if names and contender.name not in names:
            continue
        try:
            with console.status(f"preparing {contender.name}"):
                results.versions[contender.name] = contender.prepare()
        except UnavailableError as error:
            results.failures.append(f"{contender.name}: {error}")
            console.print(f"[yellow]without {contender.name}: {error}[/yellow]")
            continue
        running.append(contender)
    return running


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--scenario", "names", multiple=True, type=click.Choice(list(SCENARIOS)), help="Only these.")
@click.option(
    "--broker", "brokers", multiple=True, type=click.Choice([c.name for c in contenders()]), help="Only these."
)
@click.option("--quick", is_flag=True, help="One round of short runs; writes no page.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), default=PAGE, show_default=True)
def main(
    *, rounds: int, names: tuple[str, ...], brokers: tuple[str, ...], quick: bool, json_path: Path | None, page: Path
) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    build_tools()
    results = Results()
    running = prepare(brokers, results, console)
    if not running:
        raise click.ClickException("no broker to measure")
    scenarios = {name: arguments for name, arguments in SCENARIOS.items() if not names or name in names}
    rounds = 1 if quick else rounds
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        whole = progress.add_task("round", total=rounds)
        for _ in range(rounds):
            run_round(running, scenarios, results, progress, quick)
            progress.advance(whole)
    print_table(results, console)
    if json_path is not None:
        json_path.write_text(json.dumps(results.as_json(), indent=1) + "\n")
    if not quick:
        command = " ".join(["python -m benchmarks.broker", *sys.argv[1:]])
        write_part(page, "speed", markdown(results, command, rounds))
        console.print(f"written: {page}")
    if results.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
