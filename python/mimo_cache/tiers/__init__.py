"""The host tier (L2): its memory, and copies between it and device memory.

    layout = device_layout(full=[(tensor, layer), ...], swa=[...])
    region = HostRegion(layout, full_pages=4096, swa_pages=512)
    with KvCopier(layout, region) as copier:
        job = copier.load(full=[(device_page, host_page), ...], swa=[...])
        for layer in job.layers:
            tensors = job.layer(layer)  # waits until the layer's pages are there

That side moves bytes and decides nothing: which page goes where comes in as page ids. Copies run on threads of the
copier without the GIL; every wait releases it. `TierPlanner` decides and moves nothing, and `HostTier` puts both below
a `PrefixCache`, as an engine uses them; `GCacheTier` puts GCache (L3) below that (docs/tiers.md). Needs Linux.
"""

from mimo_cache._core import (
    CopyJob,
    DeviceLayout,
    HostRegion,
    KvCopier,
    TierFetch,
    TierLoan,
    TierPlanner,
    TierReceive,
    TierSave,
    TierStats,
)
from mimo_cache.tiers.errors import CopierClosed, CopyBusy, CopyCancelled, CopyFailed, CudaError, HostMemoryError
from mimo_cache.tiers.gcache import GCacheTier
from mimo_cache.tiers.host import Fetch, HostTier
from mimo_cache.tiers.layout import device_layout
from mimo_cache.tiers.prefetch import Prefetch
from mimo_cache.tiers.prometheus import metrics

__all__ = [
    "CopierClosed",
    "CopyBusy",
    "CopyCancelled",
    "CopyFailed",
    "CopyJob",
    "CudaError",
    "DeviceLayout",
    "Fetch",
    "GCacheTier",
    "HostMemoryError",
    "HostRegion",
    "HostTier",
    "KvCopier",
    "Prefetch",
    "TierFetch",
    "TierLoan",
    "TierPlanner",
    "TierReceive",
    "TierSave",
    "TierStats",
    "device_layout",
    "metrics",
]
