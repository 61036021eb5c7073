"""Each kind of setting takes what it says, and refuses anything else with what it takes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from waybill.engine.host import Limits
from waybill.settings import SETTINGS, Refused, Setting
from waybill.settings.kinds import Address, Boolean, Choice, Integer, Kind, NameList, Seconds, Size, Text
from waybill.settings.users import ConfiguredUser, Users

HERE = Path("/nowhere")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Integer(0, 9), " 7 ", 7),
        (Seconds(0, 9), "1.5", 1.5),
        (Size(0, 1 << 40), "4096", 4096),
        (Size(0, 1 << 40), "64 MiB", 64 << 20),
        (Size(0, 1 << 40), "2GB", 2_000_000_000),
        (Boolean(), "Yes", True),
        (Boolean(), "0", False),
        (Choice("text", "json"), "json", "json"),
        (Choice("text", "json"), "JSON", "json"),
        (NameList(), "a, b,,c", ("a", "b", "c")),
        (Text(3), "abc", "abc"),
    ],
)
def test_a_text_becomes_a_value(kind: Kind, text: str, value: object) -> None:
    assert kind.parse(text, HERE) == value


WRONG_NUMBERS = ["", "x", "-1", "10", "1e9", "9" * 5000, "nan", "inf", "0x1", "1_0", "٣x"]


@pytest.mark.parametrize("text", WRONG_NUMBERS)
def test_a_number_out_of_range_is_refused_with_the_range(text: str) -> None:
    for kind, says in (
        (Integer(0, 9), "from 0 to 9"),
        (Seconds(0, 9), "from 0 to 9"),
        (Size(0, 9), "from 0 to 9 bytes"),
    ):
        with pytest.raises(Refused, match=says) as refused:
            kind.parse(text, HERE)
        assert len(str(refused.value)) < 200


@pytest.mark.parametrize("value", [None, {}, "x", True, 1.5, float("nan"), -1, 10**30, b"x"])
def test_values_of_other_types_are_refused(value: object) -> None:
    for kind in (Integer(0, 9), Choice("a"), NameList(), Users()):
        with pytest.raises(Refused):
            kind.convert(value if value != {} or not isinstance(kind, Users) else 1, HERE)


def test_passwords_are_not_shown() -> None:
    assert Address().shown("postgresql://ada:secret@host/db") == '"postgresql://ada:***@host/db"'
    users = Users().convert({"ada": {"password": "secret"}}, HERE)
    assert "secret" not in Users().shown(users) + repr(users)


def test_a_user_of_the_first_start(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("from a file\n")
    table = {
        "ada": {"password_file": "word", "tags": ["administrator"]},
        "bob": {"password": "b", "permissions": {"/": {"read": "^mine$"}}},
    }
    everything = (".*", ".*", ".*")
    assert Users().parse(json.dumps(table), tmp_path) == (
        ConfiguredUser("ada", "from a file", ("administrator",), {"/": everything, "/ojs": everything}),
        ConfiguredUser("bob", "b", (), {"/": (".*", ".*", "^mine$")}),
    )


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"ada": 1}, "ada"),
        ({"ada": {}}, "needs a password"),
        ({"ada": {"password": "a", "password_file": "b"}}, "not both"),
        ({"ada": {"password": ""}}, "password"),
        ({"ada": {"password": 1}}, "password"),
        ({"ada": {"password_file": "nowhere"}}, "cannot be read"),
        ({"ada": {"password": "secret", "tag": []}}, "ada.tag"),
        ({"ada": {"password": "secret", "tags": "administrator"}}, "ada.tags"),
        ({"ada": {"password": "secret", "permissions": []}}, "permissions"),
        ({"ada": {"password": "secret", "permissions": {"/": {"reed": ""}}}}, "configure, write and read"),
        ({"ada": {"password": "secret", "permissions": {"/": {"read": 1}}}}, "patterns"),
        ({"": {"password": "secret"}}, "1 to 255 bytes"),
        ({"é" * 128: {"password": "secret"}}, "1 to 255 bytes"),
    ],
)
def test_a_user_that_is_wrong_is_refused_without_the_password(table: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=says) as refused:
        Users().convert(table, tmp_path)
    assert "secret" not in str(refused.value)


def test_text_that_is_no_json_is_not_repeated() -> None:
    with pytest.raises(Refused) as refused:
        Users().parse("{'ada': 'secret'}", HERE)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_default_of_a_setting_is_one_of_its_values(setting: Setting) -> None:
    if setting.default is None or setting.default == ():
        return
    assert setting.kind.convert(setting.default, HERE) == setting.default
    shown = tomllib.loads(f"value = {setting.kind.shown(setting.default)}")["value"]
    assert setting.kind.convert(shown, HERE) == setting.default


def test_the_limits_are_those_of_the_node() -> None:
    ours = {one.key: one.default for one in SETTINGS if one.table == "limits"}
    limits = Limits()
    of_the_node = {name: value for name in dir(limits) if not name.startswith("_") for value in [getattr(limits, name)]}
    del of_the_node["is_strict_amqp10"], of_the_node["auto_creates_queues"]
    assert ours == {name: value for name, value in of_the_node.items() if not callable(value)}


def test_names_of_settings_do_not_collide() -> None:
    assert len({setting.variable for setting in SETTINGS}) == len(SETTINGS)
    assert len({setting.option for setting in SETTINGS}) == len(SETTINGS)
