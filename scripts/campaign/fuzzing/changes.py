"""Changes to valid inputs: to values where the format is known, to bytes where not."""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CANARY = "heta_canary"
"""A module that leaves a mark when it is imported or called."""
PICKLE = f"c{CANARY}\nrun\n(tR.".encode()
EXTREMES: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 1000, 65535, 65536, 10**6, 2**31 - 1, 2**31, 2**32, 10**12, 2**53, 2**63 - 1,
    2**63, 2**64, 10**30, -(2**63), -10**12, 0.5, -0.0, 1e308, -1e308, 5e-324, float("nan"),
    float("inf"), True, False, None, "", " ", "0", "1e9", "a" * 300, "x" * 100_000, "\ud800",
    "\x00", "\x1b[31m", "..", "../../etc/passwd", "/etc/passwd", "/dev/zero", "/dev/stdin", ".",
    "\u202e\u0301", "[bold]", "{0}", "%s%n", "a:b:c", "a/b", "-1", "--out", f"{CANARY}:run",
    CANARY, f"{CANARY}:Layer", "os:system", "paper", "author", [], {}, [[]], [{}], {"": {}}, [0],
    [None], [1, 2, 3, 4], {"a": 1}, ["paper"] * 500)


def drawn(draw: random.Random) -> Any:
    """A value that nobody expects."""
    if draw.random() < 0.03:
        return 10 ** draw.choice([400, 4000, 5000])
    return copy.deepcopy(draw.choice(EXTREMES))


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All paths in nested data, the root's left out."""
    found = []
    items = value.items() if isinstance(value, dict) else (
        enumerate(value) if isinstance(value, list) else ())
    for key, item in items:
        found += [(*at, key), *places(item, (*at, key))]
    return found


