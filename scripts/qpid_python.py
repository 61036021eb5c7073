"""Put Apache Qpid's Python client for AMQP 0-10 where the tests find it, made to run on Python 3.

    python -m scripts.qpid_python build/qpid

PyPI has it as an archive for Python 2 only, so pip cannot install it. This fetches the archive of release 1.36.0-1,
checks its hash, lets lib2to3 rewrite what the tests need, and changes the lines below. Up to Python 3.12 lib2to3 is
part of Python; later ones need the package `fissix`.

Python 2's byte strings become str whose characters are octets (latin-1): bytes are made at the socket and in `struct`.
The suites in the archive also import two tools that are not on PyPI; they get empty modules.
"""

import hashlib
import importlib.util
import io
import os
import re
import shutil
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

ARCHIVE: Final = "qpid-python-1.36.0-1.tar.gz"
SHA_256: Final = "1a341981723a7980163e6d33530f29133433742f6f9b5b12b46d5d239548afee"
INDEX: Final = "https://pypi.org/simple"
TIMEOUT_S: Final = 60
WANTED: Final = ("qpid/", "mllib/", "qpid_tests/broker_0_10/")
OLDER: Final = "client codec connection08 content delegate disp managementdata management message peer reference spec08"
UNWANTED: Final = (
    *(f"qpid/{name}.py" for name in OLDER.split()),
    *("qpid/tests/__init__", "qpid/tests/saslmech/", "qpid/saslmech/", "qpid/specs/amqp-0-8", "qpid/specs/amqp-0-9"),
    *(f"qpid_tests/broker_0_10/{name}.py" for name in ("__init__", "management", "qmf_events", "stats")),
    *(f"qpid/tests/{name}.py" for name in ("codec", "codec010", "connection", "datatypes", "framing", "mimetype")),
    *(f"qpid/tests/{name}.py" for name in ("queue", "spec010", "util")),
)
"""What speaks other versions, or Qpid's own management."""
STUBS: Final = {
    "qpid/content.py": "class Content:\n    pass\n",
    "qpid/client.py": "from .exceptions import Closed\n\n\nclass Client:\n    pass\n",
    "qpid/tests/__init__.py": (
        "class Test:\n    def __init__(self, name):\n        self.name = name\n\n"
        "    def configure(self, config):\n        self.config = config\n"
    ),
    "qpid_tests/__init__.py": "",
    "qpid_tests/broker_0_10/__init__.py": "",
    "qmf/__init__.py": "",
    "qmf/console.py": "class Session:\n    def __init__(self, *_, **__):\n        raise NotImplementedError('QMF')\n",
    "qpidtoollibs/__init__.py": (
        "class BrokerAgent:\n    def __init__(self, *_):\n        raise NotImplementedError('QMF')\n"
        "\n\nclass BrokerObject:\n    pass\n\n\nclass EventHelper:\n    pass\n"
    ),
}

COMPARISONS: Final = "".join(
    f"  def __{name}__(self, other):\n    return self.__cmp__(other) {sign} 0\n\n"
    for name, sign in (("eq", "=="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))
)
PACKER: Final = """def _latin(vs):
  return tuple(v.decode("latin-1") if isinstance(v, bytes) else v for v in vs)

class Packer:"""
GET_TYPE: Final = """def get_type(content):
  if isinstance(content, str) and content and ord(max(content)) > 255:
    return "text/plain"
"""
CONSTANT: Final = """  def __repr__(self):
    return self.name

  def __lt__(self, other):
    return isinstance(other, Constant) and id(self) < id(other)

  def __gt__(self, other):
    return not isinstance(other, Constant) or id(self) > id(other)

  def __le__(self, other):
    return self is other or self < other

  def __ge__(self, other):
    return self is other or self > other"""
