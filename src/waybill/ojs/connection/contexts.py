"""The named brokers of a user, in a file that only the user can read, because its URIs contain passwords."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from waybill.ojs.errors import UnusableContexts

FILE: Final = "contexts.json"
NamesProfile = Literal["spec", "web"]


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """A broker and its settings. `management` is the URL of RabbitMQ's management plugin."""

    uri: str
    management: str | None = None
    names: NamesProfile = "spec"
    prefix: str = ""
    queue_type: Literal["classic", "quorum"] = "classic"
    replicas: int | None = None
    leader_locator: Literal["client-local", "balanced"] | None = None
    partitions: dict[str, Annotated[int, msgspec.Meta(ge=1, le=256)]] = {}
    event_partitions: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1


class Contexts(msgspec.Struct, omit_defaults=True):
    """All contexts by name, and the name of the one that commands use unless told otherwise."""

    contexts: dict[str, Context] = msgspec.field(default_factory=dict)
    current: str | None = None


def contexts_file() -> Path:
    """The directory for a user's settings (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "waybill" / FILE


def load() -> Contexts:
    """Read the contexts; none if there is no file. Raises UnusableContexts, which never quotes the content."""
    path = contexts_file()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise UnusableContexts(f"{path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise UnusableContexts(f"{path} holds no contexts: {error}") from None


def save(contexts: Contexts) -> None:
    """Write the contexts in one step, readable and writable for the user alone. Raises OSError."""
    import tempfile  # noqa: PLC0415 - only who writes needs it, others start sooner

    path = contexts_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp makes files of mode 600.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{FILE}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
