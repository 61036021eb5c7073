"""Publishing: content, returns and confirms (0-9-1, 1.8.3)."""

import hashlib

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Bench, Channel, NodeBench
from waybill.wire.amqp091.frames import FRAME_BODY, content_frames, frame, header_frame, method_frame
from waybill.wire.amqp091.methods_basic import BasicAck, BasicNack, BasicPublish, BasicReturn
from waybill.wire.amqp091.methods_confirm import ConfirmSelect, ConfirmSelectOk
from waybill.wire.amqp091.methods_queue import QueueDelete, QueueDeleteOk
from waybill.wire.amqp091.properties import BasicProperties

EVERY_PROPERTY = BasicProperties(
    content_type="application/json",
    content_encoding="utf-8",
    headers={"text": "ü", "number": 7, "big": 2**40, "flag": True, "list": [1, "two"], "table": {"a": None}},
    delivery_mode=2,
    priority=4,
    correlation_id="correlation",
    reply_to="reply",
    expiration="60000",
    message_id="message",
    timestamp=1_700_000_000,
    type="kind",
    user_id="guest",
    app_id="app",
)
PERSISTENT = BasicProperties(delivery_mode=2)


@requirement("M010-033", "M010-060")
def test_every_property_arrives_as_it_was_sent(channel: Channel) -> None:
    channel.declare("q")
    channel.publish(b"body", properties=EVERY_PROPERTY)
    taken = channel.take()
    assert taken.properties == EVERY_PROPERTY
    assert taken.body == b"body"


@pytest.mark.parametrize("kind", ["body", "headers"])
@pytest.mark.parametrize("beyond", [0, 8])
def test_a_frame_may_be_eight_octets_longer_than_agreed(bench: Bench, kind: str, beyond: int) -> None:
    peer = bench.connect(frame_max=4096)
    channel = peer.open_channel(1)
    channel.declare("q")
    channel.select_confirms()
    body = b"x" * (4096 - 8 + beyond) if kind == "body" else b"x"
    text = "x" * (4096 + beyond - len(header_frame(1, 1, BasicProperties(headers={"a": ""})))) if kind != "body" else ""
    header = header_frame(1, len(body), BasicProperties(headers={"a": text}))
    for _ in range(3):
        channel.published += 1
        peer.write(method_frame(1, BasicPublish("", "q")) + header + frame(FRAME_BODY, 1, body))
    channel.await_confirms()
    assert channel.depth() == 3
    peer.frame_sizes.clear()
    for _ in range(3):
        assert channel.take().body == body
    assert kind != "body" or max(peer.frame_sizes) <= 4096


@pytest.mark.parametrize("before", [0, 2])
def test_a_frame_nine_octets_longer_than_agreed_is_refused(bench: Bench, bystander: Channel, before: int) -> None:
    peer = bench.connect(frame_max=4096)
    channel = peer.open_channel(1)
    channel.declare("q")
    for _ in range(before):
        channel.publish(b"x" * 4088)
    channel.sync()
    body = b"x" * 4097
    header = header_frame(1, len(body), BasicProperties())
    peer.write(method_frame(1, BasicPublish("", "q")) + header + frame(FRAME_BODY, 1, body))
    peer.expect_refused(501)


@requirement("M010-013", "M010-065", "M010-012")
@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 70_000])
def test_bodies_of_any_size_arrive_whole(bench: Bench, size: int) -> None:
    channel = bench.connect(frame_max=4096).open_channel(1)
    body = hashlib.shake_128(b"seed").digest(size)
    channel.declare("q")
    channel.publish(body)
    assert channel.take().body == body
    channel.consume(no_ack=True)
    channel.publish(body)
    assert channel.delivery().body == body


def test_no_frame_is_larger_than_the_receiver_agreed_to(bench: Bench) -> None:
    narrow, wide = bench.connect(frame_max=4096), bench.connect(frame_max=131_072)
    one, other = narrow.open_channel(1), wide.open_channel(1)
    one.declare("q")
    body = bytes(range(256)) * 64
    other.publish(body)
    other.sync()
    assert one.take().body == body
    other.publish(body)
    one.consume(no_ack=True)
    assert one.delivery().body == body
    other.publish(b"", "nowhere", mandatory=True)
    assert max(narrow.frame_sizes) <= 4096
    one.publish(body, "nowhere", mandatory=True)
    assert one.expect_return().body == body


