"""Whatever Arrow's types hold, in whichever place: a store that opens, or one error."""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.readers import read_edge_files
from dgl_heta.store import Store, write_store

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 6


def flat_types() -> list[Any]:
    return [
        pa.null(), pa.bool_(), *(getattr(pa, f"{u}int{bits}")() for u in ("", "u")
                                 for bits in (8, 16, 32, 64)),
        pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64(), pa.time32("s"),
        pa.time64("ns"), *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns")
                           for zone in (None, "UTC", "Nowhere/Else")),
        pa.duration("us"), pa.month_day_nano_interval(), pa.decimal128(38, 18),
        pa.decimal128(5, -2), pa.decimal256(76, 0), pa.decimal256(76, 76), pa.binary(16),
        pa.binary(3), pa.binary(0)]


@st.composite
def flat(draw: st.DrawFn, kind: Any = None, rows: int = ROWS) -> Any:
    """An array of fixed width, of any bytes at all, some of it null; or of text or bytes."""
    kind = kind or draw(st.sampled_from([*flat_types(), pa.string(), pa.large_binary()]))
    known = [draw(st.integers(0, 4)) > 0 for _ in range(rows)]
    if kind == pa.null():
        return pa.nulls(rows)
    if pa.types.is_string(kind):
        words = st.text(max_size=4) | st.sampled_from(
            ["1", "0", "train", "val", "2024-01-05", "3.5", "nan", "true", "x" * 20])
        return pa.array([draw(words) if yes else None for yes in known], kind)
    if pa.types.is_large_binary(kind):
        return pa.array([draw(st.binary(max_size=20)) if yes else None for yes in known], kind)
    width = max(kind.bit_width // 8, 1)
    small = draw(st.booleans())
    data = b"".join(draw(st.integers(0, 3)).to_bytes(width, "little") if small and width else
                    draw(st.binary(min_size=width, max_size=width)) for _ in range(rows))
    bits = pa.py_buffer(np.packbits(known, bitorder="little").tobytes())
    return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(data)])


@st.composite
def column(draw: st.DrawFn) -> Any:
    """An array of any type."""
    inner = draw(flat())
    form = draw(st.sampled_from(("flat", "dictionary", "list", "large", "fixed", "struct", "map",
                                 "runs", "union", "view", "extension")))
    try:
        if form == "dictionary":
            return pa.DictionaryArray.from_arrays(
                pa.array([draw(st.integers(0, ROWS - 1)) for _ in range(ROWS)], pa.int8()), inner)
        if form in ("list", "large"):
            ends = np.cumsum([0, *(draw(st.integers(0, 2)) for _ in range(ROWS))]).clip(0, ROWS)
            ends = draw(st.sampled_from([ends, np.arange(ROWS + 1)]))
            of = pa.ListArray if form == "list" else pa.LargeListArray
            return of.from_arrays(pa.array(ends, pa.int32() if form == "list" else pa.int64()),
                                  inner)
        if form == "fixed":
            return pa.FixedSizeListArray.from_arrays(draw(flat(inner.type, 2 * ROWS)), 2)
        if form == "struct":
            return pa.StructArray.from_arrays([inner], ["a"])
        if form == "map":
            return pa.MapArray.from_arrays(pa.array(np.arange(ROWS + 1), pa.int32()),
                                           pa.array([*"abcdef"]), inner)
        if form == "runs":
            return pa.RunEndEncodedArray.from_arrays(
                pa.array(np.arange(1, ROWS + 1), pa.int32()), inner)
        if form == "union":
            return pa.UnionArray.from_sparse(pa.array([0] * ROWS, pa.int8()), [inner])
        if form == "view":
            return inner.cast(draw(st.sampled_from([pa.string_view(), pa.binary_view()])))
        if form == "extension":
            return pa.ExtensionArray.from_storage(
                draw(st.sampled_from([pa.uuid(), pa.json_(), pa.bool8()])), inner)
    except (pa.ArrowException, ValueError, TypeError):  # of this there is no such type
        pass
    return inner


PLACES = ("id", "src", "feature", "class", "number", "mask", "split", "time", "type", "relation")


@given(given_column=column(), place=st.sampled_from(PLACES), data=st.data(),
       ending=st.sampled_from(("parquet", "arrow")))
@settings(max_examples=250)
def test_any_column_in_any_place_is_read_or_refused_by_name(
        given_column: Any, place: str, data: st.DataObject, ending: str) -> None:
    columns: dict[str, Any] = {
        "id": pa.array([f"p{i}" for i in range(ROWS)]), "label": ["a", "b"] * (ROWS // 2),
        "part": ["train", "val", "test"] * (ROWS // 3), "c": given_column}
    paper: dict[str, Any] = {"table": f"papers.{ending}"}
    edge = {"src": "paper", "etype": "cites", "dst": "paper", "files": [f"papers.{ending}"],
            "columns": ["id", "id"]}
    task: dict[str, Any] = {"target": "paper", "split": "part"}
    nodes = {"paper": paper}
    if place == "id":
        paper["id"], edge["columns"] = "c", ["c", "c"]
    elif place == "src":
        nodes["author"] = {}
        edge |= {"src": "author", "columns": ["c", "id"]}
    elif place == "feature":
        paper["features"] = {"c": data.draw(st.sampled_from(
            ["number", "number:indicator", "vector", "vector:indicator", "category", "text:4"]))}
    elif place == "class":
        task["label"] = "c"
        task |= data.draw(st.sampled_from([{}, {"num_classes": 3}]))
    elif place == "number":
        task |= {"label": "c", "kind": data.draw(st.sampled_from(["regression", "multilabel"]))}
    elif place == "mask":
        columns["train_mask"] = columns.pop("c")
        del task["split"]
    elif place == "split":
        task["split"] = "c"
    elif place == "time":
        form = data.draw(st.sampled_from([None, None, "%Y", "%d.%m.%y %H"]))
        task["split"] = {"ratios": [0.5, 0.3, 0.2], "time": "c",
                         **({"time_format": form} if form else {})}
    elif place == "type":
        nodes, edge["src"], edge["dst"] = {"*": {**paper, "type": "c"}}, "*", "*"
        del task
    else:
        edge["etype"] = {"column": "c"}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        metadata = {"name": "g", "nodes": nodes, "edges": [edge]}
        if place != "type":
            metadata["task"] = task
        (directory / "metadata.json").write_text(json.dumps(metadata))
        table = pa.table(columns)
        try:
            if ending == "parquet":
                pq.write_table(table, directory / "papers.parquet")
            else:
                with pa.ipc.new_file(str(directory / "papers.arrow"), table.schema) as writer:
                    writer.write_table(table)
        except (pa.ArrowException, ValueError, OverflowError, OSError):
            return  # the format has no such type
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                write_store(read_edge_files(directory), directory / "store")
            except InputError as error:
                said = str(error)
            else:
                said = ""
                Store(directory / "store").verify()
        assert "\n" not in said
