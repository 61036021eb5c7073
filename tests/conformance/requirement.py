"""`@requirement("M010-068", ...)`: the tag of a test that observes requirements of the specifications.

The ids are those of `requirements.csv` beside this file; `scripts/conformance.py` collects the tags into
`docs/conformance.md`.
"""

import pytest


def requirement(*ids: str) -> pytest.MarkDecorator:
    """Mark a test as observing the requirements named. Raises ValueError if none is."""
    if not ids:
        raise ValueError("a requirement tag names at least one requirement")
    return pytest.mark.requirement(*ids)
