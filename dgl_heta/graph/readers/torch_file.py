"""Read a tensor from a file that `torch.save` wrote, without unpickling and without torch.

Such a file is a zip archive: the numbers are plain bytes, and a small pickle says how they
make up the tensor. `torch.load` runs that pickle. `weights_only=True` restricts it, but has
had holes through which a file could run code (CVE-2025-32434, in every torch before 2.6).
Here the pickle's opcodes are walked as data: only those that describe one tensor are known,
names in it are compared with a fixed list and never imported, and anything else is an error.
"""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dgl_heta.errors import InputError

_STORAGES = {
    "DoubleStorage": "f8", "FloatStorage": "f4", "HalfStorage": "f2", "BFloat16Storage": "u2",
    "LongStorage": "i8", "IntStorage": "i4", "ShortStorage": "i2", "CharStorage": "i1",
    "ByteStorage": "u1", "BoolStorage": "?",
}
_PUSH = {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (),
              "EMPTY_DICT": None}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = {"PROTO", "FRAME", "STOP"}
_MARK = object()


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
    """Something that does not belong to a plain tensor."""


def read_tensor(path: Path) -> np.ndarray:
    """The tensor in `path` as a read-only array; bfloat16 becomes float32 (exactly).

    Raises
    ------
    InputError
        The file is not a zip archive of `torch.save` (the format before torch 1.6 is not
        read), or holds anything but one dense tensor.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive)
    except (_Unknown, zipfile.BadZipFile, OSError, EOFError, ValueError, KeyError, IndexError,
            TypeError, NotImplementedError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"cannot read {path} as one dense tensor saved by torch.save: {reason}; save it again "
            "as .npy (format: numpy), which is read without restrictions"
        ) from None


def _read(archive: zipfile.ZipFile) -> np.ndarray:
    names = archive.namelist()
    found = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(found) != 1:
        raise _Unknown("no data.pkl in the archive")
    prefix = found[0].removesuffix("data.pkl")
    tensor = _describe(archive.read(found[0]))
    big = False  # files of older torch do not say
    if prefix + "byteorder" in names:
        big = archive.read(prefix + "byteorder") == b"big"
    storage = tensor.storage
    dtype = np.dtype((">" if big else "<") + _STORAGES[storage.kind])
    member = f"{prefix}data/{storage.key}"
    size = archive.getinfo(member).file_size
    if size != storage.numel * dtype.itemsize:
        raise _Unknown(f"{size} bytes for {storage.numel} numbers of {dtype.itemsize} bytes")
    values = np.frombuffer(archive.read(member), dtype)
    values = values.astype(dtype.newbyteorder("="), copy=False)
    if storage.kind == "BFloat16Storage":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return _strided(values, tensor)


def _strided(values: np.ndarray, tensor: _Tensor) -> np.ndarray:
    numbers = (tensor.offset, *tensor.shape, *tensor.strides)
    if len(tensor.shape) != len(tensor.strides) or min(numbers) < 0:
        raise _Unknown(f"shape {tensor.shape} with strides {tensor.strides}")
    if 0 in tensor.shape:
        return np.empty(tensor.shape, values.dtype)
    last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides))
    if last >= len(values):
        raise _Unknown(f"shape {tensor.shape} reaches beyond the {len(values)} stored numbers")
    return np.lib.stride_tricks.as_strided(
        values[tensor.offset:], tensor.shape,
        tuple(s * values.itemsize for s in tensor.strides), writeable=False)


def _describe(pickled: bytes) -> _Tensor:
    """Walk the opcodes, building the description of the tensor that they would build."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(pickled):
        name = opcode.name
        if name in _PUSH:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            size = _TUPLES[name]
            stack[-size:] = [tuple(stack[-size:])]
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "TUPLE":
            mark = max(i for i, item in enumerate(stack) if item is _MARK)
            stack[mark:] = [tuple(stack[mark + 1:])]
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
            stack.append(_Name(f"{module}.{attribute}"))
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_apply(function, arguments))
        elif name not in _IGNORED:
            raise _Unknown(f"it holds more than a tensor (opcode {name})")
    if len(stack) != 1 or not isinstance(stack[0], _Tensor):
        raise _Unknown("it holds something else than a tensor")
    return stack[0]


def _storage(reference: Any) -> _Storage:
    tag, kind, key, _device, numel = reference
    name = kind.text.removeprefix("torch.") if isinstance(kind, _Name) else ""
    if tag != "storage" or name not in _STORAGES:
        raise _Unknown(f"its numbers are of kind {name or kind!r}")
    if not isinstance(key, str) or not key.isdigit() or not _is_int(numel):
        raise _Unknown("its storage is not described as torch.save does")
    return _Storage(name, key, numel)


def _apply(function: Any, arguments: Any) -> Any:
    """What calling `function` would describe; nothing is called."""
    name = function.text if isinstance(function, _Name) else repr(function)
    if name == "torch._utils._rebuild_tensor_v2":
        storage, offset, shape, strides, *_ = arguments
        if isinstance(storage, _Storage) and all(map(_is_int, (offset, *shape, *strides))):
            return _Tensor(storage, offset, shape, strides)
    elif name == "torch._utils._rebuild_parameter" and isinstance(arguments[0], _Tensor):
        return arguments[0]
    elif name == "collections.OrderedDict" and arguments == ():
        return None
    raise _Unknown(f"it asks to call {name}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
