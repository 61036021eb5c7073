"""Prints errors that no verb handles: the cause in one line, or JSON with `--json`."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from waybill.cli.echo import echo, escaped

INTERRUPTED: Final = 130
"""128 + SIGINT, like a shell."""
JSON_WANTED: Final = "waybill.json_wanted"

EXTRAS: Final = {
    "aiohttp": "http",
    "alembic": "state",
    "backports": "http",
    "deltalake": "lake",
    "pandas": "spark",
    "prometheus_client": "metrics",
    "py4j": "spark",
    "pyarrow": "spark",
    "pyiceberg": "lake",
    "pyspark": "spark",
    "sqlalchemy": "state",
}
"""The extra of each package that a verb may need."""


class GuardedGroup(click.Group):
    """The root of the command. Bugs still show their traceback, for a report."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Record whether `--json` is given, even if a verb's own options cannot be parsed."""
        ctx.meta[JSON_WANTED] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as click has it
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            if not ctx.meta[JSON_WANTED]:
                # The message may quote the broker or a job.
                vars(error).update(message=escaped(error.message))
                raise
            show_json(error)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            echo("interrupted", err=True)
            raise SystemExit(INTERRUPTED) from None
        except BrokenPipeError:
            raise  # The reader of a pipe has closed it: exit silently, as click does.
        except OSError as error:
            self._fail(ctx, str(error))
        except ImportError as error:
            # Waybill's own errors have a text and no name.
            package = (error.name or "").partition(".")[0]
            if package and package not in EXTRAS:
                raise
            missing = f"this needs the package {package}: pip install 'waybill-amqp[{EXTRAS.get(package)}]'"
            self._fail(ctx, missing if package else str(error))
        except Exception as error:
            from waybill.client import ClientError
            from waybill.ojs import JobsError

            if not isinstance(error, (ClientError, JobsError)):
                raise
            self._fail(ctx, str(error))

    def _fail(self, ctx: click.Context, cause: str) -> None:
        error = click.ClickException(escaped(cause))
        if ctx.meta[JSON_WANTED]:
            show_json(error)
        else:
            error.show()
        ctx.exit(error.exit_code)


def show_json(error: click.ClickException) -> None:
    """Print an error as JSON to standard error."""
    hint = getattr(error, "hint", "")
    if not hint and isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"see `{error.ctx.command_path} --help`"
    echo(json.dumps({"error": error.format_message(), "hint": hint}), err=True)
