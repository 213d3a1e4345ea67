"""What the clients raise. Every message names the bad value and what is allowed."""

from mimo_cache._core import InvalidArgument, MimoCacheError

__all__ = ["Closed", "GCacheError", "InvalidArgument", "Refused"]


class GCacheError(MimoCacheError):
    """Base of what only the clients raise.

    An argument outside what is allowed is the package's `InvalidArgument`; nothing was sent then.
    """


class Refused(GCacheError):
    """A node refused the request. `node` is its name, `code` the name of the gRPC status."""

    def __init__(self, node: str, code: str, sentence: str) -> None:
        super().__init__(f"node {node} refused the request ({code}): {sentence}")
        self.node = node
        self.code = code
        self.sentence = sentence


class Closed(GCacheError):
    """A call to a client that was closed; nothing was sent."""

    def __init__(self) -> None:
        super().__init__("the client is closed, allowed are calls before close()")


class Broken(Exception):
    """A node said what the protocol does not allow: it is treated as unreachable."""
