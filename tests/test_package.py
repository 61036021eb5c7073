import subprocess
import sys

import pytest

import waybill


@pytest.mark.parametrize("name", sorted(set(waybill.__all__) - {"__version__"}))
def test_every_public_name_can_be_imported_from_the_root(name: str) -> None:
    assert getattr(waybill, name).__name__ == name


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = waybill.Nothing


def test_importing_the_root_imports_nothing_else() -> None:
    script = "import sys, waybill; sys.exit(any(name.startswith('waybill.') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_version_is_that_of_the_distribution() -> None:
    assert waybill.__version__ == "0.1.0"
