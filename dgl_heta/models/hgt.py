"""HGT, the heterogeneous graph transformer (Hu et al. 2020, https://arxiv.org/abs/2003.01332)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dgl_heta.errors import InputError
from dgl_heta.models.hgnn import HGNNLayer, is_linear
from dgl_heta.models.relations import Relations
from dgl_heta.models.rgat import head_width
from dgl_heta.models.spec import ModelSpec, slot
from dgl_heta.nn.joined import elementwise
from dgl_heta.nn.kernels import kernel_in_use
from dgl_heta.planning.compute import keys_first


class HGTLayer(HGNNLayer):
    """Attention whose softmax ranges over all in-edges, by whatever relation (Eq. 3-5).

    For an edge of type e from u (type s) to v (type t), relation r, each of H heads of width d:

        score   = (K_s h_u) A_e (Q_t h_v)ᵀ μ_r / √d
        h̃_v     = Σ_u softmax_u(score) (V_s h_u) M_e
        h_v     ← a_t O_t gelu(h̃_v) + (1 - a_t) h_v,  a_t = sigmoid(skip_t)

    (The paper adds h_v without the weight a_t, which its authors' code has.) Keys, queries, values
    and outputs have weights per node type, attention and message per edge type, and the prior μ per
    relation. Keys and values are made of all rows of a source type, or their weights are multiplied
    with the destination row's query and with its weighted sum, whichever is shorter. States are
    (rows, hidden). `hidden`, `heads` (must divide it), `layer_norm` and `dropout` of the spec are
    used.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__("softmax", spec.hidden, spec.heads)
        width, heads = spec.hidden, spec.heads
        each = self._each = head_width(width, heads)
        types, schema = spec.schema.node_types, spec.schema
        self.keys, self.queries, self.values, self.outputs = (
            nn.ModuleDict({slot(t): nn.Linear(width, width) for t in types}) for _ in range(4))
        self.skip = nn.ParameterDict({slot(t): nn.Parameter(torch.ones(1)) for t in types})
        edge_types = dict.fromkeys(r.etype for r in schema.relations)
        self.attention, self.message = (
            nn.ParameterDict({slot(e): nn.Parameter(torch.stack([
                nn.init.xavier_uniform_(torch.empty(each, each)) for _ in range(heads)]))
                for e in edge_types}) for _ in range(2))
        self.prior = nn.ParameterDict({slot(r): nn.Parameter(torch.ones(heads))
                                       for r in schema.relations})
        self.norm = nn.LayerNorm(width) if spec.layer_norm else None
        self.dropout = nn.Dropout(spec.dropout)

    def across_is_shorter(self, relations: Relations) -> bool:
        """Return True, but for a GPU, where scores of all node types take fewer kernels together
        than type by type; as long as keys and values are plain linear layers."""
        return relations[0].source.device.type == "cpu" or not all(
            self._is_plain(edges.relation.src) for edges in relations)

    def attend_across(self, relations: Relations) -> tuple[Tensor, Tensor]:
        queries = self.queries[slot(relations[0].relation.dst)](relations.destination)
        queries = queries.view(len(queries), self.heads, self._each)
        if self._after(relations):
            to_scores, of_scores = self._of_queries(relations)
            to_sums, of_totals = self._of_sums(relations)
            return relations.attend_across(relations.sources, queries, to_scores, to_sums,
                                           torch.stack([of_scores, of_totals], 1))
        products = []
        for edges in relations:
            ntype = edges.relation.src
            if ntype not in edges.products:
                both = self.keys[slot(ntype)], self.values[slot(ntype)]
                if self._is_plain(ntype):
                    (rows,) = kernel_in_use().project(
                        [edges.source], [torch.cat([linear.weight for linear in both]).t()],
                        [torch.cat([linear.bias for linear in both])])
                else:
                    rows = torch.cat([linear(edges.source) for linear in both], 1)
                edges.products[ntype] = rows.view(len(rows), 2, self.heads, self._each)
            products.append(edges.products[ntype])
        return relations.attend_across(products, queries,
                                       self._attention(relations).transpose(2, 3),
                                       self._weights(self.message, relations))

    def _after(self, relations: Relations) -> bool:
        """Return whether weights of keys and values are multiplied with queries and sums, which is
        for plain linear layers alone, not with states of the sources."""
        return all(self._is_plain(edges.relation.src) for edges in relations) and not keys_first(
            *relations.of_block(), self.width, self.heads, self._each)

    def score_all(self, relations: Relations) -> Sequence[Tensor]:
        """Of states; the keys' weights are multiplied by A first, and with queries."""
        queries = relations.project(self.queries, self.heads)
        weights, biases = self._of_queries(relations)
        scores = relations.dot_projected(queries, weights)
        of_rows = relations.matmul(queries, biases.unsqueeze(3))
        return elementwise(torch.add, scores, relations.spread(
            elementwise(lambda rows: rows.squeeze(2), of_rows)))

    def attend_all(self, relations: Relations, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """Of states; the values' weights are multiplied by M first, and with sums."""
        of_sums, of_totals = self._of_sums(relations)
        sums = relations.attend_projected(weights, of_sums)
        totals = elementwise(lambda rows: rows.unsqueeze(2), relations.total(weights))
        return elementwise(lambda rows, biases: (rows + biases).flatten(1), sums,
                           relations.matmul(totals, of_totals.unsqueeze(2)))

    def _of_queries(self, relations: Relations) -> tuple[Tensor, Tensor]:
        """Weights and biases of keys times A: what queries are multiplied with, (relations, heads,
        D, width) and (relations, heads, D)."""
        attention = self._attention(relations)
        keys, biases = self._of_sources(self.keys, relations)
        return (torch.einsum("rhed,rhei->rhdi", attention, keys),
                torch.einsum("rhed,rhe->rhd", attention, biases))

    def _of_sums(self, relations: Relations) -> tuple[Tensor, Tensor]:
        """Weights and biases of values times M: what weighted sums of states and the sums of their
        weights are multiplied with, (relations, heads, width, D) and (relations, heads, D)."""
        message = self._weights(self.message, relations)
        values, biases = self._of_sources(self.values, relations)
        return (torch.einsum("rhei,rhed->rhid", values, message),
                torch.einsum("rhe,rhed->rhd", biases, message))

    def _is_plain(self, ntype: str) -> bool:
        """Return whether keys and values of a type are what their weights and biases say."""
        return all(is_linear(linear) and linear.bias is not None
                   for linear in (self.keys[slot(ntype)], self.values[slot(ntype)]))

    def _attention(self, relations: Relations) -> Tensor:
        """A_e μ_r / √d of each relation, (relations, heads, D, D)."""
        prior = relations.stack([self.prior[slot(edges.relation)] for edges in relations])
        return self._weights(self.attention, relations) * (
            prior / math.sqrt(self._each)).unsqueeze(2).unsqueeze(3)

    def _of_sources(self, linears: nn.ModuleDict, relations: Relations) -> tuple[Tensor, Tensor]:
        """Weight and bias of each relation's source type, (relations, heads, D, …).

        Raises
        ------
        InputError
            Keys or values of one are no plain linear layers.
        """
        for edges in relations:
            if not self._is_plain(edges.relation.src):
                raise InputError(
                    f"keys or values of '{edges.relation.src}' are no plain nn.Linear with a bias "
                    f"(exchanged, normalised or with hooks), which {type(self).__name__}, with "
                    "methods of its own, would not call; define score and attend without HGTLayer's"
                )
        return (self._per_head(relations.of_sources(lambda ntype: linears[slot(ntype)].weight)),
                self._per_head(relations.of_sources(lambda ntype: linears[slot(ntype)].bias)))

    def _per_head(self, weights: Tensor) -> Tensor:
        """(relations, heads · D, …) to (relations, heads, D, …)."""
        return weights.unflatten(1, (self.heads, self._each))

    @staticmethod
    def _weights(of_types: nn.ParameterDict, relations: Relations) -> Tensor:
        """The weights of each relation's edge type, (relations, heads, D, D)."""
        return relations.stack([of_types[slot(edges.relation.etype)] for edges in relations])

    def update(self, ntype: str, aggregated: Tensor, state: Tensor | None) -> Tensor:
        assert state is not None
        return self.skipped(self.outputs[slot(ntype)](F.gelu(aggregated)), state,
                            self.skip[slot(ntype)])

    def skipped(self, out: Tensor, state: Tensor, skip: Tensor) -> Tensor:
        """a_t of the outputs and the rest of the rows' own states; `skip` of a type or of rows."""
        share = torch.sigmoid(skip)
        out = share * self.dropout(out) + (1 - share) * state
        return out if self.norm is None else self.norm(out)
