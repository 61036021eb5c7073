"""Every number that a command or a constructor takes has a range, and what is beyond it is refused with the range."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import click
import pytest
from click.testing import CliRunner

from waybill.broker import Broker
from waybill.cli.main import main
from waybill.cli.ranges import Number
from waybill.client import ChannelPool, ConnectionPool, InvalidURI, ReconnectPolicy, connect
from waybill.client.uri import parse_uri
from waybill.ojs import Jobs, Topology, Worker
from waybill.ojs.middleware import ConcurrencyLimit, RateLimit, RetryInPlace, TimeLimit
from waybill.ojs.middleware.limited import WaitPolicy
from waybill.pipeline.named_options import OptionError
from waybill.pipeline.options import parse_options

PATHS = (click.Path, click.File, click.Choice)


def options(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Parameter]]:
    for parameter in command.params:
        yield path, parameter
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from options(found, (*path, name))


def numeric() -> list[tuple[tuple[str, ...], click.Parameter]]:
    kinds = (click.types.IntParamType, click.types.FloatParamType)
    return [(path, parameter) for path, parameter in options(main) if isinstance(parameter.type, kinds)]


def test_there_are_numeric_options() -> None:
    assert len(numeric()) > 20


@pytest.mark.parametrize(("path", "parameter"), numeric(), ids=lambda value: str(getattr(value, "name", "")))
def test_every_numeric_option_names_its_range(path: tuple[str, ...], parameter: click.Parameter) -> None:
    kind = parameter.type
    assert isinstance(kind, click.IntRange | Number), f"{path} {parameter.opts}: no range"
    assert kind.min is not None
    assert kind.max is not None
    wrong = [str(kind.min - 1), str(kind.max + 1), "1e999", "x"]
    if isinstance(kind, Number):
        wrong += ["nan", "-inf"]
    for value in wrong:
        result = CliRunner().invoke(main, [*path, parameter.opts[0], value])
        assert result.exit_code == 2, (path, parameter.opts, value, result.output)
        if value not in {"1e999", "x"}:
            said = " ".join(result.output.replace("│", " ").split())
            assert f"{kind.max}" in said or f"{kind.max:g}" in said, said


def test_weights_of_queues_have_a_range() -> None:
    for weight in ("0", "1000001", "9" * 5000, "-1"):
        result = CliRunner().invoke(main, ["worker", "--queues", f"a={weight}", "x:y"])
        assert result.exit_code == 2
        assert "1<=x<=1000000" in result.output


@pytest.mark.parametrize(
    "make",
    [
        lambda: Broker(port=65_536),
        lambda: Broker(port=-1),
        lambda: Broker(tls_port=99_999),
        lambda: Broker(memory_limit_bytes=0),
        lambda: ReconnectPolicy(first_delay_s=-1),
        lambda: ReconnectPolicy(max_delay_s=float("nan")),
        lambda: ReconnectPolicy(jitter=2),
        lambda: ReconnectPolicy(max_attempts=-1),
        lambda: ConnectionPool("amqp://localhost", 0),
        lambda: ChannelPool(connect("amqp://localhost"), 0),
        lambda: Jobs("amqp://localhost", push_timeout=float("nan")),
        lambda: Jobs("amqp://localhost", push_timeout=-1),
        lambda: Worker(Jobs("amqp://localhost"), concurrency=0),
        lambda: Worker(Jobs("amqp://localhost"), concurrency=65_536),
        lambda: Worker(Jobs("amqp://localhost"), prefetch=65_536),
        lambda: Worker(Jobs("amqp://localhost"), processes=0),
        lambda: Worker(Jobs("amqp://localhost"), grace_period=-1.0),
        lambda: Worker(Jobs("amqp://localhost"), grace_period=float("nan")),
        lambda: Worker(Jobs("amqp://localhost"), queues={"a": 0}),
        lambda: Topology(max_priority=256),
        lambda: Topology(max_length=-1),
        lambda: Topology(message_ttl_ms=1 << 32),
        lambda: RetryInPlace(tries=0),
        lambda: RetryInPlace(pause_seconds=float("inf")),
        lambda: TimeLimit(0),
        lambda: TimeLimit(float("nan")),
        lambda: WaitPolicy(wait_seconds=-1),
        lambda: ConcurrencyLimit(Jobs("amqp://localhost"), 0, key="a"),
        lambda: RateLimit(Jobs("amqp://localhost"), 1, timedelta(0), key="a"),
    ],
)
def test_a_setting_out_of_range_is_refused_with_its_range(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"from [\d.e+]+ to [\d.e+]+|above 0 and up to"):
        make()


@pytest.mark.parametrize("uri", ["amqp://host:65536", "amqp://host:-1", "amqp://host:x"])
def test_a_port_in_a_uri_is_a_port(uri: str) -> None:
    with pytest.raises(InvalidURI, match="from 0 to 65535"):
        parse_uri(uri)


@pytest.mark.parametrize("name", ["prefetch", "pollTimeoutMs", "maxOffsetsPerTrigger"])
def test_an_option_of_spark_beyond_its_range_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"option {name} must be a whole number"):
        parse_options({"uri": "amqp://h", "stream": "s", name: "9" * 30}, default_stream=None, streaming=False)
