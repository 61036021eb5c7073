"""`waybill config`: the settings of broker and server, where they come from, and whether they can be used."""

from __future__ import annotations

import json

import click

from waybill.cli.echo import echo
from waybill.cli.http_settings import http_settings
from waybill.cli.own_broker import make_broker
from waybill.cli.settings_options import ALL_TABLES, Source, loaded, settings_options
from waybill.cli.target import json_option
from waybill.settings import SETTINGS, Configuration
from waybill.settings.sources import DEFAULT


@click.group()
def command() -> None:
    """Show and check the settings of `waybill broker`, `up` and `serve`.

    Options override variables (WAYBILL_...), variables override the file, and the file overrides the defaults.
    """


@command.command()
@click.option("--changed", is_flag=True, help="Show only settings that differ from the default.")
@json_option
@settings_options(ALL_TABLES, {})
def show(source: Source, *, changed: bool, as_json: bool) -> None:
    """Print all settings as TOML, each with its source. Passwords are not shown."""
    configuration = loaded(source)
    shown = [setting for setting in SETTINGS if not changed or configuration[setting.name].rank != DEFAULT]
    if as_json:
        rows = {
            setting.name: {
                "value": None
                if configuration[setting.name].value is None
                else shown_value(configuration, setting.name),
                "source": configuration[setting.name].place,
                "variable": setting.variable,
                "option": setting.option,
                "takes": setting.kind.describe(),
                "reloads": setting.reloads,
            }
            for setting in shown
        }
        echo(json.dumps(rows, indent=2))
        return
    table = ""
    for setting in shown:
        if setting.table != table:
            table = setting.table
            echo(f"\n[{table}]")
        value = configuration[setting.name]
        text = "" if value.value is None else setting.kind.shown(value.value)
        line = f"{setting.key} = {text}" if text else f"# {setting.key} ="
        echo(f"{line:<50} # {value.place}")


def shown_value(configuration: Configuration, name: str) -> object:
    """Return a value for JSON, without secrets."""
    setting = next(one for one in SETTINGS if one.name == name)
    value = configuration[name].value
    if isinstance(value, bool | int | float):
        return value
    text = setting.kind.shown(value)
    try:
        return json.loads(text)
    except ValueError:
        return text


@command.command()
@json_option
@settings_options(ALL_TABLES, {})
def check(source: Source, *, as_json: bool) -> None:
    """Check the file, environment and options as at start.

    The files that they name are checked, too. Exits with 2 on an error.
    """
    configuration = loaded(source)
    make_broker(configuration)
    http_settings(configuration)
    count = sum(configuration[setting.name].rank != DEFAULT for setting in SETTINGS)
    file = None if configuration.file is None else str(configuration.file)
    if as_json:
        echo(json.dumps({"file": file, "changed": count}))
    else:
        changed = "1 setting is" if count == 1 else f"{count} settings are"
        echo(f"{file or 'no file'}: no errors, {changed} not the default")
