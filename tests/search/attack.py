"""`make search-attack`: scripts against a real broker, over sockets; what a bystander waits, and the broker's memory.

Each case is what `generate` makes of a number, or the file of a finding. Peers send as fast as the broker takes it;
those that stall read nothing. A bystander publishes with confirms all the while. A case fails if the bystander waits
longer than 200 ms, if the broker holds more than 300 MB, or if it ends.
"""

import argparse
import contextlib
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random
from typing import Final

from tests.broker.process import BrokerProcess
from tests.engine.amqp091.peer import Peer, SocketWire
from tests.search.evolution import fresh
from tests.search.generator import generate
from tests.search.machine import PREPARED
from tests.search.script import AMQP091, AMQP10, FEED, LOSE, OPEN, STALL, WAIT, Script
from waybill.wire.amqp091.frames import PROTOCOL_HEADER, method_frame
from waybill.wire.amqp091.methods_channel import ChannelOpen
from waybill.wire.amqp091.methods_confirm import ConfirmSelect, ConfirmSelectOk
from waybill.wire.amqp091.methods_connection import ConnectionOpen, ConnectionStartOk, ConnectionTuneOk
from waybill.wire.amqp10.frames import AMQP_HEADER
from waybill.wire.amqp10.frames import frame as amqp10_frame
from waybill.wire.amqp10.performatives import Begin, Open

WAIT_MAX_S: Final = 0.2
RSS_MAX_KB: Final = 300_000
SEND_TIMEOUT_S: Final = 2.0
PAUSE_S: Final = 0.01

WINDOW: Final = 0x7FFFFFFF
OPENINGS: Final[dict[str, bytes]] = {
    AMQP091: PROTOCOL_HEADER
    + method_frame(0, ConnectionStartOk(mechanism="PLAIN", response=b"\0guest\0guest"))
    + method_frame(0, ConnectionTuneOk(2047, 131_072, 0))
    + method_frame(0, ConnectionOpen("/"))
    + method_frame(1, ChannelOpen())
    + method_frame(2, ChannelOpen()),
    AMQP10: AMQP_HEADER
    + amqp10_frame(0, Open("attacker").encode())
    + amqp10_frame(0, Begin(next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=WINDOW).encode())
    + amqp10_frame(1, Begin(next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=WINDOW).encode()),
}


class Bystander(threading.Thread):
    """Publishes one durable message after the other, each once the last one is confirmed."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(daemon=True)
        peer = Peer(SocketWire(broker.port))
        peer.open()
        self.channel = peer.open_channel(1)
        self.channel.declare("bystander", durable=True, arguments={"x-max-length": 10})
        self.channel.call(ConfirmSelect(), ConfirmSelectOk)
        self.longest_s = 0.0
        self.ends = False
        self.error = ""

    def run(self) -> None:
        try:
            while not self.ends:
                began = time.monotonic()
                self.channel.publish(b"bystander", key="bystander")
                self.channel.await_confirms()
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                time.sleep(PAUSE_S)
        except (AssertionError, OSError) as error:
            self.error = str(error)[:200] or type(error).__name__


class Attacker:
    """One connection of a script. Unless it stalls, what comes is read and dropped."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SEND_TIMEOUT_S)
        self.is_stalled = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                if self.is_stalled:
                    time.sleep(PAUSE_S)
                    continue
                try:
                    if not self.socket.recv(1 << 18):
                        return
                except TimeoutError:
                    continue

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.socket.sendall(data)


def resident_kb(broker: BrokerProcess) -> int:
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def attack(broker: BrokerProcess, script: Script) -> int:
    """Play a script; the most memory that the broker had, in KB."""
    peers: dict[int, Attacker] = {}
    most = 0
    for step in script.steps:
        if step.kind in {OPEN, LOSE} and step.peer in peers:
            peers.pop(step.peer).socket.close()
        if step.kind == OPEN:
            peers[step.peer] = Attacker(broker.port)
            peers[step.peer].send(OPENINGS.get(step.text, b""))
        elif step.kind == FEED and step.peer in peers:
            peers[step.peer].send(step.data)
        elif step.kind == STALL and step.peer in peers:
            peers[step.peer].is_stalled = True
        elif step.kind == WAIT:
            time.sleep(min(step.amount, 0.1))
        if broker.process.poll() is None:
            most = max(most, resident_kb(broker))
    time.sleep(PAUSE_S * 10)
    for peer in peers.values():
        peer.socket.close()
    return most


def fault_of(script: Script) -> str:
    """What one script does to a broker of its own."""
    with tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory)) as broker:
        preparing = Attacker(broker.port)
        preparing.send(OPENINGS[AMQP091] + b"".join(method_frame(1, method) for method in PREPARED))
        time.sleep(PAUSE_S * 10)
        bystander = Bystander(broker)
        bystander.start()
        most = attack(broker, script)
        bystander.ends = True
        bystander.join(SEND_TIMEOUT_S * 5)
        if broker.process.poll() is not None:
            return f"the broker ended\n{broker.log()[-2000:]}"
        if "Traceback" in broker.log():
            return broker.log()[-2000:]
        waited = bystander.longest_s * 1000
        print(f"longest wait {waited:.0f} ms, most memory {most // 1000} MB", end="; ", flush=True)
        if bystander.error or bystander.is_alive():
            return f"the bystander is not served: {bystander.error}"
        if bystander.longest_s > WAIT_MAX_S:
            return f"the bystander waited {waited:.0f} ms"
        return f"the broker holds {most // 1000} MB" if most > RSS_MAX_KB else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", type=Path, nargs="*", default=[], help="files of findings instead")
    arguments = parser.parse_args()
    scripts = [(str(path), Script.load(path)) for path in arguments.again] or [
        (str(number), generate(fresh(Random(f"attack/{arguments.seed}/{number}")), scale_min=300))
        for number in range(arguments.cases)
    ]
    failed = 0
    for name, script in scripts:
        fault = fault_of(script)
        failed += bool(fault)
        print(f"{name}: {fault or 'ok'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
