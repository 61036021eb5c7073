"""amqplib for Node.js, installed by npm into a directory of the test."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess

NODE = Path(__file__).parent / "node"


@pytest.mark.timeout(180)
def test_amqplib(broker: BrokerProcess, tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("Node.js is not installed: apt install nodejs npm")
    for name in ("package.json", "client.js"):
        shutil.copy(NODE / name, tmp_path)
    install = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--loglevel=error"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert install.returncode == 0, install.stderr
    run = subprocess.run(
        [node, "client.js", broker.uri()], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"seen": 500}
