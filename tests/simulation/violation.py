"""How the checker speaks."""


class Violation(AssertionError):
    """The broker broke a promise."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise
