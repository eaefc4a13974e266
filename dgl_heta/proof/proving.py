"""One call of a module, computed with RAF and the plain way, and compared.

All trainers take the same steps and agree after each, so that what one of them cannot do, none
does, and a difference that one finds is an error on all.
"""

from __future__ import annotations

import os
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dgl_heta.comm.collectives import PeerLostError
from dgl_heta.proof import alignment
from dgl_heta.proof.alignment import show
from dgl_heta.proof.comparison import CAUSES, PAGE
from dgl_heta.proof.copies import NotProvedError, copied, noise, perturbed, reached
from dgl_heta.proof.difference import Levels, Limits, relative, worst_by_id
from dgl_heta.proof.gather import (
    CAUSE,
    edges_of,
    gather_edges,
    levels,
    plain_layers,
    row_keys,
    sums_by_id,
)
from dgl_heta.proof.module_call import Call, Given, Inputs, complete
from dgl_heta.proof.outside import Outside
from dgl_heta.proof.replay import Outcome, Reads, apart, gradients, run
from dgl_heta.proof.setting import Instead, Setting
from dgl_heta.raf.chain import walk
from dgl_heta.sampling.blocks import MiniBatch
from dgl_heta.system.nested import Path, items_of

SEEDS = 32
"""Seeds per trainer of the batch that is replayed."""
ROWS = 100_000
"""Input rows per trainer of that batch."""
_DRAWS = "the model draws random numbers other than for dropout"


IN_SINGLE = "compared in single precision, in which less is seen: in double %s"


class _DiffersError(Exception):
    """The ways differ; the text says how."""


