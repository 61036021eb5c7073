"""Apache Qpid's Python client for AMQP 0-10, and its own suites: as on Qpid's C++ broker.

`make setup` fetches it (scripts/qpid_python.py). The suites run in a process of their own. `make qpid` runs all.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from pika import BasicProperties, BlockingConnection, ConnectionParameters

from tests.broker.process import BrokerProcess
from tests.conformance.requirement import requirement
from tests.program_environment import program_environment
from waybill.wire.amqp010.operations import COMMANDS, CONTROLS
from waybill.wire.amqp010.struct import Command, Control

QPID: Final = Path(__file__).resolve().parents[2] / "build/qpid"
WAIT_S: Final = 110

MANAGEMENT: Final = "asks Qpid's own management, QMF"
EXTENSION: Final = "an extension of Qpid's broker"
PYTHON: Final = "depends on Python 2"
NOT_SERVED: Final = {
    "exchange.DeclareMethodExchangeFieldReservedRuleTests.test_qpid": EXTENSION,
    "message.MessageTests.test_ack": MANAGEMENT,
    "priority.PriorityTests.test_fairshare_1": EXTENSION,
    "priority.PriorityTests.test_fairshare_3": EXTENSION,
    "priority.PriorityTests.test_fairshare_with_alias": EXTENSION,
    "new_api.GeneralTests.test_ambiguous_create_1": MANAGEMENT,
    "new_api.GeneralTests.test_ambiguous_create_2": MANAGEMENT,
    "new_api.GeneralTests.test_ambiguous_delete_1": MANAGEMENT,
    "new_api.GeneralTests.test_ambiguous_delete_2": MANAGEMENT,
    "new_api.GeneralTests.test_node_disambiguation_1": MANAGEMENT,
    "new_api.GeneralTests.test_node_disambiguation_2": MANAGEMENT,
    **{f"message.MessageTests.test_no_local{name}": EXTENSION for name in ("", "_awkward", "_exclusive_subscribe")},
    "new_api.GeneralTests.test_nolocal_rerouted": EXTENSION,
    "new_api.SequenceNumberTests.test_create_sequence_queue": EXTENSION,
    "new_api.SequenceNumberTests.test_get_sequence_number": EXTENSION,
    "new_api.SequenceNumberTests.test_sequence_number_gap": EXTENSION,
}

SESSIONS: Final = ("query", "dtx", "alternate_exchange", "queue", "persistence")
MESSAGING: Final = (
    "priority",
    *(f"endpoints.{name}Tests" for name in ("Session", "Sender", "Address", "AddressError")),
)
# The others take a minute and a half, most of it waiting: `make qpid` runs them, and the suite the shortest.
OTHERS: Final = (
    ("tx", "exchange", "message", "new_api", "broker", "example", "endpoints.ReceiverTests")
    if "ALL_OF_QPID" in os.environ
    else ("tx",)
)

needs_qpid = pytest.mark.skipif(not QPID.is_dir(), reason="Qpid's client is missing: run make setup")


def failures(broker: BrokerProcess, *suites: str) -> list[str]:
    """What fails of Qpid's suites and is not known to."""
    run = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "tests.interop.qpid_suites"),
            *(str(QPID), f"127.0.0.1:{broker.port}", *suites),
        ],
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert sum(line.endswith(" ok") for line in lines) >= len(suites), run.stderr
    names = {suite.split(".")[0] for suite in suites}
    return [
        line
        for line in lines
        if line.split(".")[0] in names and not line.endswith(" ok") and line.split(" ")[0] not in NOT_SERVED
    ]


@needs_qpid
@requirement("X010-007", "X010-010", "M010-007")
def test_controls_and_commands_have_the_names_codes_and_fields_of_the_specification() -> None:
    """Each is a Python class, without exceptions. No answer serves two requests, but for the end of a session."""
    document = ET.parse(QPID / "qpid/specs/amqp-0-10-qpid-errata-stripped.xml")  # noqa: S314 - our own copy
    written: dict[str, tuple[int, list[str]]] = {}
    answers: Counter[str] = Counter()
    for group in document.findall(".//{*}class"):
        for one in (*group.findall("{*}control"), *group.findall("{*}command")):
            name = f"{group.get('name')}.{one.get('name')}"
            code = int(group.get("code", "0"), 16) << 8 | int(one.get("code", "0"), 16)
            fields = [field.get("name", "").replace("-", "_") for field in one.findall("{*}field")]
            written[name] = (code, fields)
            answers.update(f"{group.get('name')}.{answer.get('name')}" for answer in one.findall("{*}response"))
    ours: tuple[type[Control | Command], ...] = (*CONTROLS, *COMMANDS)
    assert {one.NAME: (one.CODE, [name.rstrip("_") for name in one.FIELDS.names]) for one in ours} == written
    assert {name for name, count in answers.items() if count > 1} == {"session.detached"}


@needs_qpid
@requirement("M010-107", "M010-108", "X010-017", "X010-040", "X010-041", "X010-043")
def test_sessions(broker: BrokerProcess) -> None:
    assert failures(broker, *SESSIONS) == []


@needs_qpid
@requirement("X010-008", "X010-010", "X010-025")
def test_the_messaging_api(broker: BrokerProcess) -> None:
    assert failures(broker, *MESSAGING) == []


@needs_qpid
@pytest.mark.parametrize("suite", OTHERS)
@requirement("X010-042")
def test_all_others(broker: BrokerProcess, suite: str) -> None:
    assert failures(broker, suite) == []


@needs_qpid
@requirement("M010-001", "M010-060", "M010-066")
def test_a_question_of_091_is_answered_by_010(broker: BrokerProcess) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.interop.qpid_echo", str(QPID), f"127.0.0.1:{broker.port}"]
    with (
        subprocess.Popen(command, env=program_environment(), stdout=subprocess.PIPE, text=True) as program,
        BlockingConnection(ConnectionParameters("127.0.0.1", broker.port)) as connection,
    ):
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        channel = connection.channel()
        channel.queue_declare("answers", exclusive=True)
        properties = BasicProperties(
            reply_to="answers",
            correlation_id="7",
            content_type="text/plain",
            priority=5,
            headers={"n": 3, "nested": {"list": [1, "two", True]}, "qpid.subject": "sums"},
        )
        channel.basic_publish("", "questions", b"1 + 1", properties)
        for _, answer, body in channel.consume("answers", auto_ack=True, inactivity_timeout=WAIT_S):
            assert body == b"1 + 1!"
            assert answer is not None
            assert (answer.correlation_id, answer.priority, answer.delivery_mode) == ("7", 5, 2)
            assert answer.headers["size"] == 5
            assert answer.headers["qpid.subject"] == "sums"
            seen = answer.headers["seen"]
            assert (seen["n"], seen["nested"]) == (3, {"list": [1, "two", True]})
            break
        assert program.wait() == 0
