"""What the client raises. Every message names the bad value and what is allowed."""


class GCacheError(Exception):
    """Base of the client's errors."""


class InvalidArgument(GCacheError, ValueError):
    """An argument outside what is allowed; nothing was sent."""


class Refused(GCacheError):
    """A node refused the request. `node` is its name, `code` the name of the gRPC status."""

    def __init__(self, node: str, code: str, sentence: str) -> None:
        super().__init__(f"node {node} refused the request ({code}): {sentence}")
        self.node = node
        self.code = code
        self.sentence = sentence
