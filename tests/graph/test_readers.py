"""What a user gets from a graph on disk or in memory, and what is said when it is broken."""

from __future__ import annotations

import gzip
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dgl_heta.errors import InputError
from dgl_heta.graph.readers import (
    detect,
    open_source,
    read_graphbolt,
)
from dgl_heta.graph.readers.torch_file import read_tensor
from tests.support.reading import (
    Bomb,
    check_mag,
    needs_ogb,
    write_edge_files,
    write_graphbolt,
    write_ogb_mag,
)

# --- torch files ---------------------------------------------------------------------------


def test_tensors_are_read_as_torch_reads_them(tmp_path):
    torch = pytest.importorskip("torch")
    base = torch.arange(24).reshape(2, 3, 4)
    tensors = [base.to(getattr(torch, name)) for name in (
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
        "bool")]
    tensors += [base.transpose(0, 2), base[1, :, ::2], base[:, :0], torch.tensor(5),
                torch.nn.Parameter(torch.ones(3)), torch.ones(1).expand(4), torch.empty(0)]
    path = tmp_path / "t.pt"
    for tensor in tensors:
        for protocol in (2, 4):
            torch.save(tensor, path, pickle_protocol=protocol)
            array = read_tensor(path)
            expected = tensor.detach()
            if expected.dtype == torch.bfloat16:
                expected = expected.float()
            assert array.dtype == expected.numpy().dtype
            np.testing.assert_array_equal(array, expected.numpy())


def test_torch_files_cannot_run_code(tmp_path):
    torch = pytest.importorskip("torch")
    path, ran = tmp_path / "t.pt", tmp_path / "ran"
    torch.save(Bomb(ran), path)
    with pytest.raises(InputError, match="it asks to call"):
        read_tensor(path)
    torch.save(torch.ones(3), path, _use_new_zipfile_serialization=False)
    with pytest.raises(InputError, match=r"t\.pt.*save it again as \.npy"):
        read_tensor(path)
    path.write_bytes(pickle.dumps(Bomb(ran)))
    with pytest.raises(InputError, match="one dense tensor"):
        read_tensor(path)
    assert not ran.exists()


