"""GraphBolt's pipelines on a meta-partition: `datapipe.sample_neighbor` samples by relation.

All ranks step together. In each step a rank takes a mini-batch of its own item sampler and tells
its seeds to the ranks of its group; each samples its part's relations for the seeds of all, and
hands out blocks on the mini-batch. Stages before and after stay GraphBolt's own, in this process
and on its thread: every rank must come to the exchanges in one order.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from typing import Any

import torch
from dgl import graphbolt as gb
from torch.utils.data import IterDataPipe, get_worker_info

from dgl_heta.distdgl.loading.epochs import Epochs
from dgl_heta.distdgl.loading.group_sampling import sample_own_seeds
from dgl_heta.distdgl.loading.loader_arguments import LoaderOptions
from dgl_heta.distdgl.loading.raf_loader import RafLoader
from dgl_heta.distdgl.loading.script_sampler import Fanouts, layers_of
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.session import current
from dgl_heta.distdgl.state import selected, state_of
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import HetaError, InputError
from dgl_heta.graphbolt.raf_graph import GraphBoltSession, RafGraph, open_graph
from dgl_heta.graphbolt.raf_minibatch import RafMiniBatch, halves, own_seeds, seeds_of
from dgl_heta.system.patching import patch_all

_MORE, _LAST, _NONE = 2, 1, 0


class GraphBoltLoader(RafLoader):
    """Samples for one `sample_neighbor` of a pipeline.

    Parameters
    ----------
    session : of the data set's partition.
    fanouts : per layer, input layer first, relation → neighbours (-1 for all).

    Attributes
    ----------
    seeds : of this rank in the pass that is under way, so far.

    Raises
    ------
    InputError
        More layers than the partition has hops.
    """

    kind = 2

    def __init__(self, session: GraphBoltSession, fanouts: list[dict[Any, int]]) -> None:
        # How many steps there are is known at the end of a pass: the item sampler has the seeds.
        super().__init__(session, Fanouts(layers_of("sample_neighbor", fanouts, session)),
                         LoaderOptions(), 0)
        if self._source.ahead:
            session.say("batches of GraphBolt pipelines are sampled when they are asked for, not "
                        "ahead of time")
        self._steps = 1
        self._thread = threading.get_ident()

    def __len__(self) -> int:
        """Return the steps of the last pass; 1 in the first, of which nobody knows."""
        return self._steps

    def batches(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of a pass over the item sampler's mini-batches; all ranks have as many.

        Raises
        ------
        InputError
            They have not, and the last batches of those with fewer cannot be divided; or a batch
            cannot be sampled for.
        HetaError
            Another process or thread than the script's own asks for them.
        """
        if get_worker_info() is not None or threading.get_ident() != self._thread:
            refuse("pipeline on another thread")
        self._begin_pass()
        self.seeds = 0
        state_of(Epochs).started(self, 0)
        # One batch ahead: the others must know in time that this rank has its last one.
        ahead = next(items, None)
        while True:
            batch, ahead = ahead, None if ahead is None else next(items, None)
            batch, ahead = self._together(batch, ahead)
            if batch is None:
                break
            self._take_step()
            self._sample(batch)
            yield batch
        self._steps = max(self._step, 1)
        self._end_pass()
        state_of(Epochs).ended(self, self.seeds)

    def _together(self, batch: Any, ahead: Any) -> tuple[Any, Any]:
        """Return this rank's batch of a step, and what follows; None at the end on all ranks.

        A rank that has no batch for the next step, as another has, gives its last one in halves.
        """
        session = self._session
        count = 0 if batch is None else sum(map(len, own_seeds(session, batch).values()))
        state = _NONE if batch is None else _LAST if ahead is None else _MORE
        world = session.world
        every = world.all_gather_rows(torch.tensor([[state, count]]), [1] * world.size,
                                      "control").tolist()
        most = max(state for state, _ in every)
        for rank, (its, size) in enumerate(every):
            if most and (size == 0 or (its < most and size < 2)):
                raise InputError(
                    f"rank {rank} has no seed left for step {self._step + 1 + (size > 0)}, and "
                    "others have: every rank needs a seed in each step; use "
                    "gb.DistributedItemSampler, or smaller batches")
        return halves(batch) if state < most else (batch, ahead)

    def _sample(self, minibatch: Any) -> None:
        session = self._session
        if session.group.size > 1 and session.order.passed and not session.parallels:
            raise HetaError("the model is not in DistributedDataParallel, so its gradients are of "
                            "this part's relations alone; wrap it, and learnable embeddings with "
                            "it, on all ranks")
        seeds = own_seeds(session, minibatch)
        device = next(iter(seeds_of(minibatch).values())).device
        self.seeds += sum(map(len, seeds.values()))
        inputs, _, blocks = self._hand_out(sample_own_seeds(
            session, self.sampler, seeds, self._key()))
        if minibatch.seed_nodes is None:
            minibatch.compacted_seeds = {t: torch.arange(len(ids), device=device)
                                         for t, ids in seeds.items()}
        # A field of gb.MiniBatch, which would hide RafMiniBatch's refusal.
        vars(minibatch).pop("sampled_subgraphs", None)
        # The item sampler has made the object, and stages before have put their data on it.
        minibatch.__class__ = RafMiniBatch
        minibatch.input_nodes = {t: ids.to(device) for t, ids in inputs.items()}
        minibatch.heta_blocks = [block.to(device) for block in blocks]


