"""Annotated arguments: objects in, JSON on the wire, objects out; what is wrong is named."""

import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

from waybill.ojs import InvalidJob, Jobs
from waybill.ojs.codec.arguments import Arguments, ResultForm, hints_of
from waybill.ojs.codec.forms import CustomTypes
from waybill.ojs.errors import InvalidArguments
from waybill.ojs.spec.envelope import check_args

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Street:
    name: str
    number: int = 1


@dataclass
class Person:
    name: str
    home: Street
    since: date
    others: list[Street] = field(default_factory=list)


@dataclass
class Box(Generic[T]):
    inside: T


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Pair(NamedTuple):
    left: int
    right: str


class Row(TypedDict):
    id: int
    at: datetime


class Invoice(pydantic.BaseModel):
    number: int
    due: date
    lines: list[Decimal] = []


class StrictInvoice(pydantic.BaseModel, strict=True):
    due: date = pydantic.Field(alias="dueDate")


@pydantic.dataclasses.dataclass
class Limits:
    low: int = pydantic.Field(ge=0)


class Money:
    def __init__(self, cents: int, currency: str) -> None:
        self.cents, self.currency = cents, currency

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.cents, self.currency))

    @staticmethod
    def parse(text: str) -> "Money":
        cents, currency = text.split()
        return Money(int(cents), currency)


UserId = NewType("UserId", int)
WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = UUID("019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6")


def _missing(value: object) -> Money:
    raise KeyError(value)


def custom_types() -> CustomTypes:
    custom = CustomTypes()
    custom.add(Money, lambda money: f"{money.cents} {money.currency}", Money.parse)
    return custom


def arguments(function: Callable[..., object]) -> Arguments:
    return Arguments("a.b", function, hints_of(function), custom_types())


def of(annotation: Any) -> Arguments:
    def handler(it: object) -> None: ...

    return Arguments("a.b", handler, {"it": annotation}, custom_types())


def over_the_wire(args: list[object]) -> list[object]:
    check_args(args)
    found: list[object] = json.loads(msgspec.json.encode(args))
    return found


