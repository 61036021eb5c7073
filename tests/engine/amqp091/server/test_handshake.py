"""Opening and closing a connection: greeting, login, tuning, virtual hosts (0-9-1, 2.2.4)."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import CLIENT_PROPERTIES, Bench, Channel, NodeBench
from waybill.engine.amqp091.server.channel_host import FRAME_MIN
from waybill.wire.amqp091.field_table import encode_table
from waybill.wire.amqp091.frames import PROTOCOL_HEADER, method_frame
from waybill.wire.amqp091.methods_channel import ChannelClose, ChannelCloseOk, ChannelOpen
from waybill.wire.amqp091.methods_connection import (
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
)
from waybill.wire.amqp091.methods_queue import QueueDeclare
from waybill.wire.amqp10.frames import SASL_HEADER


@requirement("091-connection.start.locales")
def test_the_greeting_names_mechanisms_and_capabilities(bench: Bench) -> None:
    start = bench.plug().start()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert {"PLAIN", "AMQPLAIN"} <= set(start.mechanisms.split())
    assert "en_US" in start.locales.split()
    capabilities = start.server_properties["capabilities"]
    assert isinstance(capabilities, dict)
    for name in (
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
    ):
        assert capabilities[name] is True


@requirement("M010-009", "M010-011")
@pytest.mark.parametrize(
    ("header", "answer"),
    [
        (b"AMQP\x01\x01\x00\x09", PROTOCOL_HEADER),
        (b"AMQP\x01\x01\x08\x00", PROTOCOL_HEADER),
        (b"AMQP\x00\x00\x09\x02", PROTOCOL_HEADER),
        (b"AMQP\x00\x63\x00\x00", SASL_HEADER),
        (b"AMQP\x04\x01\x00\x00", SASL_HEADER),
        (b"AMQP\x00\x01\x01\x00", SASL_HEADER),
        (b"AMQP\x02\x01\x00\x00", SASL_HEADER),
        (b"HTTP/1.1", SASL_HEADER),
        (b"GET / HTTP/1.1\r\n\r\n", SASL_HEADER),
    ],
    ids=repr,
)
@requirement("091-connection.start.protocol-name", "091-connection.start.server-support", "M010-010")
def test_an_unknown_protocol_header_is_answered_with_ours_and_a_close(
    bench: Bench, bystander: Channel, header: bytes, answer: bytes
) -> None:
    if bench.is_rabbitmq and header.startswith(b"AMQP\x01\x01"):
        pytest.skip("RabbitMQ takes 0-8 as 0-9")
    peer = bench.plug()
    wire = peer.wire
    wire.write(header)
    # RabbitMQ 3.10 prefers 0-9-1 whatever was asked for.
    assert wire.read(5.0) == (PROTOCOL_HEADER if bench.is_rabbitmq else answer)
    peer.expect_closed()


@requirement("091-connection.tune.frame-max.minimum")
def test_a_frame_of_the_least_size_is_taken_before_the_tuning(bench: Bench) -> None:
    peer = bench.plug()
    peer.start()
    response = b"\0guest\0guest"
    bare = method_frame(0, ConnectionStartOk({"information": ""}, "PLAIN", response))
    padding = "x" * (4096 - len(bare))
    octets = method_frame(0, ConnectionStartOk({"information": padding}, "PLAIN", response))
    assert len(octets) == 4096
    peer.write(octets)
    assert peer.connection.expect(ConnectionTune).frame_max >= 4096


@requirement("091-connection.start.server-properties")
def test_the_server_says_what_it_is(bench: Bench) -> None:
    properties = bench.plug().start().server_properties
    for name in ("product", "version", "platform", "copyright", "information"):
        assert isinstance(properties[name], str)
        assert properties[name]


def test_an_amqplain_login_works(bench: Bench) -> None:
    peer = bench.plug()
    peer.start()
    response = encode_table({"LOGIN": "guest", "PASSWORD": "guest"})[4:]
    peer.connection.send(ConnectionStartOk(CLIENT_PROPERTIES, "AMQPLAIN", response))
    peer.connection.expect(ConnectionTune)


@pytest.mark.parametrize(("user", "password"), [("guest", "wrong"), ("nobody", "guest"), ("", "")])
def test_a_bad_login_gets_403_if_the_client_understands_it(
    bench: Bench, bystander: Channel, user: str, password: str
) -> None:
    peer = bench.plug()
    peer.start()
    peer.log_in(user, password)
    close = peer.connection.expect(ConnectionClose)
    assert close.reply_code == 403
    assert close.reply_text.startswith("ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN")
    peer.connection.send()
    peer.expect_closed()


@pytest.mark.ours  # RabbitMQ holds the close back for seconds
def test_a_bad_login_is_just_cut_off_if_the_client_does_not_understand(bench: Bench, bystander: Channel) -> None:
    peer = bench.plug()
    peer.start()
    peer.log_in("guest", "wrong", client_properties={})
    peer.expect_closed()
    peer.connection.expect_nothing()


@pytest.mark.ours
@pytest.mark.parametrize("response", [b"", b"guest", b"\0guest", b"\0guest\0", b"\0\0\0\0", b"\xff\0\xff\0\xff"])
def test_a_malformed_login_is_refused_like_a_wrong_one(bench: Bench, response: bytes) -> None:
    peer = bench.plug()
    peer.start()
    peer.connection.send(ConnectionStartOk(CLIENT_PROPERTIES, "PLAIN", response))
    assert peer.connection.expect(ConnectionClose).reply_code == 403
    peer.expect_closed()


@pytest.mark.ours
@requirement("091-connection.start-ok.mechanism.validity")
def test_an_unknown_mechanism_is_refused(bench: Bench) -> None:
    peer = bench.plug()
    peer.start()
    peer.connection.send(ConnectionStartOk(CLIENT_PROPERTIES, "MAGIC", b""))
    assert peer.connection.expect(ConnectionClose).reply_code == 403
    peer.expect_closed()


def test_guest_may_not_log_in_from_another_machine(node_bench: NodeBench) -> None:
    assert node_bench.node.authenticate("guest", "guest", "127.0.0.1:5000") is not None
    assert node_bench.node.authenticate("guest", "guest", "[::1]:5000") is not None
    assert node_bench.node.authenticate("guest", "guest", "192.0.2.7:5000") is None


@pytest.mark.ours  # RabbitMQ takes its time to refuse
@pytest.mark.parametrize("frame_max", [1, FRAME_MIN - 1, 131_073])
@requirement("091-connection.tune-ok.frame-max.minimum", "091-connection.tune-ok.frame-max.upper-limit")
def test_a_frame_max_beyond_the_offer_is_not_allowed(bench: Bench, bystander: Channel, frame_max: int) -> None:
    peer = bench.plug()
    peer.start()
    peer.log_in()
    tune = peer.connection.expect(ConnectionTune)
    peer.connection.send(ConnectionTuneOk(tune.channel_max, frame_max, 0))
    peer.expect_refused(530)


@pytest.mark.ours
@pytest.mark.parametrize("channel_max", [0, 2048])
@requirement("091-connection.tune-ok.channel-max.upper-limit")
def test_a_channel_max_beyond_the_offer_is_not_allowed(bench: Bench, bystander: Channel, channel_max: int) -> None:
    peer = bench.plug()
    peer.start()
    peer.log_in()
    tune = peer.connection.expect(ConnectionTune)
    assert tune.channel_max == 2047
    peer.connection.send(ConnectionTuneOk(channel_max, 131_072, 0))
    peer.expect_refused(530)


def test_one_channel_more_than_channel_max_closes_the_connection(bench: Bench, bystander: Channel) -> None:
    peer = bench.plug()
    peer.start()
    peer.log_in()
    peer.connection.expect(ConnectionTune)
    peer.connection.send(ConnectionTuneOk(2, 131_072, 0))
    peer.connection.call(ConnectionOpen("/"), ConnectionOpenOk)
    peer.open_channel(1)
    last = peer.open_channel(65_535)
    last.call(ChannelClose(200, "", 0, 0), ChannelCloseOk)
    peer.open_channel(2)
    last.send(ChannelOpen())
    peer.expect_refused(530)


@requirement("M010-072")
def test_an_unknown_virtual_host_is_not_allowed(bench: Bench, bystander: Channel) -> None:
    peer = bench.plug()
    peer.start()
    peer.log_in()
    peer.connection.expect(ConnectionTune)
    peer.connection.send(ConnectionTuneOk(2047, 131_072, 0), ConnectionOpen("/nowhere"))
    text = peer.expect_refused(530)
    assert text == "NOT_ALLOWED - vhost /nowhere not found"


@requirement("M010-073")
@pytest.mark.ours
@requirement("091-connection.open.virtual-host.security")
def test_a_virtual_host_without_permission_is_not_allowed(node_bench: NodeBench) -> None:
    node_bench.node.administration.clear_permission("guest", "/ojs")
    node_bench.connect("/").close()
    peer = node_bench.plug()
    peer.start()
    peer.log_in()
    peer.connection.expect(ConnectionTune)
    peer.connection.send(ConnectionTuneOk(2047, 131_072, 0), ConnectionOpen("/ojs"))
    assert "refused for user 'guest'" in peer.expect_refused(530)


@requirement("OJS-004", "M010-017", "M010-075")
@requirement("091-connection.open.virtual-host.separation")
def test_virtual_hosts_are_independent_name_spaces(bench: Bench) -> None:
    here = bench.connect("/").open_channel(1)
    there = bench.connect("/ojs").open_channel(1)
    here.declare("same")
    there.declare("same")
    here.publish(b"here", "same")
    assert there.depth("same") == 0
    assert here.take("same").body == b"here"
    there.exchange("only-there")
    here.refuses(QueueDeclare("absent", passive=True), 404)


@requirement("M010-071")
@pytest.mark.ours
@requirement("M010-074")
def test_a_second_open_is_an_error(bench: Bench, bystander: Channel) -> None:
    peer = bench.connect()
    peer.connection.send(ConnectionOpen("/ojs"))
    peer.expect_refused(504)


@pytest.mark.ours
def test_steps_out_of_order_are_commands_invalid(bench: Bench, bystander: Channel) -> None:
    peer = bench.plug()
    peer.start()
    peer.connection.send(ConnectionOpen("/"))
    peer.expect_refused(503)


@pytest.mark.ours
def test_a_channel_cannot_be_opened_before_the_connection(bench: Bench, bystander: Channel) -> None:
    peer = bench.plug()
    peer.start()
    peer.channels[1] = peer.connection
    peer.connection.number = 1
    peer.connection.send(ChannelOpen())
    peer.connection.number = 0
    peer.expect_refused(503)


@pytest.mark.ours
@pytest.mark.parametrize("said", [b"", b"AMQP\x00", PROTOCOL_HEADER])
def test_a_handshake_that_takes_too_long_is_cut_off(bench: Bench, bystander: Channel, said: bytes) -> None:
    peer = bench.plug()
    peer.write(said)
    bench.advance(9.0)
    peer.receive(0.0)
    assert not peer.wire.is_closed
    bench.advance(1.1)
    peer.expect_closed()


def test_the_server_answers_a_close_and_hangs_up(bench: Bench, bystander: Channel) -> None:
    peer = bench.connect()
    peer.open_channel(1)
    peer.close()


@pytest.mark.parametrize("secret", ["guest", "another"])
def test_a_new_secret_is_taken(bench: Bench, secret: str) -> None:
    channel = bench.channel()
    channel.peer.connection.call(ConnectionUpdateSecret(secret, "renewed"), ConnectionUpdateSecretOk)
    channel.declare("q")


@pytest.mark.ours
def test_frames_are_small_until_a_size_is_agreed(bench: Bench, bystander: Channel) -> None:
    """Up to 4096 octets, as RabbitMQ to 4.0 has it (4.1: 8192). It hangs up without a word."""
    peer = bench.plug()
    peer.start()
    properties: dict[str, object] = {**CLIENT_PROPERTIES, "too_long": "x" * FRAME_MIN}
    peer.connection.send(ConnectionStartOk(properties, "PLAIN", b"\0guest\0guest", "en_US"))
    peer.expect_refused(501)
