"""The settings of `waybill broker`, `up` and `serve`: their table, and the sources of their values."""

from waybill.settings.configuration import Configuration, load
from waybill.settings.kinds import Refused
from waybill.settings.setting import Setting
from waybill.settings.sources import InvalidConfiguration, Problem
from waybill.settings.table import SETTINGS
from waybill.settings.users import ConfiguredUser

__all__ = [
    "SETTINGS",
    "Configuration",
    "ConfiguredUser",
    "InvalidConfiguration",
    "Problem",
    "Refused",
    "Setting",
    "load",
]
