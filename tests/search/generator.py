"""From the octets of a case to a script: which peers there are, what each of them does, and how it is damaged."""

from collections import Counter
from typing import Final

from tests.search import amqp010_moves, amqp091_moves, amqp10_heavy_moves, amqp10_moves
from tests.search.choices import Choices, genes
from tests.search.mutation import mutated
from tests.search.script import (
    AMQP010,
    AMQP091,
    AMQP10,
    FEED,
    LOSE,
    OPEN,
    RAW,
    READ_BYTES_MAX,
    STALL,
    WAIT,
    Script,
    Step,
)
from waybill.wire.amqp010.frames import PROTOCOL_HEADER as AMQP010_HEADER
from waybill.wire.amqp091.frames import PROTOCOL_HEADER, method_frame
from waybill.wire.amqp091.methods_channel import ChannelOpen
from waybill.wire.amqp10.frames import AMQP_HEADER, SASL_HEADER

PEERS: Final = (AMQP091, AMQP10, AMQP091, AMQP10, AMQP010, AMQP010)
GENES_MAX: Final = 12
BYTES_MAX: Final = 6 * READ_BYTES_MAX
"""What one case sends, all peers together."""
SCALES: Final = (8, 8, 8, 40, 40, 40, 300, 1 << 20)
"""Most cases are small and quick, and odd; the others show what much of the same costs."""
MOVES_10: Final = amqp10_moves.MOVES + amqp10_heavy_moves.HEAVY_MOVES
WAITS: Final = (0.001, 1.0, 20.0, 61.0, 4000.0)
POLICIES: Final[tuple[dict[str, object], ...]] = (
    {"max-length": 0, "dead-letter-exchange": "fanout"},
    {"message-ttl": 0, "dead-letter-exchange": "topic", "dead-letter-routing-key": "a"},
    {"max-length": 3, "overflow": "reject-publish-dlx", "dead-letter-exchange": ""},
    {"expires": 1000},
    {"delivery-limit": 0, "dead-letter-exchange": "headers"},
    {"alternate-exchange": "fanout"},
)


class _Peer:
    def __init__(self, number: int, protocol: str) -> None:
        self.number = number
        self.protocol = protocol
        self.is_open = False
        self.is_doubtful = False
        self.channel = 2
        self.linked: set[int] = set()
        self.sent: Counter[int] = Counter()

    def begin(self) -> None:
        """Its connection is new."""
        self.is_open = True
        self.is_doubtful = False
        self.channel = 2
        self.linked.clear()
        self.sent.clear()


def generate(case: bytes, scale_max: int = 1 << 20, scale_min: int = 1) -> Script:
    """The same octets give the same script. `scale_min` and `scale_max` bound what bounds all amounts."""
    head, *moves = genes(case)
    choices = Choices(head)
    scale = max(scale_min, min(choices.pick(SCALES), scale_max))
    script = Script(is_durable=choices.chance(3))
    if choices.chance(2):
        script.policies = [choices.pick(POLICIES) for _ in range(choices.number(1, 2))]
    peers = [_Peer(number, protocol) for number, protocol in enumerate(PEERS)]
    others: list[bytes] = []
    for gene in moves[:GENES_MAX]:
        if script.size < BYTES_MAX:
            _add(script, Choices(gene, scale), peers, others)
    return script


def _add(script: Script, choices: Choices, peers: list[_Peer], others: list[bytes]) -> None:
    peer = peers[choices.pick((0, 1, 4, 0, 1, 4, 0, 1, 4, 2, 3, 5))]
    kind = choices.number(0, 39)
    if kind == 0:
        script.steps.append(Step(WAIT, amount=choices.pick(WAITS)))
        return
    if kind == 1 and peer.is_open:
        peer.is_open = False
        script.steps.append(Step(LOSE, peer.number))
        return
    if kind == 2:
        script.steps += _strangers(choices, peer)
        peer.begin()
        peer.is_doubtful = True
        return
    if not peer.is_open or (peer.is_doubtful and choices.chance(2)):
        peer.begin()
        script.steps.append(Step(OPEN, peer.number, text=peer.protocol))
    if kind == 3:
        script.steps.append(Step(STALL, peer.number))
    frames = FRAMES[peer.protocol](choices, peer)
    damaged = mutated(choices, frames, others)
    peer.is_doubtful = peer.is_doubtful or damaged is not frames
    others += damaged[:20]
    _feed(script, choices, peer, b"".join(damaged))


def _frames_091(choices: Choices, peer: _Peer) -> list[bytes]:
    """A move on a channel that is there, or on one of its own: what went wrong before is no matter there."""
    move = choices.pick(amqp091_moves.MOVES)
    if not choices.chance(3):
        return move(choices, choices.pick((1, 1, 1, 2)))
    peer.channel += 1
    return [method_frame(peer.channel, ChannelOpen()), *move(choices, peer.channel)]


def _frames_10(choices: Choices, peer: _Peer) -> list[bytes]:
    """A move in one of the two sessions, in which there are links by then."""
    channel = choices.pick((0, 0, 0, 1))
    choices.sent = peer.sent[channel]
    frames: list[bytes] = []
    if channel not in peer.linked:
        peer.linked.add(channel)
        frames = amqp10_moves.OPEN_LINKS(choices, channel)
    move = choices.pick(MOVES_10)
    added = move(choices, channel)
    if move is amqp10_moves.TRANSFER or move in amqp10_heavy_moves.HEAVY_MOVES:
        peer.sent[channel] += amqp10_heavy_moves.transfer_count(added)
    return frames + added


def _frames_010(choices: Choices, peer: _Peer) -> list[bytes]:
    """A move in one of the two sessions, which may have been the other peer's, and is a new one if it had ended."""
    channel = choices.pick((0, 0, 0, 1))
    move = choices.pick(amqp010_moves.MOVES)
    frames = [] if choices.chance(6) else amqp010_moves.ATTACH(choices, channel)
    if move in amqp010_moves.AFTER_TRAFFIC and choices.number(0, 2):
        frames += amqp010_moves.TRAFFIC(choices, channel)
    return frames + move(choices, channel)


FRAMES: Final = {AMQP091: _frames_091, AMQP10: _frames_10, AMQP010: _frames_010}


def _strangers(choices: Choices, peer: _Peer) -> list[Step]:
    """A peer that does not get as far as a session."""
    known = (PROTOCOL_HEADER, AMQP_HEADER, SASL_HEADER, AMQP010_HEADER)
    header = choices.pick((*known, b"AMQP\2\1\0\0", b"GET / HTTP/1.1\r\n", b""))
    rest = choices.pick((b"", b"\0" * choices.amount(5000), choices.octets(choices.amount(300)), header * 20))
    return [Step(OPEN, peer.number, text=RAW), Step(FEED, peer.number, header + rest)]


def _feed(script: Script, choices: Choices, peer: _Peer, data: bytes) -> None:
    """In one read if it fits, at times in pieces."""
    shape = choices.number(0, 9)
    size = READ_BYTES_MAX if shape < 8 else max(1, len(data) // choices.number(2, 12))
    if shape == 9 and len(data) < 200:
        size = 1
    for start in range(0, len(data), size):
        script.steps.append(Step(FEED, peer.number, data[start : start + size]))
