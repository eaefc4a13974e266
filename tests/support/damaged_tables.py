"""Read small tables again and again, damaged each time: `python -m tests.support.damaged_tables`.

A process of its own, which the test looks at: code that trusts a damaged offset ends it. Each
reading must give a graph or an InputError of one line.
"""

from __future__ import annotations

import datetime as dt
import decimal
import gzip
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dgl_heta.errors import InputError
from dgl_heta.graph.readers import read_edge_files

ROWS = 9
WORDS = (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x10")
METADATA = {
    "name": "g",
    "nodes": {"item": {"table": "T", "features": {
        "price": "number:indicator", "list": "vector", "fixed": "number", "words": "text:4",
        "exact": "number", "kind": "category"}}, "other": {}},
    "edges": [{"src": "item", "etype": "to", "dst": "other", "files": ["T"],
               "columns": ["id", "bytes"]},
              {"src": "other", "etype": {"column": "class"}, "dst": "item", "files": ["T"],
               "columns": ["bytes", "id"]}],
    "task": {"target": "item", "label": "class",
             "split": {"ratios": [0.6, 0.2, 0.2], "time": "when"}}}


def table(views: bool) -> Any:
    rows = range(ROWS)
    floats = [[float(i), 1.0] for i in rows]
    words = [f"some words, long enough for a view {i}" for i in rows]
    return pa.table({
        "id": [f"i{i}" for i in rows], "class": pa.array(["ab"[i % 2] for i in rows]
                                                         ).dictionary_encode(),
        "kind": pa.array(["ab"[i % 2] for i in rows]).dictionary_encode(),
        "price": [None, *map(float, range(1, ROWS))], "list": pa.array(floats),
        "fixed": pa.array(floats, pa.list_(pa.float32(), 2)),
        "words": pa.array(words, pa.string_view() if views else pa.large_string()),
        "bytes": pa.array([bytes([i]) * 16 for i in rows], pa.binary(16)),
        "exact": [decimal.Decimal(i) / 4 for i in rows],
        "when": [dt.datetime(2024, 1, 1 + i) for i in rows]})


def text() -> bytes:
    rows = [{**row, "list": 1, "fixed": 2, "bytes": row["bytes"].hex()}
            for row in table(False).to_pylist()]
    return (",".join(rows[0]) + "\n" + "".join(",".join(
        f'"{value}"' if value is not None else "" for value in row.values()) + "\n"
        for row in rows)).encode()


def content(kind: str, path: Path) -> bytes:
    """A table in a file, as bytes."""
    if kind == "csv.gz":
        return gzip.compress(text(), mtime=0)
    if kind == "parquet":
        pq.write_table(table(False), path, row_group_size=5)
    else:
        whole = table(True)
        options = pa.ipc.IpcWriteOptions(compression="zstd" if kind == "feather" else None)
        with pa.ipc.new_file(str(path), whole.schema, options=options) as writer:
            writer.write_table(whole, max_chunksize=5)
    return path.read_bytes()


def damaged(data: bytes, kind: str, step: int, count: int) -> Iterator[bytes]:
    """The content with one of its words of 4 bytes changed, every `step`-th; then with bits flipped
    and pieces replaced, `count` times; of gzip also its text.
    """
    yield data
    for at in range(0, len(data) - 3, 4 * step):
        for word in WORDS[at // 4 % 2::2]:
            yield data[:at] + word + data[at + 4:]
    for number in range(count):
        drawn = random.Random(number)
        changed = bytearray(gzip.decompress(data) if kind == "csv.gz" and number % 3 else data)
        if drawn.random() < 0.7:
            for _ in range(drawn.choice((1, 1, 2))):
                changed[drawn.randrange(len(changed))] ^= 1 << drawn.randrange(8)
        else:
            at = drawn.randrange(len(changed))
            changed[at:at + drawn.randrange(40)] = drawn.randbytes(drawn.randrange(40))
        yield gzip.compress(changed) if kind == "csv.gz" and number % 3 else bytes(changed)


def main(kind: str, step: int, count: int) -> None:
    found = {"read": 0, "refused": 0}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / f"t.{kind}"
        (path.parent / "metadata.json").write_text(
            json.dumps(METADATA).replace('"T"', f'"{path.name}"'))
        for number, data in enumerate(damaged(content(kind, path), kind, step, count)):
            print(number, flush=True)
            path.write_bytes(data)
            try:
                read_edge_files(path.parent)
            except InputError as error:
                said = str(error)
            else:
                said = ""
            found["refused" if said else "read"] += 1
            assert not (said and not number), f"the table that is whole is refused: {said}"
            assert not said or (path.name in said and "\n" not in said), said
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
