"""Exchanges: declaring and deleting them, and where each type sends a message (0-9-1, 3.1)."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Bench, Channel
from waybill.wire.amqp091.methods_exchange import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
)
from waybill.wire.amqp091.methods_queue import QueueBind, QueueDelete, QueueDeleteOk, QueueUnbind, QueueUnbindOk

PREDECLARED = [
    ("", "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
]


def reaches(channel: Channel, exchange: str, key: str, headers: dict[str, object] | None = None) -> list[str]:
    """The queues called a, b, c that a message gets to."""
    channel.publish(b"probe", key, exchange, headers=headers)
    return [name for name in ("a", "b", "c") if channel.take_all(name)]


@pytest.fixture
def queues(channel: Channel) -> Channel:
    """The channel, with three queues."""
    for name in ("a", "b", "c"):
        channel.declare(name)
    return channel


@requirement("M010-047", "M010-083", "M010-086", "M010-089")
@pytest.mark.parametrize("virtual_host", ["/", "/ojs"])
@pytest.mark.parametrize("name", [name for name, _ in PREDECLARED if name])
@requirement("091-exchange.required-types", "091-exchange.required-instances")
def test_the_standard_exchanges_are_there_in_each_virtual_host(bench: Bench, virtual_host: str, name: str) -> None:
    bench.connect(virtual_host).open_channel(1).exchange(name, passive=True)


@requirement("M010-048")
@pytest.mark.parametrize("name", [name for name, _ in PREDECLARED])
def test_the_standard_exchanges_cannot_be_deleted(channel: Channel, name: str) -> None:
    channel.refuses(ExchangeDelete(name), 403)


@pytest.mark.parametrize(("name", "kind"), [entry for entry in PREDECLARED if entry[0]])
def test_the_standard_exchanges_may_be_declared_as_they_are(channel: Channel, name: str, kind: str) -> None:
    channel.exchange(name, kind, durable=True)


@requirement("M010-046")
@requirement(
    "091-exchange.default-access",
    "091-queue.bind.exchange.default-exchange",
    "091-queue.unbind.exchange.default-exchange",
)
def test_the_default_exchange_is_closed_to_clients(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    channel.exchange("x")
    for method in (
        ExchangeDeclare("", "direct", durable=True),
        ExchangeDeclare("", passive=True),
        QueueBind("q", "", "key"),
        QueueUnbind("q", "", "q"),
        ExchangeBind("", "x", "key"),
        ExchangeBind("x", "", "key"),
    ):
        channel.refuses(method, 403)
        channel.reopen()


@requirement("M010-031", "M010-045", "M010-084")
@requirement(
    "091-exchange.default-exchange",
    "091-queue.declare.default-binding",
    "091-basic.publish.exchange.default-exchange",
    "M010-043",
)
def test_the_default_exchange_routes_by_queue_name(queues: Channel) -> None:
    assert reaches(queues, "", "b") == ["b"]
    assert reaches(queues, "", "none") == []
    queues.call(QueueDelete("b"), QueueDeleteOk)
    queues.publish(b"", "b", mandatory=True)
    queues.expect_return()


@pytest.mark.parametrize("name", ["amq.mine", "amq."])
@requirement("091-exchange.declare.exchange.reserved")
def test_names_that_begin_with_amq_are_reserved(channel: Channel, name: str) -> None:
    close = channel.refuses(ExchangeDeclare(name, "direct"), 403)
    assert close.reply_text.startswith(f"ACCESS_REFUSED - exchange name '{name}' contains reserved prefix 'amq.*'")


@requirement("091-exchange.declare.minimum")
def test_a_virtual_host_takes_many_exchanges(channel: Channel) -> None:
    for number in range(20):
        channel.exchange(f"many.{number}", "fanout")
    for number in range(20):
        channel.call(ExchangeDeclare(f"many.{number}", passive=True), ExchangeDeclareOk)


@requirement("M010-077", "M010-078")
@pytest.mark.parametrize("name", ["x" * 255, "with space!", "a-b.c:d_e", "\u043f\u043e\u0447\u0442\u0430", "-"])
def test_an_exchange_may_have_any_name_that_fits(channel: Channel, name: str) -> None:
    """As in RabbitMQ, and in the final text of 0-10, where a name is a str8."""
    channel.exchange(name, "fanout")
    channel.declare("q")
    channel.bind(name, "q")
    channel.publish(b"body", exchange=name)
    assert channel.take("q").body == b"body"


@requirement("M010-008")
def test_names_are_case_sensitive(channel: Channel) -> None:
    channel.refuses(ExchangeDeclare("amq.Direct", passive=True), 404)


@requirement("M010-029", "M010-049")
@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
@requirement("091-exchange.declare.passive.equivalent")
def test_declaring_the_same_exchange_twice_is_no_error(channel: Channel, kind: str) -> None:
    channel.exchange("x", kind)
    channel.exchange("x", kind)


@requirement("OJS-019", "OJS-021", "M010-049")
@pytest.mark.parametrize(
    "other",
    [
        ExchangeDeclare("x", "fanout", durable=True),
        ExchangeDeclare("x", "direct"),
        ExchangeDeclare("x", "direct", durable=True, auto_delete=True),
        ExchangeDeclare("x", "direct", durable=True, internal=True),
        ExchangeDeclare("x", "direct", durable=True, arguments={"alternate-exchange": "y"}),
    ],
    ids=["type", "durable", "auto-delete", "internal", "alternate"],
)
@requirement("091-exchange.declare.type.typed", "091-exchange.declare.passive.equivalent")
def test_declaring_an_exchange_differently_fails(channel: Channel, other: ExchangeDeclare) -> None:
    channel.exchange("x", "direct", durable=True)
    close = channel.refuses(other, 406)
    assert close.reply_text.startswith("PRECONDITION_FAILED - inequivalent arg '")
    assert "for exchange 'x' in vhost '/'" in close.reply_text


@requirement("M010-096")
@requirement("091-exchange.declare.type.support")
def test_an_unknown_exchange_type_closes_the_connection(channel: Channel, bystander: Channel) -> None:
    channel.send(ExchangeDeclare("x", "telepathic"))
    channel.peer.expect_refused(503)


@requirement("091-exchange.declare.passive.not-found")
def test_a_passive_declare_of_a_missing_exchange_fails(channel: Channel) -> None:
    close = channel.refuses(ExchangeDeclare("absent", passive=True), 404)
    assert close.reply_text == "NOT_FOUND - no exchange 'absent' in vhost '/'"


def test_a_passive_declare_asks_for_the_name_only(channel: Channel) -> None:
    channel.exchange("x", "topic", durable=True)
    channel.exchange("x", "fanout", passive=True)


def test_no_wait_gets_no_answer(channel: Channel) -> None:
    channel.send(ExchangeDeclare("x", "fanout", no_wait=True))
    channel.call(ExchangeDeclare("x", passive=True), ExchangeDeclareOk)
    channel.send(ExchangeDelete("x", no_wait=True))
    channel.refuses(ExchangeDeclare("x", passive=True), 404)


@requirement("M010-050")
@requirement("091-exchange.delete.if-unused.in-use")
def test_deleting_an_exchange(channel: Channel) -> None:
    channel.declare("q")
    channel.exchange("x")
    channel.bind("x", key="k")
    channel.refuses(ExchangeDelete("x", if_unused=True), 406)
    channel.reopen()
    channel.call(QueueUnbind("q", "x", "k"), QueueUnbindOk)
    channel.call(ExchangeDelete("x", if_unused=True), ExchangeDeleteOk)
    channel.refuses(ExchangeDeclare("x", passive=True), 404)


@requirement("091-exchange.delete.exchange.exists")
def test_deleting_a_missing_exchange_is_no_error(channel: Channel) -> None:
    channel.call(ExchangeDelete("absent"), ExchangeDeleteOk)


@requirement("M010-079")
def test_an_auto_delete_exchange_goes_with_its_last_binding(queues: Channel) -> None:
    queues.exchange("x", auto_delete=True)
    queues.bind("x", "a", "k")
    queues.bind("x", "b", "k")
    queues.call(QueueUnbind("a", "x", "k"), QueueUnbindOk)
    queues.exchange("x", passive=True)
    queues.call(QueueDelete("b"), QueueDeleteOk)
    queues.refuses(ExchangeDeclare("x", passive=True), 404)


def test_an_auto_delete_exchange_that_was_never_bound_stays(channel: Channel) -> None:
    channel.exchange("x", auto_delete=True)
    channel.exchange("x", passive=True)


@requirement("OJS-091", "M010-020")
@requirement("091-basic.publish.exchange.must-exist")
def test_publishing_to_a_missing_exchange_closes_the_channel(channel: Channel, bystander: Channel) -> None:
    channel.publish(b"", "q", "absent")
    close = channel.expect_refused(404)
    assert close.reply_text == "NOT_FOUND - no exchange 'absent' in vhost '/'"
    assert (close.class_id, close.method_id) == (60, 40)


def test_publishing_to_a_deleted_exchange_closes_the_channel(channel: Channel) -> None:
    channel.exchange("x", "fanout")
    channel.publish(b"", "", "x")
    channel.call(ExchangeDelete("x"), ExchangeDeleteOk)
    channel.publish(b"", "", "x")
    channel.expect_refused(404)


@requirement("091-basic.publish.exchange.02")
def test_clients_cannot_publish_to_an_internal_exchange(channel: Channel) -> None:
    channel.exchange("x", "fanout", internal=True)
    channel.publish(b"", "", "x")
    channel.expect_refused(403)


@requirement("M010-082", "OJS-020", "OJS-076")
@requirement("091-queue.bind.routing-key.direct-exchange-key-matching")
def test_direct_matches_equal_keys(queues: Channel) -> None:
    queues.exchange("x", "direct")
    queues.bind("x", "a", "red")
    queues.bind("x", "b", "red")
    queues.bind("x", "c", "")
    assert reaches(queues, "x", "red") == ["a", "b"]
    assert reaches(queues, "x", "Red") == []
    assert reaches(queues, "x", "") == ["c"]


@requirement("M010-085", "M010-080")
@requirement("091-exchange.required-types")
def test_fanout_matches_always(queues: Channel) -> None:
    queues.bind("amq.fanout", "a", "")
    queues.bind("amq.fanout", "b", "x")
    assert reaches(queues, "amq.fanout", "whatever") == ["a", "b"]
    for name in ("a", "b"):
        queues.call(QueueUnbind(name, "amq.fanout", "" if name == "a" else "x"), QueueUnbindOk)


TOPICS = [
    ("*.stock.#", "usd.stock", True),
    ("*.stock.#", "eur.stock.db", True),
    ("*.stock.#", "stock.nasdaq", False),
    ("#", "", True),
    ("#", "a.b.c", True),
    ("#.#", "", True),
    ("#.#", "a", True),
    ("*", "a", True),
    ("*", "", False),
    ("*", "a.b", False),
    ("*.*", "a.b", True),
    ("*.*", "a", False),
    ("a.#.b", "a.b", True),
    ("a.#.b", "a.x.y.b", True),
    ("a.#.b", "a.b.c", False),
    ("a.*.b", "a.b", False),
    ("a.*.b", "a..b", True),
    ("a..b", "a..b", True),
    ("a.b", "a.b", True),
    ("a.b", "a.B", False),
    ("", "", True),
    ("", "a", False),
    ("#.a", "a", True),
    ("#.a", "b.a", True),
    ("#.a.#", "x.a.y.z", True),
    ("#.a.#", "x.y", False),
    ("*.#.*", "a.b", True),
    ("*.#.*", "a", False),
    ("a*", "ab", False),
]


@requirement("M010-087", "M010-088")
@pytest.mark.parametrize(("pattern", "key", "matches"), TOPICS)
@requirement("091-exchange.recommended-types", "M010-006")
def test_topic_matches_words(queues: Channel, pattern: str, key: str, matches: bool) -> None:
    queues.exchange("x", "topic")
    queues.bind("x", "a", pattern)
    assert reaches(queues, "x", key) == (["a"] if matches else [])


@requirement("091-queue.bind.unique")
def test_topic_delivers_once_however_many_bindings_match(queues: Channel) -> None:
    queues.exchange("x", "topic")
    for pattern in ("#", "a.*", "*.b", "a.b"):
        queues.bind("x", "a", pattern)
    queues.bind("x", "b", "a.#")
    queues.publish(b"1", "a.b", "x")
    assert queues.take_all("a") == [b"1"]
    assert queues.take_all("b") == [b"1"]
    queues.call(QueueUnbind("a", "x", "#"), QueueUnbindOk)
    assert reaches(queues, "x", "c") == []


HEADERS: list[tuple[dict[str, object], dict[str, object] | None, bool]] = [
    ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 2}, True),
    ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1}, False),
    ({"x-match": "all", "a": 1}, {"a": 2}, False),
    ({"x-match": "all", "a": 1}, None, False),
    ({"x-match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
    ({"x-match": "any", "a": 1, "b": "x"}, {"b": "y"}, False),
    ({"a": 1}, {"a": 1}, True),
    ({"a": 1}, {}, False),
    ({"x-match": "all", "a": None}, {"a": "anything"}, True),
    ({"x-match": "all", "a": None}, {"b": "anything"}, False),
    ({"x-match": "all", "x-ignored": 1, "a": 1}, {"a": 1}, True),
    ({"x-match": "any", "x-ignored": 1, "a": 1}, {"x-ignored": 1}, False),
    ({"x-match": "all", "a": True}, {"a": True}, True),
    ({"x-match": "all", "a": True}, {"a": 1}, False),
    ({"x-match": "all", "a": "1"}, {"a": 1}, False),
    ({}, {"a": 1}, True),
    ({"x-match": "all"}, None, True),
]


@requirement("M010-090", "M010-091", "M010-092", "M010-093")
@pytest.mark.parametrize(("arguments", "headers", "matches"), HEADERS)
@requirement("091-exchange.recommended-types", "M010-006")
def test_headers_match_pairs(
    queues: Channel, arguments: dict[str, object], headers: dict[str, object] | None, matches: bool
) -> None:
    queues.exchange("x", "headers")
    queues.bind("x", "a", "ignored", arguments)
    assert reaches(queues, "x", "some", headers) == (["a"] if matches else [])
    assert reaches(queues, "x", "other", headers) == (["a"] if matches else [])


@pytest.mark.ours  # 3.10 knows only `all` and `any`
@pytest.mark.parametrize(
    ("mode", "headers", "matches"),
    [
        ("all-with-x", {"x-a": 1, "b": 2}, True),
        ("all-with-x", {"b": 2}, False),
        ("any-with-x", {"x-a": 1}, True),
        ("any-with-x", {"c": 1}, False),
    ],
)
def test_headers_with_x_are_compared_if_asked(
    queues: Channel, mode: str, headers: dict[str, object], matches: bool
) -> None:
    queues.exchange("x", "headers")
    queues.bind("x", "a", "", {"x-match": mode, "x-a": 1, "b": 2})
    assert reaches(queues, "x", "", headers) == (["a"] if matches else [])


@requirement("M010-094")
@pytest.mark.parametrize("mode", ["some", 5, ["all"], {"all": True}], ids=str)
def test_an_unknown_match_mode_is_refused(channel: Channel, mode: object) -> None:
    channel.declare("q")
    channel.exchange("x", "headers")
    channel.refuses(QueueBind("q", "x", "", arguments={"x-match": mode}), 406)


@requirement("M010-028")
def test_exchanges_feed_exchanges(queues: Channel) -> None:
    queues.exchange("source", "topic")
    queues.exchange("target", "fanout", internal=True)
    queues.bind("target", "a")
    queues.bind("target", "b")
    queues.bind("source", "b", "hot.#")
    queues.call(ExchangeBind("target", "source", "hot.*"), ExchangeBindOk)
    queues.publish(b"1", "hot.news", "source")
    assert queues.take_all("a") == [b"1"]
    assert queues.take_all("b") == [b"1"]
    assert reaches(queues, "source", "cold.news") == []
    queues.call(ExchangeUnbind("target", "source", "hot.*"), ExchangeUnbindOk)
    assert reaches(queues, "source", "hot.news") == ["b"]


def test_exchanges_in_a_circle_deliver_once(queues: Channel) -> None:
    for name in ("x", "y", "z"):
        queues.exchange(name, "fanout")
    for source, target in (("x", "y"), ("y", "z"), ("z", "x")):
        queues.call(ExchangeBind(target, source, ""), ExchangeBindOk)
    for name, exchange in (("a", "x"), ("b", "y"), ("c", "z")):
        queues.bind(exchange, name)
    queues.publish(b"1", "", "y")
    assert [queues.take_all(name) for name in ("a", "b", "c")] == [[b"1"], [b"1"], [b"1"]]


def test_binding_missing_exchanges_fails(channel: Channel) -> None:
    channel.exchange("x")
    channel.refuses(ExchangeBind("x", "absent", ""), 404)
    channel.reopen()
    channel.refuses(ExchangeBind("absent", "x", ""), 404)


def test_unbinding_missing_exchanges_is_no_error(channel: Channel) -> None:
    channel.exchange("x")
    channel.call(ExchangeUnbind("x", "absent", ""), ExchangeUnbindOk)
    channel.call(ExchangeUnbind("absent", "x", ""), ExchangeUnbindOk)


def test_a_deleted_exchange_takes_its_bindings_along(queues: Channel) -> None:
    queues.exchange("x", "fanout")
    queues.exchange("y", "fanout")
    queues.bind("y", "a")
    queues.call(ExchangeBind("y", "x", ""), ExchangeBindOk)
    queues.call(ExchangeDelete("y"), ExchangeDeleteOk)
    queues.exchange("y", "fanout")
    assert reaches(queues, "x", "") == []
    queues.bind("y", "b")
    assert reaches(queues, "x", "") == []
    assert reaches(queues, "y", "") == ["b"]


def test_an_alternate_exchange_gets_what_finds_no_queue(queues: Channel) -> None:
    queues.exchange("spare", "fanout")
    queues.exchange("x", "direct", {"alternate-exchange": "spare"})
    queues.bind("spare", "a")
    queues.bind("x", "b", "known")
    assert reaches(queues, "x", "known") == ["b"]
    queues.publish(b"", "unknown", "x", mandatory=True)
    queues.expect_nothing()
    assert queues.take_all("a") == [b""]


def test_alternate_exchanges_are_followed_on_and_may_be_missing(queues: Channel) -> None:
    queues.exchange("third", "fanout")
    queues.exchange("second", "direct", {"alternate-exchange": "third"})
    queues.exchange("first", "direct", {"alternate-exchange": "second"})
    queues.exchange("lonely", "direct", {"alternate-exchange": "absent"})
    queues.bind("third", "a")
    assert reaches(queues, "first", "k") == ["a"]
    queues.publish(b"lost", "k", "lonely", mandatory=True)
    assert queues.expect_return().method.reply_code == 312


def test_alternate_exchanges_in_a_circle_end(queues: Channel) -> None:
    queues.exchange("x", "direct", {"alternate-exchange": "y"})
    queues.exchange("y", "direct", {"alternate-exchange": "x"})
    queues.publish(b"", "k", "x", mandatory=True)
    assert queues.expect_return().method.exchange == "x"


@requirement("M010-027")
def test_exchanges_keep_nothing(queues: Channel) -> None:
    queues.exchange("x", "fanout")
    queues.publish(b"early", "", "x")
    queues.bind("x", "a")
    assert queues.take_all("a") == []


def test_topology_changes_reach_a_publisher_that_repeats_itself(queues: Channel) -> None:
    queues.exchange("x", "direct")
    for expected in ([], ["a"], ["a", "b"], ["b"], []):
        assert reaches(queues, "x", "k") == expected
        if expected == []:
            queues.bind("x", "a", "k")
        elif expected == ["a"]:
            queues.bind("x", "b", "k")
        elif expected == ["a", "b"]:
            queues.call(QueueUnbind("a", "x", "k"), QueueUnbindOk)
        else:
            queues.call(QueueUnbind("b", "x", "k"), QueueUnbindOk)


@pytest.mark.parametrize("name", ["line\nfeed", "line\r\nfeed", "\nline\n\rfeed\r"])
def test_ends_of_lines_are_taken_out_of_names(channel: Channel, name: str) -> None:
    channel.exchange(name, "fanout")
    channel.call(ExchangeDeclare("linefeed", "fanout", passive=True), ExchangeDeclareOk)
    channel.declare("q")
    channel.bind(name)
    channel.publish(b"1", exchange="linefeed")
    assert channel.take().body == b"1"
    channel.call(ExchangeDelete(name), ExchangeDeleteOk)
    channel.refuses(ExchangeDeclare("linefeed", "fanout", passive=True), 404)
