"""A program with Qpid's client: answers one message of the queue `questions` where it wants the answer.

python -W ignore -m tests.interop.qpid_echo build/qpid 127.0.0.1:5672
"""

import sys


def main(arguments: list[str]) -> int:
    directory, address = arguments
    sys.path.insert(0, directory)
    from qpid.messaging import Connection, Message  # type: ignore[import-not-found]

    connection = Connection.establish(address, username="guest", password="guest")
    session = connection.session()
    receiver = session.receiver("questions; {create: always, node: {durable: True}}")
    print("ready", flush=True)
    question = receiver.fetch(timeout=20)
    answer = Message(
        question.content + "!",
        subject=question.subject,
        correlation_id=question.correlation_id,
        priority=question.priority,
        durable=True,
        properties={"seen": question.properties, "size": len(question.content)},
    )
    session.sender(question.reply_to).send(answer)
    session.acknowledge()
    connection.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
