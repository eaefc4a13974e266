"""The arguments of DGL's `partition_graph`: which values are right, and which have an effect.

One set of rules for both entry points, `dgl_heta.partition_graph` and DGL's own name while dgl-heta
is enabled: an argument is honoured, or refused, or said once to have no effect (docs/switching.md).
"""

from __future__ import annotations

import logging
import numbers
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.schema import Schema

log = logging.getLogger("dgl_heta")

OBJECTIVES = ("cut", "vol")
FORMATS = ("coo", "csr", "csc")

_STORED = ("store_eids", "store_inner_node", "store_inner_edge")
CONVERSION = (*_STORED, "n_jobs")
"""Arguments of `dgl_partition_to_graphbolt`, which DGL takes by `partition_graph`, too; `n_jobs`
from 2.4 on."""

FORMER = ("reshuffle",)
"""Arguments that DGL had once and now ignores; scripts still give them."""


@dataclass(frozen=True)
class ScriptArguments:
    """Arguments of `dgl.distributed.partition_graph` that only some backends have a use for.

    A backend says by their names which it honours (`PartitionBackend.honours`); the others have
    their defaults here, which are DGL's. Values are right by DGL's rules
    (:func:`script_arguments`).
    """

    num_hops: int = 1
    """Hops of halo nodes around a partition's own."""
    balance_ntypes: Any = None
    """A vector of kinds of nodes, or node type → such a vector; as the script gave it."""
    balance_edges: bool = False
    num_trainers_per_machine: int = 1
    objtype: str = "cut"
    """The objective of METIS: `cut` or `vol`."""
    graph_formats: Any = None
    """`coo`, `csr` or `csc`, or a list of these."""
    use_graphbolt: bool = False
    further: Mapping[str, Any] = field(default_factory=dict)
    """Arguments beyond these, by name; nothing is known of their values."""


class BackendTraits(Protocol):
    """The members of a partition backend that a request for it depends on; see
    :class:`dgl_heta.PartitionBackend`."""

    name: str
    needs_target: bool
    decides_parts: bool
    honours: frozenset[str]


_DEFAULTS = {each.name: each.default for each in fields(ScriptArguments) if each.name != "further"}
_WHY = {
    "balance_ntypes": "it is for METIS",
    "balance_edges": "it is for METIS",
    "objtype": "it is for METIS",
    "num_trainers_per_machine": "trainers of a machine share all that is on it, and node data have "
                                "no trainer_id",
    "graph_formats": "edges are stored by destination, relation by relation",
    **dict.fromkeys(CONVERSION, "it is for GraphBolt's form"),
    **dict.fromkeys(FORMER, "DGL has it no longer"),
}
_said: set[str] = set()


def warn_once(message: str) -> None:
    """Log a warning, unless this process has had the same one."""
    if message not in _said:
        _said.add(message)
        log.warning(message)


def forget_warnings() -> None:
    """Let every warning be said again."""
    _said.clear()


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments of unknown names.

    Raises
    ------
    InputError
        One is not known to `what`, a method; the message has the most similar of those that are.
    """
    known = list(known)
    if unknown := sorted(set(given) - set(known)):
        names = listing(repr(name) for name in unknown)
        raise InputError(f"{what} takes no argument {names}{nearest(unknown[0], known)}; see "
                         "'Arguments of partition_graph' in docs/switching.md")


def script_arguments(backend: BackendTraits, given: Mapping[str, Any], schema: Schema,
                     what: str) -> ScriptArguments:
    """The arguments of a script by name, checked: what the backend honours, else the defaults.

    Right values that are not DGL's default and that the backend does not honour have no effect,
    which is said once, in one line.

    Parameters
    ----------
    what : the method, as the user has selected it: "part_method='meta'".

    Raises
    ------
    InputError
        A wrong value, an argument that is not known, or `use_graphbolt` with a backend that does
        not honour it.
    """
    further = {name: value for name, value in given.items()
               if name not in _DEFAULTS and (name in backend.honours or name not in _WHY)}
    check_names(what, further, [*_DEFAULTS, *_WHY, *backend.honours])
    values = {name: _CHECKS[name](name, value) if name in _CHECKS else value
              for name, value in given.items() if name not in further}
    check_balance(values.get("balance_ntypes"), schema)
    if values.get("use_graphbolt") and "use_graphbolt" not in backend.honours:
        raise InputError(f"use_graphbolt=True cannot be used with {what}: its parts have no form "
                         "for GraphBolt, trainers sample from the relation store; leave it out, "
                         "in dgl.distributed.initialize as well")
    idle = [name for name, value in values.items()
            if name not in backend.honours and name != "num_hops" and not _usual(name, value)]
    if idle:
        reasons = "; ".join(f"{name} ({_WHY[name]})" for name in idle)
        warn_once(f"{what} has no use for what a script says by {reasons}: no effect")
    return ScriptArguments(**{name: value for name, value in values.items()
                              if name in _DEFAULTS and name in backend.honours}, further=further)


def _usual(name: str, value: Any) -> bool:
    """Return whether a value asks for nothing: it is DGL's default, or the like."""
    if name == "balance_ntypes":
        return value is None
    if name == "graph_formats":
        return not value
    return bool(value == _DEFAULTS.get(name, 1 if name == "n_jobs" else False))