class Sampled(IterDataPipe):  # type: ignore[misc]
    """The stage of a pipeline that samples on a meta-partition."""

    loader: GraphBoltLoader | None = None

    def __init__(self, datapipe: Any, loader: GraphBoltLoader) -> None:
        super().__init__()
        self.datapipe, self.loader = datapipe, loader

    def __iter__(self) -> Iterator[Any]:
        if self.loader is None:
            raise HetaError("a pipeline of a meta-partition cannot be copied or pickled")
        yield from self.loader.batches(iter(self.datapipe))

    def __getstate__(self) -> Any:
        """Return the stage without the loader: walks over a pipeline pickle its stages."""
        return {"datapipe": self.datapipe}


def _fanouts(graph: RafGraph, given: Any) -> list[dict[Any, int]]:
    """Return per layer relation → neighbours, from fanouts by the numbers of relations.

    Raises
    ------
    InputError
        One fanout for all relations together, which none of the parts can draw by itself.
    """
    layers, count = [], len(graph.relations)
    for fanout in given:
        numbers = [int(n) for n in (fanout.flatten() if isinstance(fanout, torch.Tensor)
                                    else [fanout])]
        if len(numbers) == 1 and (numbers[0] == -1 or count == 1):
            numbers *= count
        if len(numbers) != count:
            refuse("fanout of all relations together", numbers=numbers, count=count)
        layers.append({tuple(r): n for r, n in zip(graph.relations, numbers)})
    return layers


def _check_upstream(datapipe: Any) -> None:
    """Check that stages before the sampling give nodes.

    Raises
    ------
    InputError
        A stage before draws negatives, or the items are pairs of nodes.
    """
    while datapipe is not None:
        names = getattr(datapipe, "_names", None) or ()
        if isinstance(datapipe, gb.NegativeSampler) or (
                isinstance(datapipe, gb.ItemSampler) and "node_pairs" in names):
            refuse("links in a pipeline")
        datapipe = getattr(datapipe, "datapipe", None)


def _init_sampler(original: Any) -> Any:
    def __init__(self: Any, datapipe: Any, *args: Any, **kwargs: Any) -> None:
        graph = next((x for x in (*args, *kwargs.values()) if isinstance(x, RafGraph)), None)
        named = selected().partition.graphbolt
        if graph is None and named is None:
            original(self, datapipe, *args, **kwargs)
            return
        if graph is None or type(self) is not gb.NeighborSampler:
            refuse("another sampler of GraphBolt", sampler=type(self).__name__)
        given = inspect.signature(gb.NeighborSampler.sampling_stages).bind(
            self, datapipe, *args, **kwargs).arguments
        for name, plain in (("replace", False), ("prob_name", None), ("deduplicate", True),
                            ("sampler", graph.sample_neighbors)):
            if given[name] != plain:
                refuse("options of sample_neighbor", option=name, value=given[name])
        _check_upstream(datapipe)
        loader = GraphBoltLoader(graph.session, _fanouts(graph, given["fanouts"]))
        gb.MiniBatchTransformer.__init__(self, Sampled(datapipe, loader))
    return __init__


def _init_loader(original: Any) -> Any:
    def __init__(self: Any, datapipe: Any, num_workers: int = 0, *args: Any, **kwargs: Any
                 ) -> None:
        session = current()
        if not isinstance(session, GraphBoltSession):
            original(self, datapipe, num_workers, *args, **kwargs)
            return
        from torchdata.dataloader2 import graph as pipelines  # DGL 2.1.0 has it, later ones do not

        if not pipelines.find_dps(pipelines.traverse_dps(datapipe), Sampled):
            original(self, datapipe, num_workers, *args, **kwargs)
            return
        if num_workers:
            session.say("no sampling workers are started: on a meta-partition each rank samples "
                        "from its own disk, when it takes a batch")
        # A stage on a thread would sample when it likes, and exchanges of two ranks would cross.
        # As GraphBolt does: ranks take turns in the batches of an ItemSampler, which is the same on
        # all of them. No thread is put before copy_to.
        datapipe = datapipe.mark_end()
        stages = pipelines.traverse_dps(datapipe)
        for items in pipelines.find_dps(stages, gb.ItemSampler):
            stages = pipelines.replace_dp(stages, items, items.sharding_filter())
        torch.utils.data.DataLoader.__init__(self, datapipe, batch_size=None, num_workers=0)
    return __init__


def _load(original: Any) -> Any:
    def load(self: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = original(self, *args, **kwargs)
        named = selected().partition.graphbolt
        if named is not None:
            self._graph = open_graph(named, self._graph)
        return loaded
    return load


PATCHES = (
    *patch_all(homes("OnDiskDataset", "load"), _load,
               "the partition of `partition.graphbolt` in the place of the graph"),
    *patch_all(homes("samplers of GraphBolt", "__init__"), _init_sampler,
               "sample by plan; refuse other samplers then"),
    *patch_all(homes("DataLoader of GraphBolt", "__init__"), _init_loader,
               "no threads and workers between ranks' exchanges"),
)
