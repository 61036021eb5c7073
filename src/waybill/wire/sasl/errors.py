"""What is wrong with a SASL response."""


class MalformedResponse(ValueError):
    """A response that its mechanism has no meaning for. Its text never repeats the response, which holds secrets."""
