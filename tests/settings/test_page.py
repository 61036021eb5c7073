"""The reference has every setting as it is."""

from scripts.settings_table import PAGE, page


def test_the_table_is_that_of_the_settings() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run python -m scripts.settings_table"