@pytest.mark.parametrize(
    ("annotation", "value", "written"),
    [
        (str, "a", "a"),
        (int, 5, 5),
        (float, 2.5, 2.5),
        (float, 2, 2),
        (bool, True, True),
        (None, None, None),
        (Any, {"a": [1]}, {"a": [1]}),
        (object, [1, "a"], [1, "a"]),
        (int | None, None, None),
        (int | str, "a", "a"),
        (list[int], [1, 2], [1, 2]),
        (dict[str, list[int]], {"a": [1]}, {"a": [1]}),
        (dict[int, str], {1: "a"}, {"1": "a"}),
        (dict[UUID, int], {KEY: 1}, {str(KEY): 1}),
        (tuple[int, str], (1, "a"), [1, "a"]),
        (tuple[int, ...], (1, 2, 3), [1, 2, 3]),
        (set[int], {3}, [3]),
        (frozenset[str], frozenset({"a"}), ["a"]),
        (Sequence[date], [date(2026, 1, 2)], ["2026-01-02"]),
        (Mapping[str, Path], {"a": Path("/x")}, {"a": "/x"}),
        (Literal["a", 1], 1, 1),
        (Literal[True], True, True),
        (datetime, WHEN, "2026-01-02T03:04:05Z"),
        (date, WHEN.date(), "2026-01-02"),
        (time, time(3, 4), "03:04:00"),
        (timedelta, timedelta(seconds=90), "PT90S"),
        (UUID, KEY, str(KEY)),
        (Decimal, Decimal("1.10"), "1.10"),
        (Colour, Colour.BLUE, "blue"),
        (Level, Level.HIGH, 2),
        (Path, Path("/srv/a"), "/srv/a"),
        (bytes, b"\x00\xff", "AP8="),
        (UserId, UserId(7), 7),
        (Street, Street("High", 3), {"name": "High", "number": 3}),
        (Box[int], Box(3), {"inside": 3}),
        (
            Person,
            Person("Ann", Street("High"), date(2026, 1, 2)),
            {"name": "Ann", "home": {"name": "High", "number": 1}, "since": "2026-01-02", "others": []},
        ),
        (Point, Point(1, 2), {"x": 1, "y": 2}),
        (Point | None, Point(1), {"x": 1, "y": 0}),
        (Pair, Pair(1, "a"), [1, "a"]),
        (Row, {"id": 1, "at": WHEN}, {"id": 1, "at": "2026-01-02T03:04:05Z"}),
        (Annotated[int, msgspec.Meta(ge=1)], 1, 1),
        (Annotated[str, pydantic.Field(min_length=2)], "ab", "ab"),
        (Invoice, Invoice(number=1, due=date(2026, 1, 2)), {"number": 1, "due": "2026-01-02", "lines": []}),
        (list[Invoice], [Invoice(number=1, due=date(2026, 1, 2))], [{"number": 1, "due": "2026-01-02", "lines": []}]),
        (StrictInvoice, StrictInvoice(dueDate=date(2026, 1, 2)), {"dueDate": "2026-01-02"}),
        (Limits, Limits(1), {"low": 1}),
        (Money, Money(5, "EUR"), "5 EUR"),
        (list[Money | None], [Money(5, "EUR"), None], ["5 EUR", None]),
        # What msgspec takes no union of.
        (str | UUID, KEY, str(KEY)),
        (str | UUID, "a", "a"),
        (Street | Point, Point(1, 2), {"x": 1, "y": 2}),
        (datetime | date, date(2026, 1, 2), "2026-01-02"),
        (list[datetime | date], [WHEN, date(2026, 1, 2)], ["2026-01-02T03:04:05Z", "2026-01-02"]),
        (Invoice | StrictInvoice, StrictInvoice(dueDate=date(2026, 1, 2)), {"dueDate": "2026-01-02"}),
    ],
)
def test_an_object_arrives_as_it_was(annotation: Any, value: object, written: object) -> None:
    codec = of(annotation)
    encoded = codec.encode([value], {})
    assert over_the_wire(encoded) == [written]
    decoded, _ = codec.decode(over_the_wire(encoded))
    assert decoded == [value]
    assert type(decoded[0]) is type(value) or annotation is float
    assert over_the_wire(codec.encode_any([value])) == [written]
    assert codec.encode_any([written]) == [written]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, 5),
        (int, "5"),
        (int, True),
        (int, 1.5),
        (float, "1"),
        (bool, 1),
        (None, 1),
        (int | None, "a"),
        (list[int], ["a"]),
        (list[int], (1,)),
        (Sequence[str], "abc"),
        (dict[str, int], {1: 1}),
        (dict[str, int], {"a": "b"}),
        (tuple[int, str], (1,)),
        (tuple[int, ...], (1, "a")),
        (Literal["a"], "b"),
        (Literal[1], True),
        (date, "2026-01-02"),
        (UUID, str(KEY)),
        (Decimal, 1.5),
        (Colour, "red"),
        (Path, "/srv"),
        (bytes, "AP8="),
        (Street, {"name": "High"}),
        (Street, Street(5)),  # type: ignore[arg-type]
        (Box[int], Box("a")),
        (Row, {"id": 1}),
        (Annotated[int, msgspec.Meta(ge=1)], 0),
        (Annotated[str, pydantic.Field(min_length=2)], "a"),
        (Invoice, {"number": 1, "due": "2026-01-02"}),
        (Invoice, Invoice.model_construct(number="x", due=date(2026, 1, 2))),
        (Money, "5 EUR"),
        (str | UUID, str(KEY)),
        (list[object], [object()]),
        (dict[str, Any], {"at": WHEN}),
        (float, float("nan")),
        (int, 2**60),
    ],
)
def test_a_wrong_type_is_refused_at_push_by_the_name_of_its_parameter(annotation: Any, value: object) -> None:
    jobs = Jobs("amqp://localhost")

    async def handler(first: int, it: object) -> None: ...

    handler.__annotations__["it"] = annotation
    jobs.codec(Money, lambda money: f"{money.cents} {money.currency}", Money.parse)
    job = jobs.handler("a.b")(handler).job
    with pytest.raises(InvalidJob, match=r"^(it|args\[1\])") as caught:
        jobs.check(job(1, value))
    assert caught.value.code == "INVALID_ARGS"


