"""The error of a malformed SASL response."""


class MalformedResponse(ValueError):
    """A response that its mechanism cannot parse. The text never repeats the response, which contains secrets."""
