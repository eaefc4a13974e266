"""Stores that were damaged, edited or cut are refused by name; what is opened is read alone."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.store import ArrayEntry, Manifest, RelationEntry, Store, write_store
from dgl_heta.store.store_files import short_files
from tests.support.stores import CITES, RELAXED, labelled, small

# Damaged stores


@pytest.fixture
def store(tmp_path) -> Store:
    write_store(labelled(feat=np.arange(12, dtype=np.float32).reshape(3, 4)), tmp_path / "s",
                edge_ids=True)
    return Store(tmp_path / "s")


def file_of(store: Store, name: str) -> Path:
    arrays = store.manifest.arrays["paper"]
    entry = store.manifest.relations[0]
    return store.directory / (arrays[name] if name in arrays else getattr(entry, name)).file


def test_a_file_that_is_cut_while_it_is_mapped_is_named(store):
    path, other = file_of(store, "feat"), file_of(store, "label")
    store.array("paper", "feat")
    os.truncate(other, 10)
    store.check_sizes()  # nobody has mapped it
    os.truncate(path, 10)
    with pytest.raises(InputError, match=f"{re.escape(str(path))} has 10 bytes, but the manifest"):
        store.check_sizes()
    assert {file.partition(" (10 of ")[0] for file in short_files(store.directory)} == {
        str(path), str(other)}


def test_a_file_that_another_took_the_place_of_is_read_on(store):
    path, rows = file_of(store, "feat"), store.array("paper", "feat")
    known = rows.copy()
    (path.parent / "new").write_bytes(b"short")
    (path.parent / "new").replace(path)
    store.check_sizes()
    path.unlink()
    store.check_sizes()
    np.testing.assert_array_equal(rows, known)


@pytest.mark.parametrize("name", ["feat", "label", "indptr", "indices", "edge_ids"])
def test_a_truncated_missing_or_edited_file_is_named(store, name):
    path = file_of(store, name)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(InputError, match=f"{re.escape(str(path))} has {len(data) - 1} bytes.*"
                                         f"manifest says {len(data)}"):
        Store(store.directory)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(InputError, match=f"{re.escape(str(path))} was edited"):
        Store(store.directory).verify()
    path.unlink()
    with pytest.raises(InputError, match=f"{re.escape(str(path))}"):
        store.verify()
    with pytest.raises(InputError, match=f"{re.escape(str(path))} is missing"):
        Store(store.directory)


def test_only_what_is_asked_for_is_verified(store):
    path = file_of(store, "feat")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    store.verify(ntypes=[])
    store.verify(ntypes=[], relations=[CITES])
    with pytest.raises(InputError, match="edited"):
        store.verify(ntypes=["paper"], relations=[])
    with pytest.raises(InputError, match=r"'papr' is not in the graph.*did you mean 'paper'"):
        store.verify(ntypes=["papr"])
    with pytest.raises(InputError, match="'a b c' is not in store"):
        store.verify(relations=[Relation("a", "b", "c")])


@pytest.mark.parametrize("old_new", [
    (b"'fortran_order': False", b"'fortran_order': True "), (b"<f4", b"<i4"), (b"<f4", b"|O4"),
    (b"(3, 4)", b"(4, 3)"), (b"(3, 4)", b"(3, 1)"), (b"(3, 4)", b"(3,99"), (b"descr", b"discr"),
    (b"\x93NUMPY", b"\x93NUMPX"), (b"\x93NUMPY\x01", b"\x93NUMPY\x09"),
    (b"\x93NUMP", b"PK\x03\x04\x00"), (b"\x93NUMPY\x01\x00\x76", b"\x93NUMPY\x01\x00\x75"),
], ids=str)
def test_a_header_that_disagrees_is_noticed(store, old_new):
    path = file_of(store, "feat")
    data = path.read_bytes()
    path.write_bytes(data.replace(*old_new, 1))
    assert path.read_bytes() != data
    with pytest.raises(InputError, match=re.escape(str(path))) as caught:
        Store(store.directory).array("paper", "feat")
    assert "\n" not in str(caught.value)


@RELAXED
@given(position=st.integers(0, 127), value=st.integers(0, 255))
def test_no_change_of_a_header_gives_other_numbers(tmp_path, position, value):
    out = tmp_path / "s"
    if not out.exists():
        write_store(small(feat=np.arange(12, dtype=np.float32).reshape(3, 4)), out)
    path = file_of(Store(out), "feat")
    data = path.read_bytes()
    try:
        path.write_bytes(data[:position] + bytes([value]) + data[position + 1:])
        array = Store(out).array("paper", "feat")
    except InputError:
        pass
    else:
        np.testing.assert_array_equal(array, np.arange(12).reshape(3, 4))
    finally:
        path.write_bytes(data)


def test_a_pickle_is_never_loaded(store, tmp_path):
    class Bomb:
        def __reduce__(self):
            return open, (str(tmp_path / "bang"), "w")

    bomb = np.array([Bomb(), Bomb(), Bomb()])
    for save in (lambda p: np.save(p, bomb, allow_pickle=True), bomb.dump):
        path = file_of(store, "label")
        with path.open("wb") as file:
            save(file)
        edited(store, lambda data: data["node_types"]["paper"]["arrays"]["label"].update(
            bytes=file_of(store, "label").stat().st_size))
        with pytest.raises(InputError, match=re.escape(str(path))):
            Store(store.directory).array("paper", "label")
    edited(store, lambda data: data["node_types"]["paper"]["arrays"]["label"].update(dtype="|O"))
    with pytest.raises(InputError, match="not numbers"):
        Store(store.directory)
    assert not (tmp_path / "bang").exists()


def edited(store: Store, edit: Callable[[dict], object], sign: bool = True) -> None:
    path = store.directory / "manifest.json"
    data = json.loads(path.read_text())
    edit(data)
    if sign:  # as somebody who knows the format would
        data.pop("sha256")
        data["sha256"] = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("edit", [
    lambda d: d["node_types"]["paper"].update(count=4), lambda d: d.update(name="other"),
    lambda d: d["relations"].clear(), lambda d: d.pop("sha256"), lambda d: d.update(new=1)])
def test_an_edited_manifest_is_refused(store, edit):
    edited(store, edit, sign=False)
    with pytest.raises(InputError, match="was edited or damaged"):
        Store(store.directory)


@pytest.mark.parametrize(("edit", "word"), [
    (lambda d: d.update(version=6), "format version 6; this dgl-heta reads versions 1 to 5"),
    (lambda d: d["node_types"]["paper"]["arrays"]["feat"].update(scale=[1.0]), "has 1 scales"),
    (lambda d: d["node_types"]["paper"]["arrays"]["feat"].update(scale=[0.0]), "damaged: .*scale"),
    (lambda d: d.update(format="zip"), "not the manifest of a relation store"),
    (lambda d: d["relations"][0]["indices"].update(file="../outside.npy"), "outside the store"),
    (lambda d: d["relations"][0]["indices"].update(file="/etc/passwd"), "outside the store"),
    (lambda d: d["relations"][0]["indices"].update(file="a/../../b"), "outside the store"),
    (lambda d: d["relations"][0]["indices"].update(file=""), "outside the store"),
    (lambda d: d["relations"][0]["indices"].update(file="a\0b"), "outside the store"),
    (lambda d: d["relations"][0]["indices"].update(file=5), "damaged"),
    (lambda d: d["relations"][0]["indices"].update(dtype="zz"), "damaged"),
    (lambda d: d["relations"][0]["indices"].update(shape=[9]), "other shapes"),
    (lambda d: d["relations"][0]["indptr"].update(shape=[3]), "other shapes"),
    (lambda d: d["relations"][0].update(edges=4), "other shapes"),
    (lambda d: d["relations"][0].update(dst="papr"), "damaged"),
    (lambda d: d["relations"][0].pop("indptr"), "indptr"),
    (lambda d: d["node_types"]["paper"].update(arrays=[]), "damaged"),
    (lambda d: d["node_types"]["paper"]["arrays"]["feat"].update(shape=[4, 3]), "'feat'"),
    (lambda d: d.update(node_types=None), "damaged"),
    (lambda d: d.update(task={"target": "paper"}), "damaged"),
    (lambda d: d.update(relations=[]), "no relations"),
    (lambda d: d["relations"][0].update(src=["paper"]), "damaged: .*src"),
    (lambda d: d["relations"][0].update(edges="5"), "damaged: .*edges"),
    (lambda d: d["relations"][0]["indices"].update(shape=[10**15]), "damaged: .*shape"),
    (lambda d: d["node_types"]["paper"].update(count=10**400), "damaged: .*count"),
    (lambda d: d["task"].update(num_classes=[3]), "damaged: .*num_classes"),
    (lambda d: d["task"].update(target="nobody"), "damaged: its task"),
    (lambda d: d["relations"][0]["indices"].update(dtype=","), "damaged: .*dtype"),
    (lambda d: d.update(info=[1]), "damaged: info"),
    (lambda d: d["node_types"].update({"\ud800": d["node_types"]["paper"]}), "cannot be the name"),
])
def test_a_manifest_that_makes_no_sense_is_refused(store, edit, word):
    edited(store, edit)
    with pytest.raises(InputError, match=word) as caught:
        Store(store.directory)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b"null",
                                  b"9" * 5000])
def test_a_manifest_that_is_not_json_is_refused(store, data):
    (store.directory / "manifest.json").write_bytes(data)
    with pytest.raises(InputError, match=r"manifest\.json"):
        Store(store.directory)


def test_what_is_no_store_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "file", "."):
        assert not Store.is_store(tmp_path / name)
        with pytest.raises(InputError, match="is not a relation store"):
            Store(tmp_path / name)


def test_what_a_store_lacks_is_said(store):
    with pytest.raises(InputError, match=r"'a b c' is not in store .*; relations: paper cites"):
        store.relation(Relation("a", "b", "c"))
    with pytest.raises(InputError, match=r"no array 'year'; it has: feat, label, train_mask"):
        store.array("paper", "year")
    with pytest.raises(InputError, match=r"'papr' is not in the graph"):
        store.array("papr", "feat")


def test_opening_a_huge_store_reads_pointers_alone(tmp_path):
    nodes, edges, width = 10_000_000, 500_000_000, 256

    def sparse(file: str, dtype: str, shape: tuple[int, ...]) -> ArrayEntry:
        array = np.lib.format.open_memmap(tmp_path / file, "w+", np.dtype(dtype), shape)
        return ArrayEntry(file, dtype, shape, array.offset + array.nbytes, "0" * 64)

    feat = sparse("feat.npy", "<f4", (nodes, width))
    entry = RelationEntry(CITES, edges, sparse("indptr.npy", "<i8", (nodes + 1,)),
                          sparse("indices.npy", "<i4", (edges,)))
    np.lib.format.open_memmap(tmp_path / "indptr.npy", "r+")[:] = np.arange(nodes + 1) * 50
    Manifest("huge", {"paper": nodes}, {"paper": {"feat": feat}}, (entry,)).save(tmp_path)
    assert feat.bytes > 10e9
    start = time.process_time()
    store = Store(tmp_path)
    array, csc = store.array("paper", "feat"), store.relation(CITES)
    seconds = time.process_time() - start
    assert array[-1].sum() == csc.indices[-1] == 0
    assert seconds < 0.5
