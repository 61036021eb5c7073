import subprocess
import sys

import pytest
from click.testing import CliRunner

from waybill import __version__
from waybill.cli.main import VERBS, build_kind, main
from waybill.model import message


def test_the_version_says_how_the_core_was_built() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"waybill {__version__} ({build_kind()})\n"


def test_compiled_means_that_the_core_is_an_extension_module() -> None:
    assert message.__file__ is not None
    assert build_kind() == ("interpreted" if message.__file__.endswith(".py") else "compiled")


def test_help_names_every_verb_and_what_it_does() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(verb in result.output and line in result.output for verb, line in VERBS.items())


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help(verb: str) -> None:
    result = CliRunner().invoke(main, [verb, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_no_group_cuts_the_lines_of_its_commands(verb: str) -> None:
    shown = CliRunner().invoke(main, [verb, "--help"]).output
    assert [line for line in shown.partition("\nCommands:")[2].splitlines() if line.endswith("...")] == []


def test_an_unknown_verb_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["dance"])
    assert result.exit_code == 2
    assert "No such command 'dance'" in result.output


def test_a_verb_that_is_misspelt_is_suggested() -> None:
    result = CliRunner().invoke(main, ["brker"])
    assert (result.exit_code, "Did you mean 'broker'?" in result.output) == (2, True)


def test_the_command_starts_without_what_its_verbs_need() -> None:
    script = (
        "import sys; from waybill.cli.main import main; main(['--version'], standalone_mode=False);"
        "heavy = {'asyncio', 'pyspark', 'waybill.broker', 'waybill.client', 'waybill.ojs'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
