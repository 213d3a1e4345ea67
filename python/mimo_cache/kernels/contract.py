"""The contract of a kernel backend, one paragraph per operation.

Pools are tensors [pages, page_size, KV heads, dim] per layer, K and V apart, with the null page at 0: it may be written
and holds anything. K is stored after RoPE and V after the value scale, so no kernel needs to know either. A backend
reads only rows that its tables name for positions it may see: what lies in other rows, NaN included, never reaches a
result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from .rows import MtpRows, MtpWork, Rows, Work

Group = Literal["full", "swa"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a backend needs to know of cache and model.

    window_keys: keys an SWA query sees, itself included. device: where pools and weights live, as torch names it.
    """

    page_size: int
    window_keys: int
    experts_per_token: int
    norm_topk_prob: bool
    routed_scaling: float
    device: str


class Kernels(ABC):
    """One backend. `name` is its name in the registry; `bit_exact` says that a row's bits depend on nothing but the
    tokens up to it: neither on chunking nor on what was cached nor on other sequences."""

    name: ClassVar[str]
    bit_exact: ClassVar[bool]

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @abstractmethod
    def cut(self, works: Sequence[Work]) -> Iterator[Rows]:
        """Cuts a step into calls. A call's rows may read what earlier calls of the step wrote."""

    @abstractmethod
    def cut_mtp(self, works: Sequence[MtpWork]) -> Iterator[MtpRows]:
        """Cuts the MTP rows of a step into calls."""

    @abstractmethod
    def attention(
        self, q: Any, k_pool: Any, v_pool: Any, rows: Rows, group: Group, scale: float, sink: Any | None
    ) -> Any:
        """Paged attention of one layer, for prefill, decode and verification alike.

        q [N, H, K dim]; pools [pages, page_size, KV heads, dim]; returns [N, H, V dim]. Query i sees the keys of its
        own sequence at positions j <= i, in group "swa" also j > i - window_keys; its KV head is
        head // (H / KV heads). p_ij = exp(a_ij) / (exp(sink_h) + sum_j exp(a_ij)) with a_ij = scale * q_i . k_j; sink
        [H] or None. The rows of this call were written before. Rows of padding return anything.
        """

    @abstractmethod
    def write(self, pool: Any, slots: Any, values: Any) -> None:
        """KV write: row i of values [N, KV heads, dim] goes to slot slots[i] of pool [pages, page_size, KV heads, dim].
        Slots of the null page take anything; other slots are distinct."""

    @abstractmethod
    def moe(self, x: Any, router: Any, bias: Any, gate_up: Any, down: Any) -> Any:
        """Mixture of experts. x [N, hidden]; router [E, hidden] and bias [E] in fp32; gate_up [E, 2 I, hidden], gate
        rows first; down [E, hidden, I]; returns [N, hidden].

        s = sigmoid(router x) in fp32; the top k of s + bias are chosen; their weights are s / (sum + 1e-20), times the
        routed scaling; y = sum of weight * down(silu(gate x) * up x). Formulas: MiMo-V2's published code.
        """

    def copy_pages(self, pools: Sequence[Any], copies: Sequence[tuple[int, int]]) -> None:
        """Page copy: for each (source, destination) in order, in every pool [..., layers, pages, page_size, heads, dim]
        given as [layers, pages, ...]. A later copy may read what an earlier one wrote."""
        for source, destination in copies:
            for pool in pools:
                pool[:, destination].copy_(pool[:, source])

    def guard(self) -> AbstractContextManager[Any]:
        """Entered around every step; sets what the backend's promise needs, such as a fixed number of threads."""
        return nullcontext()
