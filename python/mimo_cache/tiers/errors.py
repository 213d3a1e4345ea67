"""What the host tier raises beside `InvalidArgument`."""

from mimo_cache._core import MimoCacheError

__all__ = ["CopierClosed", "CopyBusy", "CopyCancelled", "CopyFailed", "CudaError", "HostMemoryError"]


class HostMemoryError(MimoCacheError, MemoryError):
    """The memory of a host region cannot be had; none of it was taken."""


class CopyBusy(MimoCacheError):
    """As much is in flight as is allowed; nothing was queued. Wait for a job and try again."""


class CopyCancelled(MimoCacheError):
    """The job was cancelled, by `cancel` or because its copier was closed. Nothing of it is written any more."""


class CopyFailed(MimoCacheError):
    """A copy thread failed, or could not be started. Nothing of the job is written any more."""


class CopierClosed(MimoCacheError):
    """A call on a copier that was closed."""


class CudaError(MimoCacheError):
    """There is no CUDA runtime, or it refused."""
