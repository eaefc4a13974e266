"""The protocol of a kernel: hook `dgl_heta_kernels`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from dgl_heta.hooks.provider import Provider

if TYPE_CHECKING:
    from torch import Tensor

    from dgl_heta.sampling.blocks import InEdges


class Kernel(Provider, Protocol):
    """How relations are aggregated (AGG_r) and attended to; hook `dgl_heta_kernels`.

    The same kernel serves dgl-heta's models and, in DistDGL scripts, HeteroGraphConv. Derive from
    `dgl_heta.nn.BaseKernel`, which has every operator in PyTorch, and override what the kernel does
    better. Each takes the in-edges of several relations, with an entry for each of them in every
    other list, and returns a list; tensors may be on any device and need not be contiguous. A list
    given or returned may be a `dgl_heta.nn.Joined`, one tensor with the rows of all relations.

    R destination rows, E edges, S source rows, H heads, D width. All operators but `e_max` are
    differentiable in every tensor of floating-point numbers. A row without edges gives 0, where
    nothing else is said.
    """

    defers: bool = True
    """True: feature rows that wait for their values are aggregated before their product with a
    weight, where that is shorter, without the kernel. False: the kernel gets all rows."""

    serves_gpus: bool = False
    """True if it is what `train.kernel = auto` means where `dgl-heta train` or a loop of one's own
    computes on GPUs."""

    @abstractmethod
    def reduce(self, edges: Sequence[InEdges], states: Sequence[Tensor], op: str
               ) -> Sequence[Tensor]:
        """Sum, mean, max or min (`op`) over each row's edges: (S, D) to (R, D)."""

    @abstractmethod
    def u_dot_v(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                destinations: Sequence[Tensor]) -> Sequence[Tensor]:
        """Products of both ends: sources (S, D) or (S, H, D), destinations (R, H, D), to (E, H)."""

    @abstractmethod
    def u_mm(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
             weights: Sequence[Tensor] | Tensor) -> Sequence[Tensor]:
        """Products of each edge's source row (S, D) with its relation's weight (D, H): (E, H)."""

    @abstractmethod
    def u_add_v(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                destinations: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sums of both ends: (S, H) and (R, H) to (E, H)."""

    @abstractmethod
    def copy_v(self, edges: Sequence[InEdges], rows: Sequence[Tensor]) -> Sequence[Tensor]:
        """Each edge gets its destination's values: (R, H) to (E, H)."""

    @abstractmethod
    def edge_softmax(self, edges: Sequence[InEdges], scores: Sequence[Tensor]) -> Sequence[Tensor]:
        """Softmax over each row's edges by one relation: (E, H) to (E, H)."""

    @abstractmethod
    def e_max(self, edges: Sequence[InEdges], scores: Sequence[Tensor]) -> Sequence[Tensor]:
        """Maxima over each row's edges: (E, H) to (R, H); -inf for a row without edges."""

    @abstractmethod
    def e_sum(self, edges: Sequence[InEdges], values: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sums over each row's edges: (E, H) to (R, H)."""

    @abstractmethod
    def u_mul_e_sum(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                    weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """Weighted sums of sources, (S, D) or (S, H, D), with weights (E, H), to (R, H, D)."""

    @abstractmethod
    def u_attend(self, edges: Sequence[InEdges], sources: Sequence[Tensor],
                 vectors: Sequence[Tensor], destinations: Sequence[Tensor]) -> Sequence[Tensor]:
        """Attention of GAT: sums of sources, (S, D) or (S, H, D), weighted by the softmax over each
        row's edges of LeakyReLU(u · vector + score of v); vectors (H, D), scores of destinations
        (R, H), to (R, H, D)."""

    @abstractmethod
    def attend_across(self, edges: Sequence[InEdges], rows: Sequence[Tensor | slice],
                      sources: Sequence[Tensor], queries: Tensor, to_scores: Tensor,
                      to_sums: Tensor, biases: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attention of HGT over the edges of all relations into a node type, of which each has some
        `rows`: Σ exp(k_u · (q A) + q · a - M) (v_u M_r + m) beside Σ exp(…), (R, H · D + H), and
        the maxima M (R, H) without a gradient. Sources are keys and values (S, 2, H, D), or states
        that are both, for all heads (S, W); queries (R, H, D), A (relations, H, D, D or W), M_r
        (relations, H, D or W, D), `biases` a and m (relations, 2, H, D)."""

    @abstractmethod
    def project(self, states: Sequence[Tensor], weights: Sequence[Tensor],
                biases: Sequence[Tensor | None] = ()) -> Sequence[Tensor]:
        """Products of states (n, A), of which several may be one tensor, with (A, B), plus biases
        (B,) where there are some: (n, B)."""

    @abstractmethod
    def gather(self, states: Sequence[Tensor], rows: Sequence[Tensor | slice]
               ) -> Sequence[Tensor]:
        """Rows of states (n, …): of each by their numbers, int64, or from one to another."""

    @abstractmethod
    def scatter_sum(self, values: Sequence[Tensor], rows: Sequence[Tensor | slice], like: Tensor
                    ) -> Tensor:
        """Zeros as `like` (n, …), plus values (rows_i, …) at those rows, each once in a list."""

    @abstractmethod
    def matmul(self, rows: Sequence[Tensor], weights: Sequence[Tensor] | Tensor
               ) -> Sequence[Tensor]:
        """Products: (n, A) with (A, B) to (n, B), or per head (n, H, A) with (H, A, B). Weights may
        be one tensor, (relations, …)."""
