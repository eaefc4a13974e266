"""Read files that `torch.save` wrote, without unpickling and without torch.

Such a file is a zip archive: the numbers are plain bytes, and a small pickle says how they
make up the tensor. `torch.load` runs that pickle. `weights_only=True` restricts it, but has
had holes through which a file could run code (CVE-2025-32434, in every torch before 2.6).
Here the pickle's opcodes are walked as data: those that describe tensors and containers of them
are known, names in it are compared with a fixed list and never imported, and nothing is called.
"""

from __future__ import annotations

import contextlib
import math
import pickletools
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dgl_heta.errors import InputError, quoted

_STORAGES = {
    "DoubleStorage": "f8", "FloatStorage": "f4", "HalfStorage": "f2", "BFloat16Storage": "u2",
    "LongStorage": "i8", "IntStorage": "i4", "ShortStorage": "i2", "CharStorage": "i1",
    "ByteStorage": "u1", "BoolStorage": "?",
}
_PUSH = {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINFLOAT",
         "BINBYTES", "SHORT_BINBYTES"}
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict, "EMPTY_LIST": list}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = {"PROTO", "FRAME", "STOP"}
_NUMPY = ("numpy.core.multiarray.", "numpy._core.multiarray.")
_MOST_STEPS = 1 << 22
"""Opcodes of a pickle, at most; reading as many takes seconds."""
_MOST_DIMENSIONS = 32
_MAPPED = 1 << 28
"""Bytes of numbers from which on they are read where they lie, and not into memory."""
_REPEATED = 1 << 20
"""Numbers of a tensor that repeats what is stored (strides of 0), at most."""


@dataclass(eq=False)
class SavedObject:
    """An object of a class that the file names: what it would be made from, and not the object.

    Attributes
    ----------
    kind : `module.name` of the class or function.
    arguments : what it would be called with.
    state : what it would be given then, attributes by name as a rule.
    """

    kind: str
    arguments: Any = ()
    state: Any = None


class _Name(NamedTuple):
    """A global that the pickle mentions. It is only ever compared."""

    text: str


class _Storage(NamedTuple):
    kind: str
    key: str
    numel: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Unknown(Exception):
    """Something that is not as torch.save writes it."""


def read_tensor(path: Path) -> np.ndarray:
    """The tensor in `path` as a read-only array; bfloat16 becomes float32 (exactly).

    Raises
    ------
    InputError
        The file is not a zip archive of `torch.save` (the format before torch 1.6 is not
        read), or holds anything but one dense tensor.
    """
    with _errors(path, "one dense tensor saved by torch.save", "save it again as .npy (format: "
                 "numpy), which is read without restrictions"), _Archive(path) as archive:
        described = archive.describe()
        if isinstance(described, SavedObject):
            raise _Unknown(f"it asks to call {described.kind}")
        if not isinstance(described, _Tensor):
            raise _Unknown("it holds something else than a tensor")
        return archive.array(described)


def read_saved(path: str | Path) -> Any:
    """Read as data what `torch.save` wrote: nothing in the file is called or imported.

    Numbers, texts, tuples, lists and dicts are themselves, tensors are read-only arrays as
    :func:`read_tensor` gives them, NumPy's arrays and scalars of numbers are arrays and numbers,
    and any other object is a :class:`SavedObject`. Containers may hold each other in circles, as
    the saved ones do.

    Raises
    ------
    InputError
        The file is not a zip archive of `torch.save`, or is damaged.
    """
    with _errors(Path(path), "a file saved by torch.save", "save dicts, lists and tensors by "
                 "torch.save (of a HeteroData its to_dict())"), _Archive(Path(path)) as archive:
        return archive.with_arrays(archive.describe())