LATIN: Final = 'encode("latin-1")'
PATCHES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "qpid/messaging/constants.py": (("  def __repr__(self):\n    return self.name", CONSTANT),),
    "qpid/tests/messaging/endpoints.py": (("capacity/2", "capacity//2"),),
    "qpid_tests/broker_0_10/priority.py": (
        ("seq.next()", "next(seq)"),
        ("def key_to_cmp(", "import functools\n\ndef cmp(a, b): return (a > b) - (a < b)\n\ndef key_to_cmp("),
        (
            "temp.sort(key_to_cmp(key, reverse=reverse))",
            "temp.sort(key=functools.cmp_to_key(key_to_cmp(key, reverse)))",
        ),
    ),
    "mllib/dom.py": (("sources[-1].next()", "next(sources[-1])"),),
    "qpid/testlib.py": (
        ("from qpid.content import Content\nfrom qpid.message import Message\n", ""),
        ("import qpid.client, qmf.console", "import qmf.console"),
    ),
    "qpid/delegates.py": (("import os, connection, session", "import os\nfrom . import connection, session"),),
    "mllib/__init__.py": (
        ("import os, dom, transforms, parsers, sys", "import os, sys\nfrom . import dom, transforms, parsers"),
    ),
    "mllib/parsers.py": (
        ("import sgmllib, xml.sax.handler", "import xml.sax.handler"),
        (
            "class SGMLParser(sgmllib.SGMLParser)",
            "class SGMLParser(object)",
        ),
    ),
    "qpid/packer.py": (
        (
            "struct.unpack(fmt, self.read(struct.calcsize(fmt)))",
            f"_latin(struct.unpack(fmt, self.read(struct.calcsize(fmt)).{LATIN}))",
        ),
        (
            "class Packer:",
            PACKER,
        ),
        (
            "struct.pack(fmt, *args)",
            f'struct.pack(fmt, *[a.{LATIN} if isinstance(a, str) else a for a in args]).decode("latin-1")',
        ),
    ),
    "qpid/framer.py": (
        ("self.sock.send(buf)", f"self.sock.send(buf.{LATIN})"),
        ("self.sock.recv(n - len(self.rx_buf))", 'self.sock.recv(n - len(self.rx_buf)).decode("latin-1")'),
    ),
    "qpid/connection.py": (
        ("import delegates, socket", "import socket\nfrom . import delegates"),
        ("self.sock.recv(64*1024)", 'self.sock.recv(64*1024).decode("latin-1")'),
    ),
    "qpid/framing.py": (
        ("struct.unpack(Frame.HEADER, st)", f"struct.unpack(Frame.HEADER, st.{LATIN})"),
        ("track, frame.channel)\n", 'track, frame.channel).decode("latin-1")\n'),
    ),
    "qpid/codec010.py": (
        ('buffer: direct("vbin32")', 'bytes: direct("vbin32")'),
        (
            'for c in s:\n    if ord(c) >= 0x80:\n      return "vbin16"\n  return "str16"',
            'return "vbin16" if s and 0x80 <= ord(max(s)) <= 0xFF else "str16"',
        ),
        ("isinstance(b, buffer)", "isinstance(b, bytes)"),
        ("b = str(b)", 'b = b.decode("latin-1")'),
        ("b = b.encode('utf8')", "b = b if not b or ord(max(b)) < 256 else b.encode('utf8').decode('latin-1')"),
        ('.decode("utf8")', f'.{LATIN}.decode("utf8")'),
        ('.decode("iso-8859-15")', f'.{LATIN}.decode("iso-8859-15")'),
        ('.encode("utf8")', '.encode("utf8").decode("latin-1")'),
        ('.encode("iso-8859-15")', '.encode("iso-8859-15").decode("latin-1")'),
        ('UUID(bytes=self.unpack("16s"))', f'UUID(bytes=self.unpack("16s").{LATIN})'),
        ("self.write_uint64(t)", "self.write_uint64(int(t))"),
    ),
    "qpid/datatypes.py": (
        (
            "  def __add__(self, other):\n    return Serial(self.value + other)",
            COMPARISONS + "  def __add__(self, other):\n    return Serial(self.value + other)",
        ),
    ),
    "qpid/util.py": (
        ("    raise\n  return sock", '    raise socket.error("cannot connect")\n  return sock'),
        ("from socket import ssl as wrap_socket", "wrap_socket = None"),
    ),
    "qpid/compat.py": (
        ('os.write(self.write_fd, "\\0")', 'os.write(self.write_fd, b"\\0")'),
        ("e[0] == errno", "e.args[0] == errno"),
    ),
    "qpid/selector.py": (("e[0] == errno", "e.args[0] == errno"),),
    "qpid/messaging/transports.py": (
        ("return self.socket.send(bytes)", f"return self.socket.send(bytes.{LATIN})"),
        ("return self.socket.recv(n)", 'return self.socket.recv(n).decode("latin-1")'),
        ("from socket import ssl\n", "ssl = None\n"),
    ),
    "qpid/messaging/driver.py": (
        ('struct.pack(HEADER, "AMQP", 1, 1, 0, 10)', 'struct.pack(HEADER, b"AMQP", 1, 1, 0, 10).decode("latin-1")'),
        ("struct.unpack(HEADER, hdr)", f"struct.unpack(HEADER, hdr.{LATIN})"),
    ),
    "qpid/messaging/message.py": (
        ("  buffer: None,\n", "  bytes: None,\n"),
        ("(lambda x: x, lambda x: x)", '(lambda x: x.decode("latin-1") if isinstance(x, bytes) else x, lambda x: x)'),
        ('return x.encode("utf8")', 'return x.encode("utf8").decode("latin-1")'),
        ('return x.decode("utf8")', f'return x.{LATIN}.decode("utf8")'),
        ("def get_type(content):", GET_TYPE),
    ),
}
"""What lib2to3 cannot know, in its output."""

