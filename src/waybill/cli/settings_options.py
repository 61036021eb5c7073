"""The settings as options of a command. The command gets a `Source`, which can be loaded more than once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from waybill.settings import SETTINGS, Configuration, InvalidConfiguration, Refused, Setting, load
from waybill.settings.kinds import Boolean, NameList

F = TypeVar("F", bound=Callable[..., Any])

UP_TABLES: Final = ("", "amqp", "amqps", "amqp10", "alarms", "log", "limits", "http")
BROKER_TABLES: Final = ("", "amqp", "amqps", "amqp10", "management", "alarms", "log", "limits")
ALL_TABLES: Final = (*BROKER_TABLES, "http")
HTTP_SETTINGS: Final = frozenset({"database", "keep_days", "keys"})
"""Top-level settings of commands that serve HTTP."""
HTTP_SHORT: Final = {
    "http.host": "--host",
    "http.port": "--port",
    "http.certificate": "--tls-certificate",
    "http.key": "--tls-key",
    "http.allow_private_webhooks": "--allow-private-webhooks",
    "http.codec_keys": "--codec-keys",
    "http.redact": "--redact",
    "http.request_limit": "--request-limit",
    "http.request_window_s": "--request-window",
    "http.leased_memory": "--leased-memory",
    "http.region": "--region",
    "http.trace_url": "--trace-url",
}


_CONFIG: Final = click.option(
    "--config",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="A TOML file with settings.  [WAYBILL_CONFIG; default: ~/.config/waybill/waybill.toml]",
)


@dataclass(frozen=True)
class Source:
    """The options of the command. `load` reads file and environment, and raises InvalidConfiguration."""

    file: Path | None
    options: Mapping[str, tuple[object, str]]
    defaults: Mapping[str, object]

    def load(self) -> Configuration:
        return load(self.file, self.options, self.defaults)


class SettingType(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """The type of a setting as the type of an option."""

    def __init__(self, setting: Setting) -> None:
        self.name = setting.kind.name
        self.setting = setting

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        try:
            return self.setting.kind.parse(str(value), Path())
        except Refused as refused:
            self.fail(f"it {refused}", param, ctx)


def settings_options(
    tables: tuple[str, ...], short: Mapping[str, str], defaults: Mapping[str, object] | None = None
) -> Callable[[F], F]:
    """Add `--config` and an option for each setting of some tables; the command gets all as `source`.

    `short`: additional option names by setting. `defaults`: the defaults of this command.
    """
    offered = [
        setting
        for setting in SETTINGS
        if setting.table in tables and ("http" in tables or setting.name not in HTTP_SETTINGS)
    ]

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def with_source(*arguments: object, config: Path | None, **options: object) -> object:
            given = {}
            for setting in offered:
                value = options.pop(setting.parameter)
                if isinstance(setting.kind, NameList) and isinstance(value, tuple):
                    value = tuple(name for names in value for name in names) or None
                if value is not None:
                    given[setting.name] = (value, short.get(setting.name, setting.option))
            return command(*arguments, source=Source(config, given, defaults or {}), **options)

        decorated: Any = with_source
        for setting in reversed(offered):
            decorated = _option(setting, short.get(setting.name), defaults or {})(decorated)
        return _CONFIG(decorated)  # type: ignore[no-any-return]

    return decorate


def _option(setting: Setting, short: str | None, defaults: Mapping[str, object]) -> Callable[[F], F]:
    """The option of a setting. `--help` omits the limits, which are many; the documentation lists them."""
    default = defaults.get(setting.name, setting.default)
    help_text = setting.help
    is_switch = isinstance(setting.kind, Boolean)
    if not is_switch and default not in {None, ()} and "[default" not in help_text:
        help_text = f"{help_text}  [default: {default}]"
    names = list(dict.fromkeys(filter(None, (short, setting.option))))
    if is_switch:
        names = [f"{name}/{name.replace('--', '--no-', 1)}" for name in names]
    return click.option(
        *names,
        setting.parameter,
        type=None if is_switch else SettingType(setting),
        default=None,
        multiple=isinstance(setting.kind, NameList),
        help=help_text,
        hidden=setting.table == "limits",
    )


def loaded(source: Source) -> Configuration:
    """The configuration. Raises click.UsageError with all errors."""
    try:
        return source.load()
    except InvalidConfiguration as error:
        raise click.UsageError(str(error)) from None
