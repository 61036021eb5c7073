"""Finds the Jobs object of a program: by name, or in the modules `jobs` and `tasks` of a package."""

from __future__ import annotations

import logging
import pkgutil
import sys
import traceback
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

import click

from waybill.ojs import Jobs

TASK_MODULES: Final = ("jobs", "tasks")

_log = logging.getLogger("waybill.cli")


def load_jobs(target: str) -> Jobs:
    """Import `module:name` and return its Jobs object. The name defaults to `jobs`.

    If `module` is a package and no name is given, all its modules called `jobs` or `tasks`, at any depth, are imported:
    each adds its handlers to the Jobs object that they share. Raises click.BadParameter if there is no Jobs object, or
    more than one. Modules in the current directory can be imported, as with `python -m`.
    """
    module_name, _, attribute = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = import_module(module_name)
        found = _of_package(module) if not attribute and hasattr(module, "__path__") else module
        if found is module:
            for part in (attribute or "jobs").split("."):
                found = getattr(found, part)
    except click.BadParameter:
        raise
    except Exception as error:
        # The error is in the user's program: name its line, not the frames of this command.
        raise click.BadParameter(f"{target}: {_raised(error)}") from error
    if not isinstance(found, Jobs):
        raise click.BadParameter(f"{target} is a {type(found).__name__}, not a waybill.Jobs")
    return found


def _of_package(package: ModuleType) -> object:
    """Return the jobs of a package."""
    # Read before the modules are imported: the module `jobs` would replace the object `jobs`.
    own = vars(package).get("jobs")
    modules = [package, *_task_modules(package)]
    found = {id(one): one for one in [own, *_all_jobs(modules)] if isinstance(one, Jobs)}
    if not found:
        searched = ", ".join(module.__name__ for module in modules)
        raise click.BadParameter(f"no waybill.Jobs object in {searched}: name one as MODULE:NAME")
    if len(found) > 1:
        raise click.BadParameter(f"{package.__name__} has {len(found)} waybill.Jobs objects: name one as MODULE:NAME")
    _log.info("found handlers in %s", ", ".join(module.__name__ for module in modules[1:]) or package.__name__)
    return next(iter(found.values()))


def _task_modules(package: ModuleType) -> list[ModuleType]:
    modules = []
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if found.name.rpartition(".")[2] in TASK_MODULES or found.ispkg:
            module = import_module(found.name)
            if found.name.rpartition(".")[2] in TASK_MODULES:
                modules.append(module)
            if found.ispkg:
                modules += _task_modules(module)
    return modules


def _all_jobs(modules: Iterable[ModuleType]) -> list[object]:
    return [value for module in modules for value in vars(module).values() if isinstance(value, Jobs)]


def _raised(error: Exception) -> str:
    """An error of a program in one line, with its file and line."""
    if isinstance(error, (ImportError, AttributeError)):
        return str(error)
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