@pytest.mark.parametrize("size", [300_000, 1_000_000])
@requirement("M010-002", "M010-006")
def test_large_bodies_arrive_whole(bench: Bench, size: int) -> None:
    if isinstance(bench, NodeBench) and bench.cut.value == "bytes":
        size //= 10
    channel = bench.channel()
    body = hashlib.shake_128(b"seed").digest(size)
    channel.declare("q")
    channel.publish(body)
    assert channel.take().body == body


def test_a_body_in_small_frames_is_delivered_in_large_ones(bench: Bench) -> None:
    """Each delivery on another channel looks at every frame, so what is cut up once must not stay so."""
    peer, other = bench.connect(frame_max=4096), bench.connect(frame_max=4096)
    channel, consumer = peer.open_channel(1), other.open_channel(2)
    channel.declare("q")
    body = hashlib.shake_128(b"seed").digest(5000)
    content = header_frame(1, len(body), EVERY_PROPERTY)
    content += b"".join(frame(FRAME_BODY, 1, body[o : o + 10]) for o in range(0, len(body), 10))
    for _ in range(4):
        peer.write(method_frame(1, BasicPublish("", "q")) + content)
    channel.sync()
    other.frame_sizes.clear()
    polled = consumer.take()
    assert polled.body == body
    assert polled.properties == EVERY_PROPERTY
    consumer.consume(no_ack=True)
    assert [consumer.delivery().body for _ in range(3)] == [body] * 3
    assert sorted(size for size in other.frame_sizes if size > 500) == [5000 - 4088 + 8] * 4 + [4096] * 4


@requirement("M010-018")
def test_the_reserved_ticket_may_be_anything(channel: Channel) -> None:
    channel.declare("q")
    publish = bytearray(method_frame(1, BasicPublish("", "q")))
    publish[11:13] = b"\xbe\xef"
    channel.peer.write(bytes(publish) + content_frames(1, BasicProperties(), b"1", 4096))
    assert channel.take().body == b"1"


@requirement("M010-034", "OJS-097")
@requirement("091-basic.publish.mandatory.01", "M010-022")
def test_an_unroutable_message_is_dropped_or_returned(channel: Channel) -> None:
    channel.publish(b"dropped", "nowhere")
    channel.expect_nothing()
    channel.publish(b"back", "nowhere", mandatory=True, properties=EVERY_PROPERTY)
    returned = channel.expect_return()
    assert returned.method == BasicReturn(312, "NO_ROUTE", "", "nowhere")
    assert returned.body == b"back"
    assert returned.properties == EVERY_PROPERTY


def test_a_routable_mandatory_message_is_not_returned(channel: Channel) -> None:
    channel.declare("q")
    channel.publish(b"1", mandatory=True)
    channel.expect_nothing()
    assert channel.take().body == b"1"


@requirement("M010-038")
@requirement("091-basic.publish.immediate.01")
def test_immediate_is_not_implemented(channel: Channel, bystander: Channel) -> None:
    channel.send(BasicPublish("", "q", immediate=True))
    channel.peer.write(content_frames(1, BasicProperties(), b"1", 4096))
    channel.peer.expect_refused(540)


@requirement("OJS-115")
@pytest.mark.parametrize("properties", [BasicProperties(), PERSISTENT])
@pytest.mark.parametrize("durable", [True, False])
def test_each_publish_is_confirmed_once(channel: Channel, properties: BasicProperties, durable: bool) -> None:
    channel.declare("q", durable=durable)
    channel.select_confirms()
    for number in range(20):
        channel.publish(str(number), properties=properties)
    channel.await_confirms()
    assert channel.confirmed == set(range(1, 21))
    channel.expect_nothing()
    assert channel.depth() == 20


def test_publishes_before_confirm_select_do_not_count(channel: Channel) -> None:
    channel.declare("q")
    channel.publish(b"before")
    channel.select_confirms()
    channel.publish(b"after")
    channel.await_confirms()
    assert channel.confirmed == {1}