def data(value: Any, draw: random.Random) -> Any:
    """Nested data with one to three of its values changed, swapped, removed, or put elsewhere."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        paths = places(value)
        if not paths:
            return drawn(draw)
        path = draw.choice(paths)
        holder = _at(value, path[:-1])
        how, key = draw.randrange(12), path[-1]
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder, dict):
            holder[str(drawn(draw))] = holder.pop(key)
        elif how == 1:
            holder.insert(0, copy.deepcopy(holder[key]))
        elif how == 2:
            other = draw.choice(paths)
            with contextlib.suppress(KeyError, IndexError, TypeError):
                holder[key] = copy.deepcopy(_at(value, other))
        elif how == 3:
            holder[key] = [holder[key]] * draw.choice([1, 2, 50])
        elif how == 4:
            holder[key] = {"a": holder[key]}
        elif how == 5 and isinstance(holder[key], str):
            holder[key] = text(holder[key], draw)
        elif how == 6 and type(holder[key]) is int:
            holder[key] += draw.choice([-1, 1, 2**31, 2**32, -2**40, 2**45])
        elif how == 7:
            holder[key] = str(holder[key]) if not isinstance(holder[key], str) else [holder[key]]
        else:
            holder[key] = drawn(draw)
    return value


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def text(value: str, draw: random.Random) -> str:
    """A text with a piece doubled, cut or replaced."""
    at = draw.randrange(len(value) + 1)
    piece = draw.choice(["", "\x00", "\ud800", ":", "/", ".", "%", "'", '"', "\n", ",", " ", "é",
                         "1" * 40, value, "e9999999999", "0x", "-", f"{CANARY}:run"])
    return value[:at] + piece + value[at + draw.choice([0, 0, 1, 5]):]


def json_bytes(value: Any, draw: random.Random) -> bytes:
    """JSON as a file has it; now and then deeply nested or not quite JSON."""
    how = draw.random()
    if how < 0.03:
        depth = draw.choice([50, 900, 5000, 100_000])
        inner = draw.choice(["[", '{"a":'])
        return (inner * depth).encode() + draw.choice([b"", b"1" + b"]" * depth])
    out = json.dumps(value).encode()
    if how < 0.1:
        return raw(out, draw)
    return out


def raw(content: bytes, draw: random.Random) -> bytes:
    """Bytes with some flipped, cut, doubled, inserted."""
    made = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 8])):
        at = draw.randrange(len(made) + 1)
        how = draw.randrange(7)
        if how == 0:
            del made[at:]
        elif how == 1:
            del made[at:at + draw.choice([1, 4, 100])]
        elif how == 2:
            made[at:at] = draw.choice([b"\x00" * 8, b"\xff" * 8, b"\n", b"9" * 20, b"1e9999999999",
                                       b",,", bytes(made[:64]), PICKLE, b"\xed\xa0\x80"])
        elif how == 3:
            made[at:at] = made[at:at + 200]
        elif at < len(made):
            made[at] = draw.choice([0, 255, 1, 128, made[at] ^ (1 << draw.randrange(8)), 57])
    return bytes(made)


def bit(content: bytes, draw: random.Random) -> bytes:
    """Bytes with one bit flipped."""
    made = bytearray(content)
    made[draw.randrange(len(made))] ^= 1 << draw.randrange(8)
    return bytes(made)


def word(content: bytes, draw: random.Random) -> bytes:
    """Bytes with one of the numbers at aligned places made another, as offsets and lengths are."""
    made = bytearray(content)
    size = draw.choice([4, 4, 8])
    at = size * draw.randrange(len(made) // size)
    old = int.from_bytes(made[at:at + size], "little", signed=True)
    most = 2 ** (8 * size - 1) - 1
    new = draw.choice([-1, 0, most, -most, old + 1, old - 1, old + 2**20, -old, old << 1])
    made[at:at + size] = max(-most, min(new, most)).to_bytes(size, "little", signed=True)
    return bytes(made)


def columnar(content: bytes, draw: random.Random) -> bytes:
    """A file of Arrow or Parquet with a bit, a number or any bytes changed."""
    return draw.choice([bit, bit, word, word, raw])(content, draw)


def as_it_is(content: bytes, draw: random.Random) -> bytes:
    """What is a bomb without any change."""
    return content


def wide(content: bytes, draw: random.Random) -> bytes:
    """A table of text with many more columns."""
    times = draw.choice([20, 2000, 60_000])
    head, *rows = content.splitlines()
    names = [b"%s%d" % (name, i) for i in range(times) for name in head.split(b",")]
    return b"\n".join([b",".join([head, *names]),
                       *(b",".join([row] * (times + 1)) for row in rows), b""])


def lines(content: bytes, draw: random.Random) -> bytes:
    """Lines of text, one of them with another field, doubled or put elsewhere."""
    rows = content.splitlines(keepends=True) or [b""]
    at = draw.randrange(len(rows))
    fields = rows[at].rstrip(b"\r\n").split(b",")
    field = draw.randrange(len(fields))
    values: list[Any] = ["1e2147483648", "1e4294967297", "1e-99999999999", "0x10", "1_0", "nan",
                         "inf", "1.0", "9" * 30, "-0", "+3", '"3"', "", drawn(draw)]
    fields[field] = str(draw.choice(values)).encode("utf-8", "surrogatepass")
    if draw.random() < 0.1:
        fields *= draw.choice([0, 2, 1000])
    rows[at] = b",".join(fields) + b"\n"
    if draw.random() < 0.1:
        rows.insert(0, draw.choice([b"\n", b"src,dst\n", b"\xef\xbb\xbf", rows[at]]))
    return b"".join(rows)


def packed(change: Callable[[bytes, random.Random], bytes]
           ) -> Callable[[bytes, random.Random], bytes]:
    """The same change to what a gzip file holds, or to the file; now and then a bomb."""
    def changed(content: bytes, draw: random.Random) -> bytes:
        how = draw.random()
        if how < 0.02:
            return gzip.compress(draw.choice([b"\n", b"0,0\n", b"1"]) * (100 << 20), 1)
        if how < 0.2:
            return raw(content, draw)
        return gzip.compress(change(gzip.decompress(content), draw), 1)
    return changed


def npy(content: bytes, draw: random.Random) -> bytes:
    """A `.npy` file with another header, of objects, or with other bytes."""
    how = draw.random()
    if how < 0.3:
        return raw(content, draw)
    if how < 0.4:
        file = io.BytesIO()
        np.save(file, np.array([None, 1], object), allow_pickle=True)
        return file.getvalue()[:file.getvalue().index(b"\x80")] + PICKLE
    array = np.load(io.BytesIO(content))
    descr = draw.choice([array.dtype.str, "|O", "<f8", ">i8", "<u8", "|S9", "<M8[s]", "<c16",
                         "|V8", "<f2", "|b1", "[('a','<i8')]", CANARY, "x" * 1000])
    shape = draw.choice([array.shape, (), (0,), (-1,), (2**40,), (2, 2**61), (10**30,), (1,) * 40,
                         array.shape[::-1], (*array.shape, 1), (True,), (2.5,), "abc", None])
    header = str({"descr": descr, "fortran_order": draw.choice([False, True, 3]), "shape": shape})
    header = draw.choice([header, header[:-3], header + "+1", "(" * 3000,
                          f"__import__('{CANARY}').run()"]) if draw.random() < 0.4 else header
    if draw.random() < 0.2 and array.dtype.kind in "iu":
        array = array.copy()
        array.reshape(-1)[:1] = draw.choice([-1, 10**6, 2**31 - 1])
    made = header.encode() + b"\n"
    return (b"\x93NUMPY\x01\x00" + (len(made) % 2**16).to_bytes(2, "little") + made
            + array.tobytes())


def labels(content: bytes, draw: random.Random) -> bytes:
    """Labels of any kind as a `.npy` file: classes, codes, several per node, numbers, some missing.
    """
    rows = len(np.load(io.BytesIO(content)))
    values = np.random.default_rng(draw.getrandbits(32))
    shape = draw.choice([(rows,), (rows,), (rows, 1), (rows, 3), (rows, 0), (rows, 2, 2),
                         (rows + 1,)])
    low, high = draw.choice([(0, 2), (0, 4), (-1, 2), (-1, 1), (0, 70_000), (0, 2 * 10**6),
                             (0, 9 * 10**8), (10**12, 10**18), (-10**18, 10**18)])
    array: np.ndarray = values.integers(low, high, shape, endpoint=True)
    if draw.random() < 0.5:
        array = array * draw.choice([1.0, 1.0, 0.5])
        array[values.random(shape) < draw.choice([0, 0.2, 1])] = draw.choice(
            [np.nan, np.inf, -1.0, -100.0])
    file = io.BytesIO()
    dtype = draw.choice(["i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "?"])
    with np.errstate(invalid="ignore", over="ignore"):
        np.save(file, array.astype(dtype) if draw.random() < 0.5 else array)
    return file.getvalue()


def archive(content: bytes, draw: random.Random) -> bytes:
    """A zip archive with another member, compressed, or with a pickle that would run something."""
    if draw.random() < 0.3:
        return raw(content, draw)
    with zipfile.ZipFile(io.BytesIO(content)) as old:
        members = {name: old.read(name) for name in old.namelist()}
    name = draw.choice(list(members))
    pickled = next((n for n in members if n.endswith("data.pkl")), name)
    how = draw.randrange(8)
    if how == 0:
        del members[name]
    elif how == 1:
        members[pickled] = b"\x80\x02" + PICKLE
    elif how == 2:
        members[pickled] = members[pickled].replace(b"torch._utils\n_rebuild_tensor_v2",
                                                    f"{CANARY}\nrun".encode())
    elif how == 3:
        members[name] = bytes(100 << 20)
    elif how == 4:
        members[f"../{CANARY}.py"] = b""
    elif how == 7:  # marks within marks
        members[pickled] = b"\x80\x02" + b"(" * 200_000 + draw.choice([b"", b"t" * 200_000 + b"."])
    else:
        target = pickled if how == 5 else name
        members[target] = raw(members[target], draw)
    file = io.BytesIO()
    method = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    if how == 3:
        method = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(file, "w", method) as new:
        for key, member in members.items():
            new.writestr(key, member)
    return file.getvalue()


def tensors(content: bytes, draw: random.Random) -> bytes:
    """A safetensors file with another header or other bytes."""
    if draw.random() < 0.3:
        return raw(content, draw)
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(data(json.loads(content[8:8 + size]), draw)).encode()
    size = len(header) if draw.random() < 0.9 else draw.choice([0, 2**63, 10**9])
    return size.to_bytes(8, "little") + header + content[8 + size:]


def toml(content: bytes, draw: random.Random) -> bytes:
    """TOML with another value on a line, or hostile on the whole."""
    if draw.random() < 0.1:
        return draw.choice([b"a = " + b"[" * 50_000, b"a" + b".a" * 50_000 + b" = 1",
                            b"[" + b"a." * 20_000 + b"a]", b"x = " + b"9" * 6000, b"\xff\xfe",
                            b"a = 'x" * 3000, b"[[a]]\n" * 20_000, b"a={" * 9000])
    rows = content.decode().splitlines()
    at = draw.randrange(len(rows))
    key = rows[at].partition("=")[0]
    value = drawn(draw)
    shown = json.dumps(value) if not isinstance(value, bool) else str(value).lower()
    rows[at] = f"{key}= {draw.choice([shown, str(value), '1979-05-27', 'nan', '-inf'])}"
    if draw.random() < 0.3:
        return raw("\n".join(rows).encode("utf-8", "surrogatepass"), draw)
    return "\n".join(rows).encode("utf-8", "surrogatepass")


def yaml(content: bytes, draw: random.Random) -> bytes:
    """JSON is YAML; and what JSON has not: references, tags, keys that are lists."""
    if draw.random() < 0.15:
        doubling = "a0: &a0 {k: v}\n" + "".join(
            f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))
        return draw.choice([
            doubling, doubling + "graph: {<<: [*a9, *a9]}", "a: &a [*a]\ngraph: *a", "[" * 20_000,
            f"graph: !!python/object/apply:{CANARY}.run []", f"!!python/module:{CANARY} ''",
            "? [a]\n: b", "- " * 20_000, "a: !!binary x", "a: 2020-99-99", "!!set {a}",
            "a: 1:2:3:4:5", "%YAML 9.9\n---\na: 1", "--- a\n--- b", "a: !!float x",
            "!!omap [a]", "a: " + "9" * 6000, "&" * 4000, "\t- x"]).encode()
    return json_bytes(data(json.loads(content), draw), draw)


def file(path: Path, change: Callable[[bytes, random.Random], bytes], draw: random.Random) -> None:
    """Change a file in place."""
    path.write_bytes(change(path.read_bytes(), draw))


def json_file(content: bytes, draw: random.Random) -> bytes:
    """A JSON file with its values changed."""
    return json_bytes(data(json.loads(content), draw), draw)


def log(change: Callable[[bytes, random.Random], bytes]) -> Callable[
        [bytes, random.Random], bytes]:
    """Lines of JSON, one of them changed."""
    def changed(content: bytes, draw: random.Random) -> bytes:
        rows = content.splitlines()
        at = draw.randrange(len(rows))
        rows[at] = change(rows[at], draw)
        return b"\n".join(rows) + b"\n"
    return changed


def canary(content: bytes, draw: random.Random, suffix: str) -> bytes:
    """A file that names code wherever it has a text, or that is a pickle which calls some."""
    pickled = b"\x80\x02" + PICKLE
    if suffix in (".json", ".yaml"):
        value = json.loads(content)
        named = f"{CANARY}:{draw.choice(['run', 'Layer'])}"
        texts = [path for path in places(value) if isinstance(_at(value, path), str)]
        for path in draw.sample(texts, draw.choice([1, 1, len(texts)])) if texts else ():
            _at(value, path[:-1])[path[-1]] = draw.choice([named, named, CANARY])
        if suffix == ".yaml" and draw.random() < 0.5:
            return json.dumps(value).replace(f'"{named}"', draw.choice([
                f"!!python/object/apply:{CANARY}.run []", f"!!python/name:{CANARY}.run ''",
                f"!!python/module:{CANARY} ''"])).encode()
        return json.dumps(value).encode()
    if suffix == ".npy":
        header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"
        return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + pickled
    if suffix in (".pt", ".npz"):
        file = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
            for name in old.namelist():
                new.writestr(name, pickled if name.endswith(".pkl") else old.read(name))
        return draw.choice([file.getvalue(), pickled])
    return gzip.compress(pickled) if suffix == ".gz" else pickled
