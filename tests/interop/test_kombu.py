"""py-amqp, kombu and Celery: a task goes through a real worker."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import amqp
import amqp.exceptions
import kombu
import pytest

from tests.broker.process import BrokerProcess
from tests.program_environment import program_environment

TASKS = """
import celery

app = celery.Celery("tasks", broker=BROKER, backend="rpc://")
app.conf.update(worker_hijack_root_logger=False, broker_connection_retry_on_startup=False, task_acks_late=True)


@app.task(bind=True, max_retries=2)
def add(self, x, y):
    if self.request.retries == 0 and x == 0:
        raise self.retry(countdown=1)
    return x + y
"""


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[amqp.Connection]:
    with amqp.Connection(f"127.0.0.1:{broker.port}", confirm_publish=True) as connection:
        yield connection


def test_py_amqp(connection: amqp.Connection) -> None:
    channel = connection.channel()
    channel.exchange_declare("pyamqp", "direct", auto_delete=True)
    queue = channel.queue_declare("", exclusive=True, auto_delete=False).queue
    channel.queue_bind(queue, "pyamqp", "key")
    channel.basic_qos(0, 1, a_global=False)
    taken: list[amqp.Message] = []
    tag = channel.basic_consume(queue, callback=taken.append)
    for number in range(2):
        channel.basic_publish(amqp.Message(str(number), delivery_mode=2), "pyamqp", "key")
    while not taken:
        connection.drain_events(timeout=10)
    channel.basic_ack(taken[0].delivery_tag)
    while len(taken) < 2:
        connection.drain_events(timeout=10)
    # In this order: what goes back while the consumer is there is the consumer's again.
    channel.basic_cancel(tag)
    channel.basic_reject(taken[1].delivery_tag, requeue=True)
    again = channel.basic_get(queue)
    assert again.body == "1"
    assert again.delivery_info["redelivered"]
    channel.queue_unbind(queue, "pyamqp", "key")
    assert channel.queue_purge(queue) == 0
    channel.queue_delete(queue)


def test_py_amqp_is_told_of_errors(connection: amqp.Connection) -> None:
    with pytest.raises(amqp.exceptions.NotFound):
        connection.channel().queue_declare("pyamqp.absent", passive=True)
    channel = connection.channel()
    channel.queue_declare("pyamqp.q", exclusive=True)
    with pytest.raises(amqp.exceptions.PreconditionFailed):
        channel.queue_declare("pyamqp.q", exclusive=True, arguments={"x-max-length": 1})


def test_kombu(broker: BrokerProcess) -> None:
    with kombu.Connection(broker.uri()) as connection:
        exchange = kombu.Exchange("kombu", type="topic", durable=True)
        queue = kombu.Queue("kombu", exchange, routing_key="a.#", max_priority=5)
        producer = connection.Producer(serializer="json")
        for priority in (1, 5, 3):
            producer.publish({"p": priority}, exchange=exchange, routing_key="a.b", declare=[queue], priority=priority)
        taken: list[int] = []

        def take(body: dict[str, int], message: kombu.Message) -> None:
            taken.append(body["p"])
            message.ack()

        with connection.Consumer(queue, callbacks=[take], prefetch_count=1):
            while len(taken) < 3:
                connection.drain_events(timeout=10)
        assert taken == [5, 3, 1]
        simple = connection.SimpleQueue("kombu.simple")
        simple.put("hello")
        message = simple.get(timeout=10)
        assert message.payload == "hello"
        message.ack()
        simple.close()


@pytest.mark.timeout(180)
def test_celery_runs_tasks_through_a_worker(broker: BrokerProcess, tmp_path: Path, repository: Path) -> None:
    name = f"tasks_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(f"BROKER = {broker.uri()!r}\n{TASKS}")
    log = (tmp_path / "worker.log").open("w")
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", name, "worker", "--pool", "solo", "--loglevel", "INFO"],
        cwd=tmp_path,
        env=program_environment(PYTHONPATH=str(tmp_path), HOME=str(tmp_path)),
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        client = subprocess.run(
            [
                sys.executable,
                "-c",
                (
                    f"import {name} as t\n"
                    "results = [t.add.delay(n, 2) for n in range(10)]\n"
                    "print([result.get(timeout=60) for result in results])\n"
                ),
            ],
            cwd=tmp_path,
            env=program_environment(PYTHONPATH=str(tmp_path)),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert client.stdout.strip() == str([number + 2 for number in range(10)]), (
            client.stderr + (tmp_path / "worker.log").read_text()
        )
    finally:
        worker.terminate()
        worker.wait(30)
        log.close()
