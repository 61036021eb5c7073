"""Runs the pages: their files are written, their commands run in one shell a page, and what these print is compared."""

import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests import postgresql
from tests.docs.page import NOT_RUN, Page, pages
from tests.docs.shell import Shell, agrees
from waybill.testing import TestBroker

POSTGRESQL_PORT: Final = 5432
SHOWN_PORTS: Final = (POSTGRESQL_PORT, 5671, 5672, 5673, 8000, 8080, 9100, 15672)
RUNNING: Final = [page for page in pages() if page.runs]


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@pytest.fixture(scope="module")
def shared_port() -> Iterator[int]:
    """The port of the broker that serves all pages which start none."""
    with TestBroker() as broker:
        port = urlsplit(broker.uri()).port
        assert port is not None
        yield port


@pytest.fixture(scope="module")
def postgresql_port() -> Iterator[int]:
    """The port of a PostgreSQL with an empty database `jobs`, for the page about that."""
    if not postgresql.is_installed():
        pytest.skip(postgresql.HINT)
    with postgresql.directory_for_servers() as directory:
        server = postgresql.Server(directory).create().start()
        try:
            server.create_database("jobs")
            yield server.port
        finally:
            server.stop()


@pytest.fixture
def shell(
    tmp_path: Path, repository: Path, shared_port: int, page: Page, request: pytest.FixtureRequest
) -> Iterator[Shell]:
    texts = [block.text for block in page.blocks if block.kind == "console"]
    starts_a_broker = any(command in text for text in texts for command in ("waybill broker", "waybill up"))
    for tool in ("curl", "openssl"):
        if f"{tool} " in page.text and shutil.which(tool) is None:
            pytest.skip(f"install {tool} to run {page.name}")
    ports = dict(zip(SHOWN_PORTS, free_ports(len(SHOWN_PORTS)), strict=True))
    if not starts_a_broker:
        ports[5672] = shared_port
    if f"localhost:{POSTGRESQL_PORT}" in page.text:
        ports[POSTGRESQL_PORT] = request.getfixturevalue("postgresql_port")
    with closing(Shell(tmp_path, repository, ports)) as shell:
        yield shell


@pytest.mark.timeout(100)
@pytest.mark.parametrize("page", RUNNING, ids=[page.name for page in RUNNING])
def test_a_page_does_what_it_says(page: Page, shell: Shell, tmp_path: Path) -> None:
    for name, text in page.borrowed_files:
        shell.write(name, text)
    for block in page.blocks:
        if block.file is not None:
            shell.write(block.file, block.text)
        if block.kind != "console" or block.reason is not None:
            continue
        for command, expected in block.steps:
            if command.startswith("pip install"):
                continue
            shown = command.removeprefix("cat ")
            if shown != command and not (tmp_path / shown).exists() and f"> {shown}" not in page.text:
                # The page shows a file that the reader writes.
                shell.write(shown, expected)
                continue
            found = shell.run_until(command, expected)
            assert agrees(shell.translate(expected), found), f"$ {command}\n{found}\nexpected:\n{expected}"


def test_what_does_not_run_says_why() -> None:
    reasons = {block.reason for page in pages() for block in page.blocks if block.reason is not None}
    assert reasons - set(NOT_RUN) == set()
    assert set(NOT_RUN) - reasons == set(), "a reason that is no longer needed"


def test_every_file_that_a_page_shows_is_used_by_a_command() -> None:
    unused = [
        f"{page.name}: {block.file}"
        for page in pages()
        for block in page.blocks
        if block.kind == "python"
        and block.file is not None
        and block.reason is None
        and not page.runs
        and not block.file.startswith("examples/")  # shown as they are: tests/examples runs them
    ]
    assert unused == []