@pytest.mark.parametrize(
    ("annotation", "value", "field"),
    [
        (str, 5, "it"),
        (Person, {"name": "Ann", "home": {"name": 5}, "since": "2026-01-02"}, "it.home.name"),
        (Person, {"name": "Ann"}, "it"),
        (list[date], ["2026-01-02", "x"], r"it[1]"),
        (Path, 5, "it"),
        (Invoice, {"number": 1, "due": "never"}, "it"),
        (Limits, {"low": -1}, "it"),
        (Money, "many EUR", "it"),
        (Money, {"a": 1}, "it"),
        (Street | Point, {"z": 1}, "it"),
        (bytes, "***", "it"),
        (UUID, "x", "it"),
        (Colour, "green", "it"),
    ],
)
def test_what_a_stranger_sends_is_refused_by_the_name_of_its_parameter(
    annotation: Any, value: object, field: str
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        of(annotation).decode([value])
    assert caught.value.field == field
    assert "codec" not in caught.value.message, "that is no help for who sends"
    assert caught.value.message


def test_names_that_can_only_be_given_by_name_travel_in_an_object_after_all_positions() -> None:
    def send(to: str, subject: str = "none", *, copies: list[Path] | None = None, when: date) -> None: ...

    codec = arguments(send)
    assert codec.encode(["a"], {"when": WHEN.date()}) == ["a", "none", {"when": "2026-01-02"}]
    assert codec.decode(["a", "none", {"when": "2026-01-02", "copies": ["/a"]}]) == (
        ["a", "none"],
        {"when": WHEN.date(), "copies": [Path("/a")]},
    )
    odd: list[tuple[list[object], str]] = [
        (["a"], "when"),
        (["a", "b"], "when"),
        (["a", "b", {}], "when"),
        (["a", "b", {"when": "2026-01-02", "other": 1}], "other"),
        (["a", "b", {"when": 5}], "when"),
        (["a", "b", 5], "args[2]"),
        (["a", "b", {"when": "2026-01-02"}, 1], "args[3]"),
    ]
    for args, name in odd:
        with pytest.raises(InvalidArguments) as caught:
            codec.decode(args)
        assert caught.value.field == name
    with pytest.raises(InvalidJob, match=r"^when: expects `date`, got `str`"):
        codec.encode(["a"], {"when": "2026-01-02"})
    with pytest.raises(TypeError):
        codec.encode(["a"], {})
    with pytest.raises(TypeError):
        codec.encode(["a"], {"when": WHEN.date(), "colour": 1})


def test_what_has_a_position_travels_there_however_it_was_given() -> None:
    def send(to: str, subject: str = "none", urgent: bool = False) -> None: ...

    codec = arguments(send)
    assert codec.encode([], {"to": "a"}) == ["a"]
    assert codec.encode(["a"], {"urgent": True}) == ["a", "none", True]
    assert codec.encode([], {"subject": "b", "to": "a"}) == ["a", "b"]


def test_a_stranger_may_name_all_arguments() -> None:
    def send(to: str, subject: str = "none", *, copies: int = 0) -> None: ...

    codec = arguments(send)
    assert codec.decode([{"to": "a"}]) == ([], {"to": "a"})
    assert codec.decode([{"copies": 1, "subject": "b", "to": "a"}]) == ([], {"copies": 1, "subject": "b", "to": "a"})
    for odd, name in [({"subject": "b"}, "to"), ({"to": 5}, "to"), ({"to": "a", "bcc": 1}, "to")]:
        with pytest.raises(InvalidArguments) as caught:
            codec.decode([odd])
        assert caught.value.field == name
    # An object that may be the first argument is the first argument.
    assert arguments(lambda to: None).decode([{"to": "a"}]) == ([{"to": "a"}], {})


def test_open_numbers_of_arguments() -> None:
    def add(first: int, *others: Decimal) -> None: ...
    def note(text: str, **fields: int) -> None: ...

    assert arguments(add).encode([1, Decimal(2), Decimal(3)], {}) == [1, "2", "3"]
    assert arguments(add).decode([1, "2"]) == ([1, Decimal(2)], {})
    with pytest.raises(InvalidArguments, match="others"):
        arguments(add).decode([1, "x"])
    assert arguments(note).encode(["a"], {"b": 1}) == ["a", {"b": 1}]
    assert arguments(note).decode(["a", {"b": 1}]) == (["a"], {"b": 1})
    with pytest.raises(InvalidJob, match="b: expects `int`"):
        arguments(note).encode(["a"], {"b": "c"})


def test_a_type_without_json_is_named_with_its_parameter() -> None:
    def pay(amount: complex) -> None: ...

    with pytest.raises(TypeError, match=r"a\.b: parameter amount: .*complex.*codec"):
        arguments(pay)
    with pytest.raises(TypeError, match="has a built-in JSON form"):
        CustomTypes().add(Street, str, Street)


def test_a_codec_that_raises_refuses_the_argument() -> None:
    custom = CustomTypes()
    custom.add(Money, lambda money: 1 / 0, _missing)

    def pay(amount: Money) -> None: ...

    codec = Arguments("a.b", pay, hints_of(pay), custom)
    with pytest.raises(InvalidJob, match=r"amount: .*ZeroDivisionError"):
        codec.encode([Money(1, "EUR")], {})
    with pytest.raises(InvalidArguments, match="amount: KeyError"):
        codec.decode([1])


def test_results_have_the_form_of_their_annotation() -> None:
    form = ResultForm(Invoice, CustomTypes())
    encoded = form.encode(Invoice(number=1, due=date(2026, 1, 2)))
    assert json.loads(encoded) == {"number": 1, "due": "2026-01-02", "lines": []}
    assert form.decode(encoded) == Invoice(number=1, due=date(2026, 1, 2))


def test_annotations_that_cannot_be_read_check_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def work(a: "Nowhere", b: "int") -> None: ...  # type: ignore[name-defined] # noqa: F821

    codec = arguments(work)
    assert "Nowhere" in caplog.text
    assert codec.encode([object, 1], {})
    with pytest.raises(InvalidJob, match=r"^b"):
        codec.encode([1, "x"], {})


def test_handlers_may_be_defined_beside_their_types() -> None:
    jobs = Jobs("amqp://localhost")

    @dataclass
    class Local:
        name: str

    @jobs.handler("a.b")
    async def work(it: "Local") -> None: ...

    assert work.job(Local("a")).args == [{"name": "a"}]
    with pytest.raises(InvalidJob, match=r"^it"):
        work.job({"name": "a"})  # type: ignore[arg-type]
