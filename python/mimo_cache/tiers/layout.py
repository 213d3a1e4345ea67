"""Where the pages of tensors lie: numpy arrays and torch CPU tensors as parts of a `DeviceLayout`.

torch is not imported: a tensor is known by its methods.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mimo_cache._core import DeviceLayout, InvalidArgument

__all__ = ["Part", "device_layout", "part"]

ARRAY = "a writable numpy array or another object with __array_interface__, or a torch CPU tensor"


@dataclass(frozen=True)
class Part:
    """One tensor of pages, or a slice of one, as `DeviceLayout` takes it."""

    address: int
    page_stride: int
    """Bytes from one page to the next."""
    bytes: int
    """Bytes of each page."""
    layer: int
    owner: object
    pages: int
    """Length of the first axis, the null page included."""

    def fields(self) -> tuple[int, int, int, int, object]:
        """The tuple of `DeviceLayout`."""
        return (self.address, self.page_stride, self.bytes, self.layer, self.owner)


def part(tensor: Any, layer: int) -> Part:
    """A tensor whose first axis is the page, in any dtype; within a page its bytes are dense and in C order.

    Raises `InvalidArgument` for anything that host memory copies cannot serve: a tensor of another device, a read-only
    array, a page with gaps, fewer than two pages.
    """
    if hasattr(tensor, "data_ptr") and hasattr(tensor, "element_size"):
        kind = getattr(getattr(tensor, "device", None), "type", "cpu")
        if kind != "cpu":
            raise _invalid(f"on device {kind}", ARRAY)
        item = tensor.element_size()
        shape, strides = tuple(tensor.shape), tuple(step * item for step in tensor.stride())
        address = tensor.data_ptr()
    else:
        if not isinstance(getattr(tensor, "__array_interface__", None), dict):
            raise _invalid(f"of type {type(tensor).__name__}", ARRAY)
        array = np.asarray(tensor)
        if not array.flags.writeable or array.dtype.hasobject:
            raise _invalid("read-only" if not array.flags.writeable else "an array of objects", ARRAY)
        item, shape, strides = array.itemsize, array.shape, array.strides
        address = array.__array_interface__["data"][0]
    if len(shape) < 2 or shape[0] < 2 or 0 in shape:
        raise _invalid(f"of shape {list(shape)}", "at least 2 pages (the null page and one more) of at least 1 element")
    wanted = _dense(shape, item)
    dense = all(n == 1 or have == want for n, have, want in zip(shape[1:], strides[1:], wanted[1:], strict=True))
    if not dense or strides[0] < wanted[0]:
        raise _invalid(f"of shape {list(shape)} with strides of {list(strides)} bytes", "pages that are dense")
    return Part(address, strides[0], wanted[0], layer, tensor, shape[0])


def device_layout(
    *,
    full: Iterable[tuple[Any, int]] = (),
    swa: Iterable[tuple[Any, int]] = (),
    full_pages: int | None = None,
    swa_pages: int | None = None,
) -> DeviceLayout:
    """The layout of tensors (tensor, layer) with ascending layers, one or several for each layer.

    `full_pages`, `swa_pages`: pages of each group, the null page included; by default what the tensors have, which must
    be the same for all of a group.
    """
    groups: dict[str, Any] = {}
    for name, items, wanted in (("full", full, full_pages), ("swa", swa, swa_pages)):
        parts = [part(tensor, layer) for tensor, layer in items]
        lengths = sorted({one.pages for one in parts})
        if wanted is None and len(lengths) > 1:
            raise InvalidArgument(f"pages of the {name} tensors are {lengths}, allowed is one number for all of them")
        pages = wanted if wanted is not None else (lengths[0] if lengths else 0)
        if lengths and pages > lengths[0]:
            raise InvalidArgument(f"{name}_pages is {pages}, allowed is at most {lengths[0]}, which a tensor has")
        groups[name] = [one.fields() for one in parts]
        groups[f"{name}_pages"] = pages
    return DeviceLayout(**groups)


def _dense(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """Strides in bytes of an array without gaps."""
    strides = [item]
    for n in reversed(shape[1:]):
        strides.append(strides[-1] * n)
    return tuple(reversed(strides))


def _invalid(value: str, allowed: str) -> InvalidArgument:
    return InvalidArgument(f"tensor of a layer is {value}, allowed is {allowed}")
