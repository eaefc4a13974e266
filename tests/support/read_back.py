"""Data of nodes and edges in many forms, and a DistDGL script that reads all of them.

Arguments: the number of part_configs, these, a file for what was read of each (json), and where
servers run their ip_config. Without one each graph is opened in this process.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import dgl
import dgl.distributed
import torch

NODES, EDGES = 12, 24
RATES, BACK = ("user", "rates", "movie"), ("movie", "rated by", "user")
SERVED = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
DTYPES = (*SERVED, "bfloat16", "complex32", "complex64", "complex128")
SHAPES = ((), (1,), (3,), (2, 3), (2, 1, 2), (2, 1, 2, 2), (0,))
"""Of rows; DGL cannot load the last one's in dtypes that its servers do not hold."""


def graph() -> Any:
    """Two types of nodes, a relation and its reverse."""
    ends = torch.arange(EDGES) % NODES, torch.arange(EDGES) * 5 % NODES
    return dgl.heterograph({RATES: ends, BACK: ends[::-1]},
                           num_nodes_dict={"user": NODES, "movie": NODES})


def values(dtype: str, shape: tuple[int, ...], seed: int, odd: bool = True) -> Any:
    """Numbers of a dtype; odd ones fill it, and have NaN and infinity."""
    made = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    if kind == torch.bool:
        return torch.randint(0, 2, shape, generator=made).bool()
    if not (kind.is_floating_point or kind.is_complex):
        most = torch.iinfo(kind)
        return torch.randint(most.min if odd else 0, most.max if odd else 3, shape,
                             generator=made, dtype=torch.int64).to(kind)
    found = torch.randn(shape, generator=made, dtype=torch.float64)
    if odd and found.numel():
        found.view(-1)[0], found.view(-1)[-1] = float("nan"), float("inf")
    return torch.complex(found, -found).to(kind) if kind.is_complex else found.to(kind)


def with_data(dtypes: tuple[str, ...]) -> Any:
    """The graph with data of each form; some are named feat, label and train_mask."""
    made = graph()
    for number, dtype in enumerate(dtypes):
        for place, shape in enumerate(SHAPES if dtype in SERVED else SHAPES[:-1]):
            name = {3: "feat", 17: "label", 30: "train_mask"}.get(
                number * len(SHAPES) + place, f"{dtype} {len(shape)} {place}")
            made.nodes["movie"].data[name] = values(dtype, (NODES, *shape), number)
            made.edges[RATES].data[name] = values(dtype, (EDGES, *shape), place)
    made.nodes["user"].data["only matrix"] = values("float64", (NODES, 2), 5)
    return made


def bits(rows: Any) -> str:
    """A checksum of a tensor's memory."""
    if rows.is_complex():
        rows = torch.view_as_real(rows.to(torch.complex128))
    rows = rows.double() if rows.is_floating_point() else rows
    return hashlib.sha256(rows.contiguous().numpy().tobytes()).hexdigest()


def read(g: Any) -> dict[str, list[Any]]:
    """Of each array dtype, shape, and rows by ids, in an order that is not theirs."""
    found = {}
    for data in (*((f"node {t}", g.nodes[t].data) for t in g.ntypes),
                 *((f"edge {e}", g.edges[e].data) for e in g.canonical_etypes)):
        for name in sorted(data[1]):
            tensor = data[1][name]
            rows = tensor[torch.arange(len(tensor)) * 7 % len(tensor)]
            found[f"{data[0]} {name}"] = [
                str(tensor.dtype), list(tensor.shape), str(rows.dtype), list(rows.shape),
                bits(rows + 0 if rows.is_floating_point() else rows)]
    return found


def wrong_reads(g: Any) -> list[str]:
    """What the comparison of reads says where a script would read something else."""
    from dgl_heta.distdgl.graph.given_data import check_as_given
    from dgl_heta.distdgl.session import Session
    from dgl_heta.errors import HetaError

    right, manifest, said = Session.rows, g.heta.store.manifest, []
    check_as_given(g, manifest, 1)

    def changed(self: Any, name: str) -> Any:
        rows = right(self, name)
        return rows.max() - rows if name == "node~user~only matrix" and rows is not None else rows

    tensor = g.nodes["movie"].data["feat"]
    for sabotage, undo in (
            (lambda: setattr(Session, "rows", changed), lambda: setattr(Session, "rows", right)),
            (lambda: setattr(tensor, "_dtype", torch.float32),
             lambda: g._ndata_store["movie"].pop("feat")), (lambda: None, lambda: None)):
        sabotage()
        try:
            check_as_given(g, manifest, 1)
            said.append("nothing")
        except HetaError as error:
            said.append(str(error))
        undo()
    return said


def main() -> None:
    count = int(sys.argv[1])
    configs, (out, *servers) = sys.argv[2:2 + count], sys.argv[2 + count:]
    dgl.distributed.initialize(servers[0] if servers else "")
    if servers:
        torch.distributed.init_process_group("gloo")
    found: list[Any] = []
    for config in configs:
        g = dgl.distributed.DistGraph("g", part_config=config)
        found.append(read(g))
    if servers:
        g.barrier()
    else:
        found.append(wrong_reads(g))
    Path(out + os.environ.get("RANK", "")).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
