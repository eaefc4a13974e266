"""Models by name: a provider's, `module:attribute`, or a file's, `./mine.py:Net`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from torch import nn

from dgl_heta.errors import InputError, nearest
from dgl_heta.hooks.protocols import ModelProvider
from dgl_heta.models.hgnn import HGNN
from dgl_heta.models.spec import ModelSpec
from dgl_heta.system.memory import no_memory

if TYPE_CHECKING:
    from dgl_heta.hooks.manager import Plugins


class BlockModel(ModelProvider):
    """A provider of models that are layers of one class between projections and heads; `reads` as
    for :class:`ModelProvider`."""

    def __init__(self, name: str, layer: Callable[[ModelSpec], nn.Module],
                 reads: Collection[str] | None = None) -> None:
        self.name, self._layer, self.reads = name, layer, reads

    def build(self, spec: ModelSpec) -> nn.Module:
        return HGNN(spec, self._layer)


def find_model(plugins: Plugins, name: str) -> ModelProvider:
    """A model by the name of its provider, by `module:attribute` or by `FILE.py:attribute`.

    The attribute is a provider, or what makes a layer from a :class:`ModelSpec`, as a subclass
    of :class:`HGNNLayer` does. Who calls this has the name from the user, never from a file that
    was read.

    Raises
    ------
    InputError
        There is no such provider, module, file or attribute.
    """
    if ":" not in name:
        provider: ModelProvider = plugins.get("model", name)
        return provider
    origin, _, attribute = name.rpartition(":")
    try:
        module = _of_file(Path(origin)) if origin.endswith(".py") else _of_name(origin)
        chosen = getattr(module, attribute, None) if attribute else None
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # of the user's code, which runs when it is imported
        if no_memory(error):
            raise
        raise InputError(f"model.name '{name}' cannot be imported: {_reason(error)}") from None
    if chosen is None:
        raise InputError(f"model.name '{name}': {origin} has no '{attribute}'"
                         + nearest(attribute, vars(module)))
    return chosen if hasattr(chosen, "build") else BlockModel(name, chosen)


def _reason(error: BaseException) -> str:
    """Return why an import failed, with file and line where there are any."""
    text = str(error) or type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}, line {error.lineno})"
    if isinstance(error, ImportError):
        return text
    frames = [f for f in traceback.extract_tb(error.__traceback__)
              if f.filename not in (__file__, importlib.__file__)
              and not f.filename.startswith("<")]
    own = [f for f in frames if "site-packages" not in f.filename
           and not f.filename.startswith(sysconfig.get_path("stdlib"))]
    last = (own or frames)[-1:]
    where = "".join(f" ({frame.filename}, line {frame.lineno})" for frame in last)
    return f"{type(error).__name__}: {text}{where}"


def _of_name(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a module beside the data, as for `python -m`
    return importlib.import_module(name)


def _of_file(path: Path) -> ModuleType:
    """A module of a file, once a process; what lies beside it can be imported, as for a script."""
    path = path.resolve()
    name = f"dgl_heta_model_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    if not path.is_file():
        raise InputError(f"model.name: there is no file {path}")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
