"""The rules of the code base that no linter knows: who may import whom, sizes, names, dead files."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Final

import pytest

SOURCE: Final = Path(__file__).resolve().parent.parent / "src"
PACKAGE: Final = SOURCE / "waybill"

# What each package may import of the others. `cli` may import everything; the root itself (`waybill/__init__.py`) only
# loads names lazily for users, and nothing inside imports names from it.
ARROWS: Final[dict[str, set[str]]] = {
    "model": set(),
    "wire": set(),
    "transport": set(),
    "settings": set(),
    "storage": {"model"},
    "engine": {"wire", "model"},
    "node": {"engine", "storage", "model"},
    "broker": {"node", "transport"},
    "client": {"engine", "wire", "transport"},
    "ojs": {"client"},
    "backend": {"ojs", "client", "settings"},
    # Found by the scheme of a URI: see `ojs.connection.bindings`.
    "http": {"ojs", "client"},
    # Its layer is an application like a server's, and a client of servers.
    "federation": {"backend", "http", "ojs", "client", "transport"},
    "management": {"backend", "broker", "transport", "node", "engine", "wire", "model"},
    "pipeline": {"ojs", "client"},
    # A shovel between protocols converts messages as the broker does.
    "move": {"ojs", "client", "engine", "wire", "model"},
    "testing": {"broker", "node", "client", "ojs"},
    # Its management command is the one of the command line.
    "django": {"ojs", "client", "cli"},
}
FREE: Final = {"cli"}

# Packages that nothing uses yet, each with what will. An entry goes when that is there.
AWAITED: Final[dict[str, str]] = {}

# The deterministic core: bytes, completions and `now` go in, bytes and appends come out.
CORE: Final = ("model", "wire", "engine", "storage", "node")
COMPILED: Final = tuple(
    f"waybill.{name.removesuffix('.py').replace('/', '.')}"
    for name in tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "waybill"
    ]["compiled"]
)
"""Packages and modules that mypyc compiles."""
BANNED_IN_CORE: Final = {
    "asyncio",
    "concurrent",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
    "uvloop",
}

LINES_PER_FILE: Final = 500
LINES_PER_FUNCTION: Final = 50
BRANCHES_PER_FUNCTION: Final = 15
MEDIAN_LINES_PER_FILE: Final = 130
MEDIAN_LINES_PER_FUNCTION: Final = 6

# What is over a limit, each with its reason. Remove an entry as soon as it is not needed.
LONG_FILES: Final[dict[str, str]] = {}
LONG_FUNCTIONS: Final[dict[str, str]] = {}
COMPLEX_FUNCTIONS: Final[dict[str, str]] = {
    "waybill.engine.conversion.fields.FieldReader._value": "one branch for each type of a value",
    "waybill.wire.amqp091.field_table._TableDecoder.read_value": "one branch for each type code, on a hot path",
    "waybill.wire.amqp10.decode.Decoder.fixed": "one branch for each type code, on a hot path",
}

# Names of classes in the Python reference that another class of `src` has, too, each with its reason.
AMQP_NOUN: Final = "the noun of the AMQP specifications, on each side of a connection"
AMQP_ERROR: Final = "the specification's name of an error that the broker raises and the client receives"
HTTP_SCHEMA: Final = "a schema of the HTTP API, which shows its name in OpenAPI"
SHARED_NAMES: Final[dict[str, str]] = {
    **dict.fromkeys(("Channel", "Connection", "Consumer", "Coordinator", "Delivery"), AMQP_NOUN),
    **dict.fromkeys(
        ("AccessRefused", "NotAllowed", "NotFound", "PreconditionFailed", "ResourceLocked"),
        AMQP_ERROR,
    ),
    **dict.fromkeys(("Job", "NewJob", "Operation"), HTTP_SCHEMA),
    "Chain": "a noun of two specifications: ojs-middleware and ojs-workflows",
    "EncodeError": "each protocol of `wire` has one",
    "Migration": "Django finds its migrations by this name",
}

DIVIDER: Final = re.compile(r"#.*[-=~*#]{4,}|# ?---")
DIVIDER_STYLE: Final = re.compile(r"# --- [^-].* ---")
VAGUE_NAMES: Final = {"util", "utils", "common", "manager", "managers", "helper", "helpers", "misc"}

# Modules that something outside the package starts or finds by name.
ENTRY_POINTS: Final = {
    *("waybill", "waybill.__main__", "waybill.cli.main"),
    *("waybill.http.link", "waybill.http.worker", "waybill.federation.exchange"),
}
# Alembic finds them.
MIGRATIONS: Final = "waybill.ojs.coordinator.database.migrations"


@cache
def sources() -> dict[str, Path]:
    """Every module of src by its dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def compiled() -> dict[str, Path]:
    """Those that mypyc compiles."""
    return {
        name: path
        for name, path in sources().items()
        if name.startswith(tuple(f"{one}." for one in COMPILED)) or name in COMPILED
    }


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def imports(module: str) -> tuple[tuple[str, int], ...]:
    """Every module that a module names in an import, wherever it stands, with its line."""
    path = sources()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: list[tuple[str, int]] = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            # The bare root is no arrow: it says where the package lies.
            found.extend((alias.name, node.lineno) for alias in node.names if alias.name != "waybill")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            # The version is all that the root holds itself; its other names lead anywhere.
            if base != "waybill" or {alias.name for alias in node.names} != {"__version__"}:
                found.append((base, node.lineno))
            found.extend(
                (f"{base}.{alias.name}", node.lineno) for alias in node.names if f"{base}.{alias.name}" in sources()
            )
    return tuple(found)


