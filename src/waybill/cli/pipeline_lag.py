"""`waybill pipeline lag`: how far the tables lag behind the stream."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.table import Table

from waybill.cli.console import Console
from waybill.cli.echo import echo
from waybill.cli.target import json_option


@click.command()
@click.option("--uri", required=True, envvar="WAYBILL_URI", help="Broker URL: amqp://user:password@host:port/vhost.")
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), help="Data directory of `waybill pipeline run`."
)
@click.option(
    "--checkpoint",
    type=click.Path(file_okay=False, path_type=Path),
    help="Checkpoint of another query, instead of --data.",
)
@click.option(
    "--stream",
    default="ojs.events",
    show_default=True,
    help="Stream that the query reads, with its partitions; or several, separated by commas.",
)
@click.option("--super-stream", help="Super stream that the query reads, instead of --stream.")
@click.option(
    "--max",
    "most",
    type=click.IntRange(0, 2**63 - 1),
    metavar="N",
    help="Exit with status 1 if more than N messages are left.",
)
@json_option
def lag(
    uri: str,
    data: Path | None,
    checkpoint: Path | None,
    stream: str,
    super_stream: str | None,
    most: int | None,
    as_json: bool,
) -> None:
    """Show how many messages a query has not read yet. Needs no Spark, and works while the query runs."""
    if (data is None) == (checkpoint is None):
        raise click.UsageError("give --data or --checkpoint")
    place = checkpoint or (data or Path()) / "checkpoint"
    from waybill.pipeline.checkpoints import CheckpointError, streams_behind
    from waybill.pipeline.named_options import OptionError
    from waybill.pipeline.options import chosen_stream, parse_options
    from waybill.pipeline.stream_log import StreamError

    given = {"uri": uri, "fetchOffset.numRetries": "0"}
    given |= dict([chosen_stream(stream)]) if super_stream is None else {"superStream": super_stream}
    try:
        found = streams_behind(place, parse_options(given, default_stream=None, streaming=True))
    except OptionError as problem:
        raise click.UsageError(str(problem)) from None
    except (CheckpointError, StreamError) as problem:
        raise click.ClickException(str(problem)) from None
    total = sum(behind for _, _, behind in found.values())
    if as_json:
        streams = {name: {"read_to": at, "end": end, "lag": behind} for name, (at, end, behind) in found.items()}
        echo(json.dumps({"lag": total, "streams": streams}))
    else:
        shown = Table("stream", "read to", "end", "lag", box=None)
        for name, (at, end, behind) in found.items():
            shown.add_row(name, f"{at:,}", f"{end:,}", f"{behind:,}")
        Console().print(shown)
    if most is not None and total > most:
        raise SystemExit(1)
