"""The pages on web frameworks show the examples as they are; tests/docs runs them, test_django_shop.py tries Django."""

from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("fastapi.md", ["fastapi_app.py"]),
        ("flask.md", ["flask_app.py"]),
        ("django.md", [f"django_shop/{name}.py" for name in ("settings", "jobs", "views", "urls")]),
    ],
)
def test_a_page_shows_its_example(repository: Path, page: str, names: list[str]) -> None:
    text = (repository / "docs" / "how-to" / page).read_text(encoding="utf-8")
    for name in names:
        example = (repository / "examples" / "web" / name).read_text(encoding="utf-8")
        assert f"```python\n# examples/web/{name}\n{example}```" in text