@contextlib.contextmanager
def _errors(path: Path, what: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise InputError(f"cannot read {path} as {what}: it is nested too deeply; {remedy}"
                         ) from None
    except (_Unknown, zipfile.BadZipFile, OSError, EOFError, ValueError, KeyError, IndexError,
            TypeError, AttributeError, NotImplementedError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot read {path} as {what}: {reason}; {remedy}") from None


class _Archive:
    """The zip archive of `torch.save`: a pickle, and a member of plain numbers per storage."""

    def __init__(self, path: Path) -> None:
        self._path, self._zip = path, zipfile.ZipFile(path)
        self._storages: dict[tuple[str, str], np.ndarray] = {}
        self._spare = 0  # bytes that arrays in the pickle may have together
        names = self._zip.namelist()
        # torch.save does not compress, so members cannot be larger than the file.
        members, size = self._zip.infolist(), path.stat().st_size
        if any(m.compress_type != zipfile.ZIP_STORED for m in members) or (
                sum(m.file_size for m in members) > size):
            self._zip.close()
            raise _Unknown("its members are compressed or overlap, as torch.save writes none")
        pickles = [n for n in names if n.count("/") == 1 and n.endswith("/data.pkl")]
        if len(pickles) != 1:
            self._zip.close()
            raise _Unknown("no data.pkl in the archive")
        self._pickle, self._prefix = pickles[0], pickles[0].removesuffix("data.pkl")
        self._big = False  # files of older torch do not say
        if self._prefix + "byteorder" in names:
            self._big = self._zip.read(self._prefix + "byteorder") == b"big"

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def describe(self) -> Any:
        pickled = self._zip.read(self._pickle)
        self._spare = len(pickled)
        return _describe(pickled)

    def array(self, tensor: _Tensor) -> np.ndarray:
        storage = tensor.storage
        dtype = np.dtype((">" if self._big else "<") + _STORAGES[storage.kind])
        member = f"{self._prefix}data/{storage.key}"
        size = self._zip.getinfo(member).file_size
        if size != storage.numel * dtype.itemsize:
            raise _Unknown(f"{size} bytes for {storage.numel} numbers of {dtype.itemsize} bytes")
        key = storage.kind, member
        if key not in self._storages:
            values = (self._mapped(member, dtype) if size >= _MAPPED else
                      np.frombuffer(self._zip.read(member), dtype))
            values = values.astype(dtype.newbyteorder("="), copy=False)
            if storage.kind == "BFloat16Storage":
                values = (values.astype(np.uint32) << 16).view(np.float32)
            self._storages[key] = values
        return _strided(self._storages[key], tensor)

    def _mapped(self, member: str, dtype: np.dtype) -> np.ndarray:
        """The numbers of a member where they lie; its checksum is not compared."""
        entry = self._zip.getinfo(member)
        with self._path.open("rb") as file:
            file.seek(entry.header_offset + 26)  # of the lengths of name and extra field
            lengths = struct.unpack("<HH", file.read(4))
        return np.memmap(self._path, dtype, "r", entry.header_offset + 30 + sum(lengths),
                         (entry.file_size // dtype.itemsize,))

    def with_arrays(self, described: Any) -> Any:
        """The same with arrays for descriptions of tensors, in place where that can be."""
        done: dict[int, Any] = {}

        def arrays(value: Any) -> Any:
            if id(value) in done:
                return done[id(value)]
            if isinstance(value, _Tensor):
                done[id(value)] = self.array(value)
            elif type(value) is tuple:
                done[id(value)] = tuple(map(arrays, value))
            elif isinstance(value, SavedObject) and value.kind.startswith(_NUMPY):
                done[id(value)] = self._of_numpy(value)
            elif isinstance(value, dict | list | SavedObject):
                done[id(value)] = value
                if isinstance(value, dict):
                    value.update({key: arrays(item) for key, item in value.items()})
                elif isinstance(value, list):
                    value[:] = map(arrays, value)
                else:
                    value.arguments, value.state = arrays(value.arguments), arrays(value.state)
            else:
                return value
            return done[id(value)]

        return arrays(described)

    def _of_numpy(self, saved: SavedObject) -> Any:
        """An array or a scalar of NumPy from what it would be made of; itself if it has no numbers.
        """
        shape: tuple[Any, ...] = ()
        fortran = False
        if saved.kind.endswith(".scalar"):
            dtype, data = saved.arguments
        elif saved.kind.endswith("._reconstruct") and isinstance(saved.state, tuple):
            _, shape, dtype, fortran, data = saved.state
        else:
            return saved
        if not (isinstance(dtype, SavedObject) and dtype.kind == "numpy.dtype"
                and re.fullmatch("[biuf][1248]", str(dtype.arguments[0]))):
            return saved
        swapped = isinstance(dtype.state, tuple) and dtype.state[1] == ">"
        if len(shape) > _MOST_DIMENSIONS or not all(_is_int(n) and n >= 0 for n in shape):
            raise _Unknown("an array of NumPy has no shape")
        if isinstance(data, SavedObject):  # bytes in protocol 2
            data = (data.arguments[0].encode("latin-1") if data.kind == "_codecs.encode" else b"")
        self._spare -= len(data)
        if self._spare < 0:
            raise _Unknown("arrays of NumPy repeat each other's numbers")
        values = np.frombuffer(data, (">" if swapped else "<") + dtype.arguments[0])
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        if saved.kind.endswith(".scalar"):
            return values.reshape(()).item()
        return values.reshape(shape, order="F" if fortran else "C")


def _strided(values: np.ndarray, tensor: _Tensor) -> np.ndarray:
    numbers = (tensor.offset, *tensor.shape, *tensor.strides)
    if len(tensor.shape) != len(tensor.strides) or min(numbers) < 0:
        raise _Unknown(f"shape {quoted(tensor.shape)} with strides {quoted(tensor.strides)}")
    if 0 in tensor.shape:
        return np.empty(tensor.shape, values.dtype)
    if math.prod(tensor.shape) > max(len(values), _REPEATED):
        raise _Unknown(f"shape {quoted(tensor.shape)} repeats the {len(values)} stored numbers")
    last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides))
    if last >= len(values):
        raise _Unknown(f"shape {quoted(tensor.shape)} reaches beyond the {len(values)} stored "
                       "numbers")
    return np.lib.stride_tricks.as_strided(
        values[tensor.offset:], tensor.shape,
        tuple(s * values.itemsize for s in tensor.strides), writeable=False)


_MOST_IN_KEY = 8  # an edge type has three


def _is_key(key: Any) -> bool:
    return isinstance(key, str | int | float | bool | SavedObject | None)


# One branch per opcode of pickle, and a table of functions would hide their common stack.
def _describe(pickled: bytes) -> Any:  # noqa: C901, PLR0912, PLR0915
    """Walk the opcodes, building descriptions of what they would build.

    Each takes a time that does not depend on those before it, and there is a limit to their number.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    argument: Any
    for steps, (opcode, argument, _) in enumerate(pickletools.genops(pickled)):
        if steps > _MOST_STEPS:
            raise _Unknown(f"its pickle has more than {_MOST_STEPS:,} steps; keep long lists as "
                           "tensors")
        name = opcode.name
        if name in _PUSH:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in _TUPLES:
            size = _TUPLES[name]
            stack[-size:] = [tuple(stack[-size:])]
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(_from_mark(stack, marks)))
        elif name in ("SETITEM", "SETITEMS"):
            items = (_from_mark(stack, marks) if name == "SETITEMS"
                     else [stack.pop(-2), stack.pop()])
            keys = items[::2]
            # Others, such as tuples of tuples, could take for ever to be hashed.
            if not all(_is_key(key) or (isinstance(key, tuple) and len(key) <= _MOST_IN_KEY
                                        and all(map(_is_key, key))) for key in keys):
                raise _Unknown("it has keys that are neither texts, numbers nor a few of these")
            if (target := _target(stack[-1], dict)) is not None:
                target.update(zip(keys, items[1::2]))
        elif name in ("APPEND", "APPENDS"):
            items = _from_mark(stack, marks) if name == "APPENDS" else [stack.pop()]
            if (target := _target(stack[-1], list)) is not None:
                target.extend(items)
        elif name == "EMPTY_SET":
            stack.append(SavedObject("builtins.set"))
        elif name == "ADDITEMS":
            _from_mark(stack, marks)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "GLOBAL":
            stack.append(_Name(argument.replace(" ", ".")))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            if not (isinstance(module, str) and isinstance(attribute, str)):
                raise _Unknown("it names something by what is no text")
            stack.append(_Name(f"{module}.{attribute}"))
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = stack.pop(), stack.pop()
            stack.append(_apply(function, arguments))
        elif name == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], SavedObject):
                stack[-1].state = state
            elif not isinstance(stack[-1], dict):  # of which it has attributes: left out
                raise _Unknown(f"it gives attributes to {type(stack[-1]).__name__}")
        elif name not in _IGNORED:
            raise _Unknown(f"it holds more than is known here (opcode {name})")
    if len(stack) != 1 or marks:
        raise _Unknown("its pickle is not as torch.save writes it")
    return stack[0]


def _from_mark(stack: list[Any], marks: list[int]) -> list[Any]:
    """Take what lies above the last mark."""
    mark = marks.pop()
    items = stack[mark:]
    del stack[mark:]
    return items


def _target(value: Any, kind: type) -> Any:
    """The container that items go into; None for an object, of which they are left out."""
    if isinstance(value, SavedObject):
        return None
    if not isinstance(value, kind):
        raise _Unknown(f"it puts items into {type(value).__name__}")
    return value


def _storage(reference: Any) -> _Storage:
    tag, kind, key, _device, numel = reference
    name = kind.text.removeprefix("torch.") if isinstance(kind, _Name) else ""
    if not isinstance(tag, str) or tag != "storage" or name not in _STORAGES:
        raise _Unknown(f"its numbers are of kind {name or type(kind).__name__}")
    if not isinstance(key, str) or not key.isdigit() or not _is_int(numel):
        raise _Unknown("its storage is not described as torch.save does")
    return _Storage(name, key, numel)


def _apply(function: Any, arguments: Any) -> Any:
    """Return a description of what calling `function` would give; nothing is called."""
    name = function.text if isinstance(function, _Name) else type(function).__name__
    if name == "torch._utils._rebuild_tensor_v2":
        storage, offset, shape, strides = arguments[:4]
        notes = any(arguments[6:])  # that numbers stand for others: is_neg, is_conj
        if isinstance(storage, _Storage) and len(shape) <= _MOST_DIMENSIONS >= len(strides) and (
                not notes and all(map(_is_int, (offset, *shape, *strides)))):
            return _Tensor(storage, offset, shape, strides)
    elif name == "torch._utils._rebuild_parameter" and isinstance(arguments[0], _Tensor):
        return arguments[0]
    elif name in ("collections.OrderedDict", "collections.defaultdict"):
        return {}  # items follow
    elif isinstance(function, _Name):
        return SavedObject(name, arguments)
    raise _Unknown(f"it asks to call {name}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