def test_selecting_confirms_twice_changes_nothing(channel: Channel) -> None:
    channel.select_confirms()
    channel.publish(b"1")
    channel.await_confirms()
    channel.call(ConfirmSelect(), ConfirmSelectOk)
    channel.publish(b"2")
    assert channel.expect(BasicAck) == BasicAck(2, multiple=False)


def test_confirm_select_without_waiting_gets_no_answer(channel: Channel) -> None:
    channel.send(ConfirmSelect(nowait=True))
    channel.publish(b"1")
    assert channel.expect(BasicAck).delivery_tag == 1


@requirement("M010-015")
def test_no_confirm_before_the_disk_has_it(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    channel.declare("q", durable=True)
    channel.select_confirms()
    node_bench.is_stuck = True
    channel.publish(b"1", properties=PERSISTENT)
    channel.expect_nothing()
    node_bench.is_stuck = False
    node_bench.settle()
    channel.await_confirms()


def test_a_transient_message_is_confirmed_without_the_disk(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    channel.declare("q")
    channel.select_confirms()
    node_bench.is_stuck = True
    channel.publish(b"1")
    channel.await_confirms()


def test_one_confirm_covers_all_that_one_sync_covered(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    channel.declare("q", durable=True)
    channel.select_confirms()
    node_bench.is_stuck = True
    for _ in range(10):
        channel.publish(b"", properties=PERSISTENT)
    node_bench.is_stuck = False
    node_bench.settle()
    acks = []
    while len(channel.confirmed) < 10:
        acks.append(channel.expect(BasicAck))
        channel.note_confirm(acks[-1])
    channel.expect_nothing()
    assert acks[-1] == BasicAck(10, multiple=len(acks) == 1 or acks[-2].delivery_tag < 9)


@requirement("OJS-097")
def test_a_return_comes_before_its_confirm(channel: Channel) -> None:
    channel.select_confirms()
    channel.publish(b"1", "nowhere", mandatory=True)
    channel.expect_return()
    channel.await_confirms()
    channel.declare("q")
    for number in range(2, 6):
        channel.publish(str(number), "q" if number % 2 else "nowhere", mandatory=True)
    returned, seen = [], []
    while len(channel.confirmed) < 5:
        arrival = channel.next()
        if isinstance(arrival.method, BasicReturn):
            returned.append(arrival.body)
        else:
            assert isinstance(arrival.method, BasicAck)
            channel.note_confirm(arrival.method)
            seen.append((arrival.method.delivery_tag, len(returned)))
    assert returned == [b"2", b"4"]
    assert all(count >= tag // 2 - 1 + (tag < 2) for tag, count in seen if tag > 1)


def test_an_unroutable_message_is_confirmed(channel: Channel) -> None:
    channel.select_confirms()
    channel.publish(b"1", "nowhere", properties=PERSISTENT)
    channel.await_confirms()
    assert channel.confirmed == {1}


@requirement("M010-035", "M010-036")
def test_copies_in_several_queues_are_equal_and_independent(channel: Channel) -> None:
    channel.exchange("x", "fanout")
    for name in ("a", "b", "c"):
        channel.declare(name, durable=True)
        channel.bind("x", name)
    channel.select_confirms()
    channel.publish(b"copy", "", "x", properties=EVERY_PROPERTY)
    channel.await_confirms()
    taken = channel.take("a")
    assert channel.depth("b") == 1
    assert channel.call(QueueDelete("b"), QueueDeleteOk).message_count == 1
    third = channel.take("c")
    assert (third.body, third.properties) == (taken.body, taken.properties)


def test_copies_go_to_the_keys_in_cc_and_bcc(channel: Channel) -> None:
    for name in ("a", "b", "c"):
        channel.declare(name)
    channel.publish(b"1", "a", headers={"CC": ["b"], "BCC": ["c", "a"], "other": 1})
    for name in ("a", "b", "c"):
        taken = channel.take(name)
        assert taken.headers == {"CC": ["b"], "other": 1}
        assert taken.method.routing_key == "a"
        assert channel.depth(name) == 0


@pytest.mark.parametrize("size", [10, 4090, 6000])
def test_copies_are_made_wherever_cc_and_bcc_stand_in_the_headers(channel: Channel, size: int) -> None:
    for name in ("a", "b", "c"):
        channel.declare(name)
    before: dict[str, object] = {"before": "x" * size}
    both: dict[str, object] = {"CC": ["b"], "BCC": ["c"]}
    for headers in (before | both, {"CC": ["b"]} | before | {"BCC": ["c"], "after": 1}):
        channel.publish(b"1", "a", headers=headers)
        for name in ("a", "b", "c"):
            assert channel.take(name).headers == {key: headers[key] for key in headers if key != "BCC"}


def test_names_within_tables_make_no_copies(channel: Channel) -> None:
    channel.declare("a")
    channel.declare("b")
    headers: dict[str, object] = {"table": {"CC": ["b"]}, "CCC": ["b"], "text": "CC"}
    channel.publish(b"1", "a", headers=headers)
    assert channel.take("a").headers == headers
    assert channel.depth("b") == 0


def test_the_value_of_cc_must_be_a_list(channel: Channel) -> None:
    channel.declare("a")
    channel.publish(b"1", "a", headers={"CC": "b"})
    channel.expect_refused(406)


def test_a_false_user_id_is_refused(channel: Channel) -> None:
    channel.declare("q")
    channel.publish(b"1", properties=BasicProperties(user_id="somebody"))
    close = channel.expect_refused(406)
    assert "user_id property set to 'somebody' but authenticated user was 'guest'" in close.reply_text
    channel.reopen()
    assert channel.depth() == 0


@requirement("OJS-052")
@pytest.mark.parametrize("expiration", ["soon", "-1", "1.5", "", " 5", "5 "])
def test_an_expiration_that_is_no_number_is_refused(channel: Channel, expiration: str) -> None:
    channel.declare("q")
    channel.publish(b"1", properties=BasicProperties(expiration=expiration))
    channel.expect_refused(406)
    channel.reopen()
    assert channel.depth() == 0


@pytest.mark.ours  # the limit of 3.10 is higher
def test_a_body_beyond_the_limit_is_refused_by_its_size(bench: Bench, bystander: Channel) -> None:
    channel = bench.channel()
    channel.declare("q")
    channel.send(BasicPublish("", "q"))
    announced = bytearray(content_frames(1, BasicProperties(), b"x", 4096)[:-9])
    announced[11:19] = (200 << 20).to_bytes(8, "big")
    channel.peer.write(bytes(announced))
    channel.expect_refused(406)
    channel.reopen()
    assert channel.depth() == 0


def test_a_full_queue_that_refuses_nacks(channel: Channel) -> None:
    channel.declare("q", {"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.select_confirms()
    for _ in range(3):
        channel.publish(b"")
    channel.await_confirms()
    assert channel.confirmed == {1}
    assert channel.refused == {2, 3}
    channel.take()
    channel.publish(b"")
    channel.await_confirms()
    assert channel.confirmed == {1, 4}


def test_confirms_after_a_nack_do_not_cover_it(channel: Channel) -> None:
    channel.declare("full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    channel.declare("q", durable=True)
    channel.select_confirms()
    for number in range(12):
        channel.publish(b"", "full" if number % 3 == 1 else "q", properties=PERSISTENT)
    channel.await_confirms()
    assert channel.refused == {2, 5, 8, 11}
    assert len(channel.confirmed) == 8


def test_refusals_of_one_channel_leave_others_alone(bench: Bench) -> None:
    peer = bench.connect()
    one, two = peer.open_channel(1), peer.open_channel(2)
    one.declare("q")
    one.select_confirms()
    two.select_confirms()
    for _ in range(3):
        one.publish(b"")
        two.publish(b"")
    one.await_confirms()
    two.await_confirms()
    assert one.confirmed == two.confirmed == {1, 2, 3}


def test_a_server_does_not_take_confirms(channel: Channel) -> None:
    channel.send(BasicNack(1))
    channel.expect_refused(406)