class Proof:
    """Proves one call; all trainers make it alike.

    Attributes
    ----------
    single : why it was computed in single precision, in which less is seen; None if it was not.
    """

    single: str | None = None

    def __init__(self, setting: Setting, call: Call) -> None:
        self._setting, self._call = setting, call
        self._reached, self._smaller = list(reached(call.module)), False
        self._outside = Outside(self._reached)
        self._dtypes = {p.dtype for p in call.module.parameters()}

    def verdict(self) -> str | None:
        """Return what differs, or None; the same on all trainers.

        Raises
        ------
        NotProvedError
            It cannot be proved; on all trainers alike.
        """
        try:
            self._prove()
        except _DiffersError as difference:
            return str(difference)
        return None

    def _prove(self) -> None:
        setting, call = self._setting, self._call
        with self._together():
            if call.unknown is not None:
                raise NotProvedError(call.unknown)
            alignment.check_items(call.arguments, setting.known)
            tensors = [(path, tensor, alignment.candidates(path, tensor, call.ids, call.first))
                     for path, tensor in items_of(Tensor, call.arguments)]
        texts: list[str] = []
        with self._together(texts, "input"):
            batch = self._batch()
            self._edges(batch)
            arguments = alignment.agree(setting.group, tensors)
            inputs = Inputs(setting.group, call, self._levels, arguments)
            texts += inputs.texts
        dtype, ready = self._plain_way(inputs.plain, lambda dtype: self._prepared(
            setting.ours(batch), inputs.ours, dtype))
        pairs: list[tuple[str, Tensor, Tensor]] = []
        with self._repeated(inputs.plain, dtype):
            with self._together(texts, "output"):
                # The trainers of a group wait for each other inside.
                ours = self._replay(ready, dtype, "with RAF")
                tokens = setting.chain()
                self._compare_outputs(ours, dtype, pairs, texts)
                plain_grads = self._gradients(self._plain, [p for _, _, p in pairs])
            with self._together(texts, "gradient"):
                our_grads = self._gradients(ours, [o for _, o, _ in pairs], tokens)
                self._compare_gradients(our_grads, plain_grads, dtype, texts)

    @contextmanager
    def _together(self, texts: Sequence[str] = (), kind: str = "",
                  number: Callable[[], int] = lambda: 0) -> Iterator[None]:
        """Fail on all trainers alike: if the body fails on one, if one has `texts` of a `kind`, or
        if `number` is not the same on all."""
        reason = None
        try:
            yield
        except PeerLostError:
            raise
        except NotProvedError as error:
            reason = str(error)
        except Exception as error:  # not of the module: a replay names those itself
            place = traceback.extract_tb(error.__traceback__)[-1]
            file = os.path.basename(place.filename)
            reason = (f"the proof itself failed, at {file}:{place.lineno}: "
                      f"{type(error).__name__}: {error}")
        world, own = self._setting.world, 0 if reason is not None else number()
        failed, differs, most, least = world.all_reduce(torch.tensor(
            [int(reason is not None), int(bool(texts)), own, -own]), "max", CAUSE).tolist()
        if failed:
            reasons = world.all_gather_json(reason, CAUSE)
            raise NotProvedError(next(r for r in reasons if r is not None))
        if most != -least:
            raise NotProvedError(f"{_DRAWS}, and not the same on all trainers")
        if differs:
            rank, text = next((rank, text[0]) for rank, text in enumerate(
                world.all_gather_json(list(texts), CAUSE)) if text)
            raise _DiffersError(
                f"{type(self._call.module).__name__} does not compute with RAF what it computes "
                f"the plain way: on trainer {rank} {text}. Usual causes: {CAUSES[kind]}. See "
                f"{PAGE}; run.prove=off trains without the proof")

    # --- the two batches ------------------------------------------------------------------------

    def _batch(self) -> MiniBatch:
        """The batch to replay: few seeds, and not too many rows on any trainer."""
        setting, most = self._setting, SEEDS
        while True:
            batch = setting.sample(most)
            rows = sum(map(len, levels(batch, setting.types)[0].values()))
            smaller = rows < sum(map(len, self._call.ids[0].values()))
            most_rows, self._smaller = setting.group.all_reduce(
                torch.tensor([rows, smaller]), "max", CAUSE).tolist()
            if most_rows <= ROWS:
                return batch
            if most == 1:
                raise NotProvedError(f"one seed per trainer reaches more than {ROWS} input rows")
            most = max(most // 4, 1)

    def _edges(self, batch: MiniBatch) -> None:
        setting = self._setting
        ids = levels(batch, setting.types)
        keys = row_keys(batch)
        every = gather_edges(setting.group, [edges_of(block, ids[i], keys, setting.relations)
                                             for i, block in enumerate(batch.blocks)])
        layers, plain = plain_layers(setting.relations, setting.types, every, ids[-1],
                                     timed=batch.moments is not None)
        self._levels = Levels(ids, plain, complete(batch, ids))
        self._plain_blocks = setting.plain(layers, plain)

    # --- the two ways ---------------------------------------------------------------------------

    def _plain_way(self, rows: Given, others: Callable[[torch.dtype], Ready]
                   ) -> tuple[torch.dtype, Ready]:
        """Run it the plain way, in fp64 if that works on all trainers, and prepare another way;
        returns the dtype, and what was prepared."""
        reasons: list[NotProvedError] = []
        for dtype in (torch.float64, torch.float32):
            try:
                with self._together(number=lambda: zlib.crc32(repr(self._plain.drawn).encode())):
                    self._plain = self._replay(self._prepared(self._plain_blocks, rows, dtype),
                                               dtype, "on DGL's own blocks")
                    other = others(dtype)
                self.single = str(reasons[0]) if reasons else None
                return dtype, other
            except NotProvedError as reason:
                reasons.append(reason)
        raise reasons[0]

    @contextmanager
    def _repeated(self, rows: Given, dtype: torch.dtype) -> Iterator[None]:
        """For the body a difference is one, unless the plain way differs from itself: by chance, or
        by what the module keeps elsewhere."""
        try:
            yield
        except _DiffersError:
            if self._plain.drawn:
                raise NotProvedError(f"{_DRAWS}, and differs with RAF, maybe for that reason"
                                     ) from None
            with self._together():
                again = self._replay(self._prepared(self._plain_blocks, rows, dtype), dtype, "")
                for path, want in self._plain.outputs.items():
                    if path not in again.outputs or relative(again.outputs[path], want) > (
                            Limits.of(dtype).rows):
                        raise NotProvedError(
                            f"{show(('output', *path))} is another one when "
                            f"{type(self._call.module).__name__} is called again with the same: it "
                            "depends on what changes outside of it (a counter, a file, the time)"
                            ) from None
            raise

    def _prepared(self, other: Instead, rows: Given, dtype: torch.dtype) -> Ready:
        """A copy of the module and its arguments; nothing here waits for another trainer."""
        reads = Reads(dtype)
        module = copied(self._call.module, dtype, self._call.seed, self._setting.shared, reads,
                        self._reached)
        leaves: dict[Path, tuple[np.ndarray, Tensor]] = {}
        replacements = {}
        with torch.inference_mode(False), torch.enable_grad():
            for path, (argument, ids, value) in rows.items():
                if value.is_floating_point():
                    value = (perturbed(value, torch.from_numpy(ids), dtype)
                             if argument.learned and argument.level is not None
                             else value.to(dtype, copy=True))
                    if argument.learned:
                        leaves[path] = ids, value.requires_grad_()
                        value = value.view_as(value)  # may be written to
                elif value.is_inference():
                    value = value.clone()
                replacements[path] = value
            given = alignment.filled(self._call.arguments, replacements, lambda item: item)
            blocks = other(given)
        args, kwargs = (alignment.replaced(given[name], lambda _, x: blocks(x))
                        for name in ("args", "kwargs"))
        return Ready(module, args, kwargs, leaves, reads)

    def _apart(self, dtype: torch.dtype) -> AbstractContextManager[None]:
        return apart(dtype, self._outside, dtype in self._dtypes)

    def _replay(self, ready: Ready, dtype: torch.dtype, where: str) -> Outcome:
        try:
            with self._apart(dtype), self._setting.reading(ready.reads):
                before = self._outside.marks()
                outcome = run(ready.module, ready.args, ready.kwargs, ready.reads)
                outcome.drawn = [[i, *marks] for i, marks in enumerate(zip(
                    before, self._outside.marks())) if marks[0] != marks[1]]
        except (NotProvedError, PeerLostError):
            raise
        except Exception as error:
            smaller = (f" of at most {SEEDS} seeds per trainer, where relations may have no edges "
                       "and types no rows that they have in the whole batch")
            raise NotProvedError(f"the model fails in a replay {where}{smaller * self._smaller}: "
                                 f"{type(error).__name__}: {error}") from error
        outcome.module, outcome.leaves = ready.module, ready.leaves
        return outcome

    # --- what differs ---------------------------------------------------------------------------

    def _compare_outputs(self, ours: Outcome, dtype: torch.dtype,
                         pairs: list[tuple[str, Tensor, Tensor]], texts: list[str]) -> None:
        limit = Limits.of(dtype).rows
        for path, want in self._plain.outputs.items():
            name = show(("output", *path))
            got = ours.outputs.get(path)
            if got is None:
                if self._levels.has(path, want):
                    texts.append(f"{name} is missing with RAF")
                continue
            pair = self._levels.pair(path, got, want)
            if pair is None:
                texts.append(f"{name} has the shape {tuple(got.shape)} with RAF, and "
                             f"{tuple(want.shape)} the plain way")
                continue
            if pair[1].numel():
                pairs.append((name, *pair))
            size = relative(*pair)
            if size > limit:
                where = self._levels.first_difference(ours.trace, self._plain.trace, limit)
                texts.append(f"{name} differs by {size:.1e}" + (
                    f"; the first that differ are {where}" if where else ""))
        if not pairs and not texts:
            raise NotProvedError("the module returned no rows of numbers")
        if pairs and not any(want.isfinite().any() for _, _, want in pairs):
            raise NotProvedError("all outputs are NaN or infinite")
        if not texts and dtype == torch.float64:
            hidden = self._levels.hidden_difference(ours.trace, self._plain.trace, limit)
            if hidden is not None:
                texts.append(f"{hidden}, which the outputs of this batch do not show")

    def _gradients(self, outcome: Outcome, outputs: Sequence[Tensor],
                   tokens: Sequence[Tensor] = ()) -> Gradients:
        assert outcome.module is not None
        leaves = outcome.leaves
        parameters = dict(outcome.module.named_parameters())
        inputs = [*parameters.values(), *(leaf for _, leaf in leaves.values()),
                  *(leaf for _, _, leaf in outcome.reads.leaves)]
        known = len(inputs)
        inputs += tokens[:1]  # so that all links run, on whatever this trainer's rows depend
        seed = self._call.seed + 7919 * (1 + self._setting.group.rank)
        links = self._setting.links
        if tokens:
            links.roots = [*outputs, *tokens[-1:]]
        with self._apart(outputs[0].dtype if outputs else torch.float64), self._setting.reading(
                Reads(torch.float64)):
            grads = gradients([(x, seed + number) for number, x in enumerate(outputs)], inputs,
                              tokens[-1:])
        if tokens and (unused := links.unused_links):
            reached = {id(node.variable) for node in walk(links.roots, unused)
                       if hasattr(node, "variable")}
            grads = [g if id(x) in reached else None for x, g in zip(inputs, grads)]
        dense = [None if g is None else g.to_dense() for g in grads]
        tables: dict[str, list[tuple[np.ndarray, Tensor]]] = {}
        of_inputs = dense[len(parameters):known]
        named = [(self._call.name(path), ids) for path, (ids, _) in leaves.items()]
        named += [(name, ids.cpu().numpy()) for name, ids, _ in outcome.reads.leaves]
        for (name, ids), grad in zip(named, of_inputs):
            if grad is not None:
                tables.setdefault(name, []).append((ids, _flat(grad, len(ids))))
        return Gradients(dict(zip(parameters, dense)), {
            name: (np.concatenate([i for i, _ in pieces]), torch.cat([g for _, g in pieces]))
            for name, pieces in tables.items()})

    def _compare_gradients(self, ours: Gradients, plain: Gradients, dtype: torch.dtype,
                           texts: list[str]) -> None:
        group, limit = self._setting.group, Limits.of(dtype).gradients
        both = torch.stack([torch.stack([_digest(g, self._call.seed + i)
                                         for i, g in enumerate(way.parameters.values())])
                            for way in (ours, plain)]) if ours.parameters else torch.zeros(2, 0, 4)
        both = group.all_reduce(both.double(), cause=CAUSE)
        if not both[1].isfinite().all():
            raise NotProvedError("a gradient is NaN or infinite the plain way, too")
        most = float(both[1, :, 2].max()) if both.shape[1] else 0.0
        for name, got, want in zip(ours.parameters, *both):
            size = float((got - want)[:2].abs().max())
            if self._setting.nones and self._call.complete and bool(got[3]) != bool(want[3]):
                there, lacks = ("with RAF", "the plain way") if got[3] else (
                    "the plain way", "with RAF")
                texts.append(f"the outputs agree, and parameter '{name}' has a gradient {there} "
                             f"and none (None) {lacks}")
                return
            scale = float(want[2]) + 1e-3 * most
            if not size <= limit * scale:
                texts.append(f"the outputs agree, and the gradient of parameter '{name}' differs "
                             f"by {size / max(scale, 1e-30):.1e}")
                return
        for name, (got_rows, want_rows) in sums_by_id(group, [ours.tables, plain.tables]).items():
            size = worst_by_id(got_rows, want_rows)
            if not size <= limit:
                texts.append(f"the outputs agree, and the gradient of the rows of {name} differs "
                             f"by {size:.1e}")
                return


@dataclass
class Ready:
    """A copy that can be run: what it is called with, and what of it are leaves."""

    module: nn.Module
    args: Sequence[Any]
    kwargs: dict[str, Any]
    leaves: dict[Path, tuple[np.ndarray, Tensor]]
    reads: Reads


@dataclass
class Gradients:
    """Gradients of parameters by name, and of rows by what they are rows of."""

    parameters: dict[str, Tensor | None]
    tables: dict[str, tuple[np.ndarray, Tensor]]


def _flat(rows: Tensor, count: int) -> Tensor:
    """(count, numbers of a row)."""
    return rows.reshape(count, rows.numel() // count if count else rows.shape[1:].numel())


def _digest(grad: Tensor | None, seed: int) -> Tensor:
    """Two products of a gradient with fixed numbers, its length, and whether it is there."""
    if grad is None:
        return torch.zeros(4, dtype=torch.float64)
    flat = grad.detach().to("cpu", torch.float64)
    return torch.stack([(flat * noise(seed, flat, flat.dtype)).sum(),
                        (flat * noise(~seed, flat, flat.dtype)).sum(),
                        flat.norm(), flat.new_ones(())])