def room(module: str) -> str:
    """The package directly below `waybill` that a module belongs to; empty for the root."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "waybill" else ""


def cycles() -> list[list[str]]:
    """The groups of modules that import each other, directly or through others (Tarjan's components)."""
    graph = {module: sorted({name for name, _ in imports(module)} & set(sources()) - {module}) for module in sources()}
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for target in graph[module]:
            if target not in order:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], order[target])
        if lowest[module] == order[module]:
            start = stack.index(module)
            if len(stack) - start > 1:
                found.append(sorted(stack[start:]))
            del stack[start:]

    for module in graph:
        if module not in order:
            visit(module)
    return found


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its qualified name."""
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}.{child.name}".lstrip(".")
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, child
        yield from functions(child, name)


@cache
def all_functions() -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of src by its dotted name; of several with one name (properties, overloads) the longest."""
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for module, path in sources().items():
        for name, function in functions(tree(path)):
            dotted = f"{module}.{name}"
            if dotted not in found or line_count(found[dotted]) < line_count(function):
                found[dotted] = function
    return found


def line_count(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without decorators."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def complexity(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """McCabe's, as ruff counts it."""
    branches = ast.If | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.match_case
    inner = ast.FunctionDef | ast.AsyncFunctionDef
    return 1 + sum(isinstance(node, branches | inner) for node in ast.walk(function) if node is not function)


def over(counts: dict[str, int], limit: int, exceptions: dict[str, str]) -> dict[str, int]:
    """What exceeds a limit without being excepted. Fails for an exception that is no longer needed."""
    found = {name: count for name, count in counts.items() if count > limit}
    assert sorted(set(exceptions) - set(found)) == [], "exceptions that are no longer needed"
    return {name: count for name, count in found.items() if name not in exceptions}


def place(module: str, line: int) -> str:
    return f"{sources()[module].relative_to(SOURCE.parent)}:{line}"


def test_every_package_has_its_arrows() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert rooms - set(ARROWS) - FREE == set()


@pytest.mark.parametrize("owner", sorted(ARROWS))
def test_imports_follow_the_arrows(owner: str) -> None:
    wrong = [
        f"{place(module, line)}: {owner} imports {target}"
        for module in sources()
        if room(module) == owner
        for target, line in imports(module)
        if target.split(".")[0] == "waybill" and room(target) not in ARROWS[owner] | {owner}
    ]
    assert wrong == []


@pytest.mark.parametrize("owner", CORE)
def test_the_core_knows_no_clock_no_socket_and_no_chance(owner: str) -> None:
    wrong = [
        f"{place(module, line)}: {owner} imports {target}"
        for module in sources()
        if room(module) == owner
        for target, line in imports(module)
        if target.split(".")[0] in BANNED_IN_CORE
    ]
    assert wrong == []


def names_in(annotation: ast.expr) -> set[str]:
    """The names in an annotation, in quotes or not."""
    found: set[str] = set()
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.add(node.value)
    return found


def test_annotations_of_a_class_name_none_that_comes_later() -> None:
    """mypyc evaluates those of ordinary classes at import, where a later class is a null pointer."""
    later: list[str] = []
    for module, path in compiled().items():
        classes = [node for node in tree(path).body if isinstance(node, ast.ClassDef)]
        lines = {node.name: node.lineno for node in classes}
        for node in classes:
            later += [
                place(module, child.lineno)
                for child in node.body
                if isinstance(child, ast.AnnAssign)
                and any(lines.get(name, 0) > node.lineno for name in names_in(child.annotation))
            ]
    assert later == []


@pytest.mark.parametrize("owner", CORE)
def test_constants_of_the_core_are_final(owner: str) -> None:
    """Compiled code looks up any other name of a module in a dictionary, each time."""
    slow = [
        f"{place(module, node.lineno)}: {node.targets[0].id}"
        for module, path in sources().items()
        if room(module) == owner
        for node in tree(path).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper()
    ]
    assert slow == []


def test_no_function_has_errors_of_two_classes_under_one_name() -> None:
    """mypyc gives a variable the class of its first error, and raises TypeError for another."""
    doubtful: list[str] = []
    for module, path in compiled().items():
        for function in (
            node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ):
            classes: dict[str, str] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.name is not None and node.type is not None:
                    caught = ast.unparse(node.type)
                    if classes.setdefault(node.name, caught) != caught:
                        doubtful.append(place(module, node.lineno))
    assert doubtful == []


def test_no_module_imports_itself_through_others() -> None:
    """Imports for type checking count too."""
    assert [" ".join(group) for group in cycles()] == []


def test_modules_beside_the_package_are_small_and_import_only_the_pipeline() -> None:
    wrong = [
        f"{place(module, line)}: imports {target}"
        for module in sources()
        if module.split(".")[0] != "waybill"
        for target, line in imports(module)
        if target.split(".")[0] == "waybill" and room(target) != "pipeline"
    ]
    assert wrong == []


def test_files_stay_short() -> None:
    counts = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in sources().items()}
    assert over(counts, LINES_PER_FILE, LONG_FILES) == {}
    assert median(counts.values()) <= MEDIAN_LINES_PER_FILE