def test_torch_files_with_something_else_or_a_lie_are_refused(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "t.pt"
    for value in ([torch.ones(1)], {"a": 1}, 3, torch.eye(3).to_sparse(),
                  torch.ones(2, dtype=torch.complex64)):
        torch.save(value, path)
        with pytest.raises(InputError, match=r"t\.pt as one dense tensor"):
            read_tensor(path)
    torch.save(torch.ones(6).reshape(2, 3), path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (pkl,) = [name for name in members if name.endswith("data.pkl")]
    shape = b"K\x02K\x03\x86"
    assert members[pkl].count(shape) == 1
    for changed in (b"K\x09K\x03\x86", b"K\x02K\xff\x86", b"J\xff\xff\xff\xffK\x03\x86", b""):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content.replace(shape, changed) if name == pkl else content)
        with pytest.raises(InputError, match=r"t\.pt as one dense tensor"):
            read_tensor(path)


# --- detection -----------------------------------------------------------------------------


def test_the_kind_of_a_directory_is_recognised(tmp_path):
    assert detect(tmp_path) is None
    assert detect(tmp_path / "nothing") is None
    assert detect(write_edge_files(tmp_path / "a")) == "edges"
    assert detect(write_graphbolt(tmp_path / "b")) == "graphbolt"
    assert detect(write_ogb_mag(tmp_path)) == "ogb"
    (tmp_path / "metadata.json").write_text('{"version": 1}')
    assert detect(tmp_path) is None
    check_mag(open_source(str(tmp_path / "a")))


@needs_ogb
def test_ogb_by_name_or_by_directory(tmp_path):
    directory = write_ogb_mag(tmp_path)
    assert len(open_source("ogbn-mag", root=tmp_path).edges) == 4
    assert len(open_source(directory, reverse=False).edges) == 2
    with pytest.raises(InputError, match=r"expected in dataset/ogbn_products"):
        open_source("ogbn-products")


def test_what_cannot_be_read_says_what_would_be_right(tmp_path):
    for path, found in ((tmp_path, "holds none"), (tmp_path / "no", "does not exist"),
                        (Path(__file__), "is a file")):
        with pytest.raises(InputError, match=f"{found}.*metadata.json.*metadata.yaml.*ogbn-mag"):
            open_source(path)
    write_edge_files(tmp_path)
    with pytest.raises(InputError, match="reader 'edges' has no option 'reverse'; options: .none."):
        open_source(tmp_path, reverse=True)
    os.chmod(tmp_path / "metadata.json", 0)
    if not os.access(tmp_path / "metadata.json", os.R_OK):
        with pytest.raises(InputError, match=r"cannot read .*metadata\.json"):
            open_source(tmp_path)


# --- what expands -----------------------------------------------------------------------------


def expanding_yaml(levels: int, merged: bool) -> str:
    """A few lines that stand for 8 ** levels entries."""
    lines = ["a0: &a0 {k: v}"] + [
        f"a{i}: &a{i} {{k{i}: [{', '.join([f'*a{i - 1}'] * 8)}]}}" for i in range(1, levels)]
    last = f"*a{levels - 1}"
    return "\n".join([*lines, f"graph: {{<<: [{', '.join([last] * 8)}]}}" if merged
                      else f"graph: [{last}]"])


@pytest.mark.parametrize("merged", [False, True])
def test_yaml_references_expand_within_limits(tmp_path, merged):
    pytest.importorskip("yaml")
    (tmp_path / "metadata.yaml").write_text(expanding_yaml(12, merged))
    with pytest.raises(InputError, match=r"metadata\.yaml has more than 200,000 entries"):
        read_graphbolt(tmp_path)
    for text in ("a: &a [*a]", "graph: " + "[" * 200 + "]" * 200, "{" * 100_000):
        (tmp_path / "metadata.yaml").write_text(text)
        with pytest.raises(InputError, match=r"metadata\.yaml is not YAML: it is nested too"):
            read_graphbolt(tmp_path)


def test_yaml_references_that_are_few_are_followed(tmp_path):
    yaml = pytest.importorskip("yaml")
    write_graphbolt(tmp_path)
    data = yaml.safe_load((tmp_path / "metadata.yaml").read_text())
    data["tasks"].append(data["tasks"][0])  # which PyYAML writes as a reference
    (tmp_path / "metadata.yaml").write_text(yaml.dump(data))
    assert "*id" in (tmp_path / "metadata.yaml").read_text()
    assert read_graphbolt(tmp_path).task is not None


@pytest.mark.parametrize("damage", ["compressed", "repeated", "hashed", "named"])
def test_torch_files_do_not_expand(tmp_path, damage):
    torch = pytest.importorskip("torch")
    path = tmp_path / "t.pt"
    torch.save(torch.zeros(1).expand(2, 3), path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (pkl,) = [name for name in members if name.endswith("data.pkl")]
    doubled = b"K\x01\x85" + b"".join(
        bytes([ord("q"), i, ord("h"), i, ord("h"), i, 0x86]) for i in range(1, 60))
    members[pkl] = {
        "compressed": members[pkl],
        "repeated": members[pkl].replace(b"K\x02K\x03", b"J\xff\xff\xff\x00J\xff\xff\xff\x00"),
        "hashed": b"\x80\x02}" + doubled + b"K\x01s.",
        "named": b"\x80\x04" + doubled + b"\x8c\x01a\x93.",
    }[damage]
    if damage == "compressed":
        members[next(n for n in members if n.endswith("data/0"))] = bytes(200 << 20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if damage == "compressed"
                         else zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(InputError, match=r"t\.pt as one dense tensor.*("
                       "compressed|repeats|neither texts, numbers|by what is no text)"):
        read_tensor(path)


@needs_ogb
@pytest.mark.parametrize(("file", "lines"), [
    ("relations/paper___cites___paper/edge.csv.gz", b"0,1\n1,1e4294967297\n"),
    ("relations/paper___cites___paper/num-edge-list.csv.gz", b"4.0\n"),
    ("node-feat/paper/node-feat.csv.gz", b"0.5,1\n1e2147483648,2\n"),
    ("num-node-dict.csv.gz", b"author,paper\n1e99999999999,5\n"),
    ("node-label/paper/node-label.csv.gz", b"\n" * (80 << 20)),
])
def test_ogb_numbers_that_pandas_would_misread_are_named(tmp_path, file, lines):
    directory = write_ogb_mag(tmp_path)
    (directory / "raw" / file).write_bytes(gzip.compress(lines, 1))
    with pytest.raises(InputError, match=rf"{Path(file).name}(, line \d: '.*' is not| expands)"):
        open_source(directory)
