"""rhea for Node.js, installed by npm into a directory of the test."""

import json
import shutil
import subprocess
from pathlib import Path

import pika
import pytest

from tests.broker.process import BrokerProcess

NODE = Path(__file__).parent / "node"


@pytest.mark.timeout(180)
def test_rhea(broker: BrokerProcess, tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("Node.js is not installed: apt install nodejs npm")
    shutil.copy(NODE / "rhea.js", tmp_path)
    install = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--loglevel=error", "rhea@^3.0.3"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert install.returncode == 0, install.stderr
    declare(broker.port)
    run = subprocess.run(
        [node, "rhea.js", str(broker.port)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"seen": 200}


def declare(port: int) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.queue_declare("rhea.dead", durable=True)
    channel.queue_declare("rhea.selected", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "rhea.dead"}
    channel.queue_declare("rhea", durable=True, arguments=arguments)
    connection.close()