def test_functions_stay_short() -> None:
    counts = {name: line_count(function) for name, function in all_functions().items()}
    assert over(counts, LINES_PER_FUNCTION, LONG_FUNCTIONS) == {}
    assert median(counts.values()) <= MEDIAN_LINES_PER_FUNCTION


def test_functions_have_few_branches() -> None:
    counts = {name: complexity(function) for name, function in all_functions().items()}
    assert over(counts, BRANCHES_PER_FUNCTION, COMPLEX_FUNCTIONS) == {}


def test_no_file_is_dead() -> None:
    """Every module is reached from an entry point, or is found by name: a verb of the command, a module beside the
    package, the `testing` package's public modules.
    """
    reached: set[str] = set()
    waiting = [name for name in sources() if is_found_by_name(name)]
    while waiting:
        module = waiting.pop()
        if module in reached or module not in sources():
            continue
        reached.add(module)
        waiting.extend(target for target, _ in imports(module))
        waiting.append(module.rpartition(".")[0])
    awaited = {name for name in sources() for package in AWAITED if f"{name}.".startswith(f"{package}.")}
    assert not awaited & reached, "an exception that is no longer needed"
    assert sorted(set(sources()) - reached - awaited) == []


def is_found_by_name(module: str) -> bool:
    beside_the_package = module != "waybill" and not module.startswith("waybill.")
    if module.startswith(MIGRATIONS):
        return True
    return module in ENTRY_POINTS or beside_the_package or room(module) in {"cli", "django", "testing"}


def test_no_class_has_the_name_of_a_documented_one() -> None:
    """A class of the Python reference is the only one of its name."""
    pages = (SOURCE.parent / "docs" / "reference" / "python").glob("*.md")
    documented = {name for page in pages for name in re.findall(r"^::: .*\.(\w+)$", page.read_text(), re.MULTILINE)}
    assert documented
    defined = Counter(
        node.name for path in sources().values() for node in tree(path).body if isinstance(node, ast.ClassDef)
    )
    assert over({name: defined[name] for name in documented}, 1, SHARED_NAMES) == {}


def test_there_is_one_style_of_dividers() -> None:
    """`# --- name ---`"""
    wrong = [
        f"{place(module, number)}: {line.strip()}"
        for module, path in sources().items()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if DIVIDER.search(line) and not DIVIDER_STYLE.fullmatch(line.strip())
    ]
    assert wrong == []


def test_names_say_what_they_are() -> None:
    vague = [name for name in sources() if VAGUE_NAMES & set(name.rpartition(".")[2].split("_"))]
    vague += [
        f"{place(module, node.lineno)}: {node.name}"
        for module, path in sources().items()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Manager", "Util", "Utils", "Helper"))
    ]
    assert vague == []


def test_no_path_of_one_machine_is_in_the_source() -> None:
    wrong = [
        f"{place(module, node.lineno)}: {node.value!r}"
        for module, path in sources().items()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and any(text in node.value for text in ("/work/", "/tmp/", "/root/", "shared/"))  # noqa: S108 - what must not be there
    ]
    assert wrong == []


def test_only_the_command_prints() -> None:
    wrong = [
        place(module, node.lineno)
        for module, path in sources().items()
        if room(module) != "cli"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert wrong == []


def test_no_extension_module_lies_in_the_source() -> None:
    assert [str(path) for path in SOURCE.rglob("*.so")] == []