def shown(value: Any) -> str:
    """A value of any kind in a message, in one short line."""
    return " ".join(reprlib.repr(value).split())


def whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number that a user gave, or an :class:`InputError`."""
    number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not number or value < least:
        raise InputError(f"{name} is {shown(value)}; it must be a whole number, {least} or more")
    return int(value)


def flag(name: str, value: Any) -> bool:
    """True or False (or 1 or 0) that a user gave, or an :class:`InputError`."""
    if not isinstance(value, np.bool_ | numbers.Integral) or value not in (0, 1):
        raise InputError(f"{name} is {shown(value)}; it must be True or False")
    return bool(value)


def _objective(name: str, value: Any) -> str:
    if not isinstance(value, str) or value not in OBJECTIVES:
        raise InputError(f"{name} is {shown(value)}; it must be 'cut' or 'vol'")
    return value


def _formats(name: str, value: Any) -> Any:
    names = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(names, list | tuple) or not all(
            isinstance(n, str) and n in FORMATS for n in names):
        raise InputError(f"{name} is {shown(value)}; it must be 'coo', 'csr' or 'csc', or a list "
                         "of these")
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "num_hops": whole, "num_trainers_per_machine": whole, "balance_edges": flag,
    "use_graphbolt": flag, "objtype": _objective, "graph_formats": _formats,
    **dict.fromkeys(_STORED, flag), "n_jobs": whole,
}


def check_balance(value: Any, schema: Schema) -> None:
    """Refuse what DGL could not balance by: see `balance_ntypes` in its documentation.

    Raises
    ------
    InputError
        Not a vector with a number for each node, nor node type → such a vector, of whole numbers
        0 … k - 1.
    """
    counts = schema.node_counts
    if value is None:
        return
    if not isinstance(value, Mapping):
        _check_kinds("balance_ntypes", value, sum(counts.values()))
    elif len(counts) == 1 == len(schema.relations):  # DGL does not look at the key
        if len(value) != 1:
            raise InputError(f"balance_ntypes has {len(value)} entries; the graph has one node "
                             "type, so it must be one vector")
        _check_kinds("balance_ntypes", next(iter(value.values())), sum(counts.values()))
    else:
        for ntype, kinds in value.items():
            schema.check_node_type(ntype, "a key of balance_ntypes")
            different = _check_kinds(f"balance_ntypes['{ntype}']", kinds, counts[ntype])
            if not np.array_equal(different, np.arange(len(different))):
                raise InputError(f"balance_ntypes['{ntype}'] has the values "
                                 f"{shown(different.tolist())}; they must be 0 … k - 1, each "
                                 "of them there")


def _check_kinds(what: str, value: Any, count: int) -> np.ndarray:
    """The different values of a vector with one for each of `count` nodes."""
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):
        array = np.empty((), object)
    if array.ndim == 1 and len(array) == count and array.dtype.kind in "biuf":
        kinds = np.unique(array)
        if array.dtype.kind != "f" or (kinds == np.floor(kinds)).all():
            return kinds
    raise InputError(f"{what} is {shown(value)}; it must be a vector of {count} whole numbers, one "
                     "for each node")