SYNCHRONIZED: Final = """import functools
import time
from . import compat


def synchronized(meth):
  @functools.wraps(meth)
  def locked(self, *args, **kwargs):
    with self._lock:
      return meth(self, *args, **kwargs)
  return locked

"""
"""Python 3.11 has no inspect.formatargspec, from which the original writes the source of such a function."""


def main(arguments: list[str]) -> int:
    target = Path(arguments[0]).resolve()
    stamp = target / hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    if stamp.exists():
        return 0
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(fetched())) as archive:
        for member in archive.getmembers():
            name = member.name.partition("/")[2]
            if member.isfile() and name.startswith(WANTED) and not name.startswith(UNWANTED):
                member.name = name
                archive.extract(member, target, filter="data")
    for name, text in STUBS.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(text, encoding="utf-8")
    rewrite(target)
    stamp.touch()
    return 0


def fetched() -> bytes:
    """The archive, from the index that pip uses."""
    index = os.environ.get("PIP_INDEX_URL", INDEX).rstrip("/") + "/qpid-python/"
    with urllib.request.urlopen(index, timeout=TIMEOUT_S) as page:  # noqa: S310 - https, or the user's own index
        links = re.findall(r'href="([^"#]+)', page.read().decode())
    url = next(urljoin(index, link) for link in links if link.endswith("/" + ARCHIVE))
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as archive:  # noqa: S310
        octets: bytes = archive.read()
    if hashlib.sha256(octets).hexdigest() != SHA_256:
        raise ValueError(f"{url} is not the archive that this was written for")
    return octets


def rewrite(target: Path) -> None:
    """Rewrite all modules for Python 3."""
    package = "lib2to3" if importlib.util.find_spec("lib2to3") else "fissix"
    refactor = importlib.import_module(f"{package}.refactor")
    fixers = set(refactor.get_fixers_from_package(f"{package}.fixes"))
    # The parsers have methods of their own called `next`. Only fissix fixes comparisons when sorting: PATCHES does.
    unwanted = {f"{package}.fixes.fix_next", f"{package}.fixes.fix_sorted"}
    tool = refactor.RefactoringTool(sorted(fixers - unwanted))
    for path in sorted(target.rglob("*.py")):
        name = str(path.relative_to(target))
        text = path.read_text(encoding="utf-8")
        if name not in STUBS:
            text = str(tool.refactor_string(text + "\n", str(path)))
        for old, new in PATCHES.get(name, ()):
            if old not in text:
                raise ValueError(f"{name} has no {old!r}")
            text = text.replace(old, new)
        if name == "qpid/concurrency.py":
            text = SYNCHRONIZED + text[text.index("class Waiter") :]
        if name == "qpid/mimetype.py":
            text = text.replace("import re, rfc822", "import re\nfrom email import utils as rfc822")
        text = text.replace(".isAlive()", ".is_alive()").replace("string.joinfields(", "(lambda a, b: b.join(a))(")
        if "tests" in name or name.endswith("testlib.py"):
            # The module, which local variables of that name would hide.
            text = re.sub(r"^import queue\b", "import queue as Queue", text, flags=re.MULTILINE)
            text = re.sub(r"\bqueue\.Empty\b", "Queue.Empty", text)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
