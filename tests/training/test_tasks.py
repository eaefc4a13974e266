"""Tasks: which seeds, which losses and scores, and that link prediction gives no answer away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.errors import InputError
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource, Task
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.settings import TaskSettings, load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training.loop import _check_seeds
from dgl_heta.training.tasks import LinkPrediction, TrainingTask, make_task, resolve
from tests.support.graphs import academic, with_tasks


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("graph") / "store"
    write_store(with_tasks(academic(dense=6)), path)
    return Store(path)


def task(store: Store, *wishes: str) -> TrainingTask:
    return make_task(store, load_settings(overrides=[f"task.{w}" for w in wishes], environ={}))


def test_every_node_of_every_target_is_a_seed_once_an_epoch(store: Store) -> None:
    both = task(store, "targets=paper,author")
    for split in ("train", "val"):
        steps = both.steps(split, 1, 7)
        for ntype in ("paper", "author"):
            mask = np.flatnonzero(store.array(ntype, f"{split}_mask"))
            for workers in (1, 3):
                got = np.concatenate([both.seeds(step, w, workers)[ntype]
                                      for step in steps for w in range(workers)])
                assert sorted(got) == mask.tolist()
        assert max(step.size for step in steps) <= 8  # 7, and rounding


def test_scores_are_what_their_names_say(store: Store) -> None:
    rng = np.random.default_rng(0)
    for wishes, ntype in ((("kind=multilabel", "label=keywords"), "paper"),
                          (("kind=multilabel", "label=some_keywords", "unlabelled=-1"), "paper"),
                          (("kind=regression", "label=citations"), "paper"),
                          (("kind=regression", "label=some_citations"), "paper"), ((), "paper")):
        made = task(store, *wishes)
        outputs, wants, total = [], [], None
        for step in made.steps("train", 0, 10):
            ids = made.seeds(step, 0, 1)[ntype]
            out = torch.from_numpy(rng.standard_normal((len(ids), made.outputs[ntype])))
            _, found = made.loss({ntype: out}, step, 0, 1)
            total = found if total is None else total + found
            outputs.append(out.numpy())
            label = wishes[1].partition("=")[2] if wishes else "label"
            wants.append(store.array(ntype, label)[ids])
        out, want = np.concatenate(outputs), np.concatenate(wants)
        known = np.isfinite(want) & (want >= 0) if made.metric == "micro-F1" else np.isfinite(want)
        assert known.reshape(len(known), -1).any(1).all()  # others are no seeds
        score, loss = made.score(total)
        if made.metric == "accuracy":
            assert score == pytest.approx((out.argmax(1) == want).mean())
        elif made.metric == "R²":
            want = np.where(known, want, np.nan)
            residual = np.nansum((out - want) ** 2, 0)
            spread = np.nansum((want - np.nanmean(want, 0)) ** 2, 0)
            assert score == pytest.approx((1 - residual / spread).mean())
            assert loss == pytest.approx(((out - want) ** 2)[known].mean())
        else:
            out, want = out[known], want[known]
            right = ((out > 0) & (want > 0)).sum()
            assert score == pytest.approx(2 * right / ((out > 0).sum() + (want > 0).sum()))
            assert loss == pytest.approx((np.logaddexp(0, out) - out * want).mean())
    assert np.isnan(made.score(torch.zeros_like(total))).all()


def carried(store: Store, batch, relation: Relation) -> set[tuple[int, int]]:  # type: ignore[no-untyped-def]
    """Pairs (source, destination) that carry messages in a batch by a relation."""
    found = set()
    for block in batch.blocks:
        for edges in block.edges:
            if edges.relation == relation:
                nodes = batch.input_nodes
                rows = np.repeat(np.arange(edges.start, edges.stop), edges.indptr.diff().numpy())
                found |= set(zip(nodes[relation.src][edges.indices.numpy()].tolist(),
                                 nodes[relation.dst][rows].tolist()))
    return found


@pytest.mark.parametrize("fanouts", [[-1, -1], [3, 4]])
def test_no_edge_that_is_asked_for_carries_a_message(store: Store, fanouts: list[int]) -> None:
    links = task(store, "relation=writes", "reverse=rev-writes", "held_out=0.2")
    forward, backward = store.schema.find_relation("writes"), store.schema.find_relation(
        "rev-writes")
    assert isinstance(links, LinkPrediction)
    plan = make_plan(store.schema, links.targets, 2, 1)
    sampler = NeighborSampler(store, SamplingScope.of(plan, 0), fanouts, held_out=links.held_out)
    answers = {}
    for split in ("train", "val", "test"):
        answers[split] = set()
        for step in links.steps(split, 0, 16):
            _, src, dst, _ = links.links(step, step.positions)
            answers[split] |= set(zip(src.tolist(), dst.tolist()))
    assert not answers["train"] & (answers["val"] | answers["test"])
    assert len(answers["val"]) > 10 < len(answers["test"])
    hidden = answers["val"] | answers["test"]
    seen = set()
    for split in ("train", "val"):
        for number, step in enumerate(links.steps(split, 0, 16)):
            _, src, dst, _ = links.links(step, step.positions)
            now = set(zip(src.tolist(), dst.tolist())) | hidden
            batch = sampler.sample(links.seeds(step, 0, 1), None, number, links.without(step))
            there = carried(store, batch, forward)
            back = carried(store, batch, backward)
            assert not there & now
            assert not {(u, v) for v, u in back} & now
            seen |= there
    assert seen, "no message was carried at all"


def test_a_target_without_nodes_to_train_on_is_refused(tmp_path: Path) -> None:
    """Its output would stay as it was drawn, and its scores would choose the best epoch. So would
    what DistMult has for a relation without links."""
    source = with_tasks(academic())
    del source.node_arrays["author"]["train_mask"]
    source.edges[Relation("author", "edits", "paper")] = EdgeArrays(*np.array([[0, 1], [1, 2]]))
    store = stored(source, tmp_path / "store")
    both = task(store, "targets=paper,author")
    engine: Any = SimpleNamespace(task=both, world=Comm(Traffic()),
                                  steps=lambda split: both.steps(split, 0, 9))
    with pytest.raises(InputError, match="nothing to train on for author: no node is in train_mas"):
        _check_seeds(engine)
    table = tmp_path / "links.csv"
    table.write_text("src,dst,split,relation\n0,0,train,author writes paper\n"
                     "1,1,val,author writes paper\n0,1,test,author edits paper\n")
    for decoder in ("dot", "distmult"):  # which has weights for each relation
        engine.task = task(store, 'relation=["writes", "edits"]', f"links={table}",
                           f"decoder={decoder}")
        engine.steps = lambda split, task=engine.task: task.steps(split, 0, 9)
        if decoder == "dot":
            _check_seeds(engine)
    with pytest.raises(InputError, match="for author edits paper: no link is for training"):
        _check_seeds(engine)


def test_nodes_in_two_masks_are_said(tmp_path: Path) -> None:
    source = with_tasks(academic(dense=6))
    assert not task(stored(source, tmp_path / "apart"), "targets=paper").notes
    paper = source.node_arrays["paper"]
    both = np.flatnonzero(paper["train_mask"])[:3]
    paper["test_mask"] = np.isin(np.arange(len(paper["train_mask"])), both)
    (note,) = task(stored(source, tmp_path / "both"), "targets=paper").notes
    assert note.startswith("3 nodes of 'paper' in train_mask and in test_mask, too: a score of")


def test_gradients_of_links_are_the_same_digits_each_time(store: Store, two_threads: None) -> None:
    links = task(store, "relation=writes", "reverse=rev-writes", "negatives=300")
    step = links.steps("train", 0, 1024)[0]
    rows = {t: torch.randn(len(ids), 64) for t, ids in links.seeds(step, 0, 1).items()}

    def gradients() -> list[torch.Tensor]:
        outputs = {t: x.clone().requires_grad_() for t, x in rows.items()}
        return list(torch.autograd.grad(links.loss(outputs, step, 0, 1)[0], outputs.values()))

    first = gradients()
    for _ in range(20):
        assert all(map(torch.equal, gradients(), first))


@pytest.mark.parametrize(("destinations", "said"), [
    (np.arange(400), True), (np.arange(800) % 400, True), (np.arange(200), True),
    (np.random.default_rng(0).integers(0, 400, 1200), False),
    (np.minimum(np.random.default_rng(0).geometric(0.02, 1200), 400) - 1, False)])
def test_links_that_the_missing_edge_gives_away_are_said(
        tmp_path: Path, destinations: np.ndarray, said: bool) -> None:
    edges = EdgeArrays(np.random.default_rng(1).integers(0, 50, len(destinations)), destinations)
    found = stored(GraphSource("g", {"a": 50, "b": 400}, {Relation("a", "r", "b"): edges}),
                   tmp_path / "store")
    notes = task(found, "relation=r").notes
    assert [note.startswith("destinations of 'a r b' have much the same") for note in notes] == (
        [True] if said else [])


def stored(source: GraphSource, path: Path) -> Store:
    write_store(source, path)
    return Store(path)


def test_what_to_train_for_must_be_said_and_exist(store: Store) -> None:
    schema, known = store.schema, store.manifest.task
    for wishes, message in (
        ({"kind": "link"}, "needs task.relation"),
        ({"kind": "link", "relation": []}, "needs task.relation"),
        ({"relation": "writes", "reverse": "cites"}, "does not go from"),
        ({"reverse": "writes"}, "is for link prediction"),
        ({"targets": ["papr"]}, "did you mean 'paper'"),
    ):
        with pytest.raises(InputError, match=message):
            resolve(TaskSettings(**wishes), known, schema)
    with pytest.raises(InputError, match="name the node types by task.targets"):
        resolve(TaskSettings(), None, schema)
    assert resolve(TaskSettings(relation="writes", reverse=""), known, schema).kind == "link"
    for wishes, message in (
        (["val_time=2026-03-01"], "task.val_time is about times, and the graph has none"),
        (["targets=institution"], "'institution' has no array 'label'"),
        (["kind=multilabel"], r"int64\[60\], but a task of kind 'multilabel' needs"),
        (["label=citations"], "needs whole numbers"),
    ):
        with pytest.raises(InputError, match=message):
            task(store, *wishes)


def test_a_graph_can_come_with_another_kind_of_task(tmp_path: Path) -> None:
    source = replace(with_tasks(academic()), task=Task("paper", 2, "citations", "regression"))
    write_store(source, tmp_path / "store")
    store = Store(tmp_path / "store")
    assert store.manifest.task == source.task
    known = Task("paper", 2, unlabelled=-1)  # which says nothing of numbers, or of authors
    for wishes, unlabelled in (({}, -1), ({"targets": ["author", "paper"]}, -1),
                               ({"targets": ["author"]}, None), ({"kind": "regression"}, None)):
        made = resolve(TaskSettings(**wishes), known, store.schema)
        assert made.unlabelled == unlabelled
    made = make_task(store, load_settings(environ={}))
    assert (made.metric, made.outputs) == ("R²", {"paper": 2})
    for wrong, message in ((Task("paper", 2, "citations"), "needs whole numbers"),
                           (Task("paper", 2, "label", "multilabel"), "zeros and ones"),
                           (Task("paper", 2, "label", "ranking"), "known are classification")):
        with pytest.raises(InputError, match=message):
            write_store(replace(source, task=wrong), tmp_path / "wrong")


def test_models_that_a_plan_does_not_fit_are_refused_before_workers_start(store: Store) -> None:
    from dgl_heta.hooks.manager import Plugins
    from dgl_heta.training.setup import check

    plugins = Plugins(guests=False)
    full = make_plan(store.schema, "paper", 2, 2)
    for wishes, message in (
        (["model.name=sehgnn"], "unknown model 'sehgnn'.*pip install dgl-heta-precomputed"),
        (["model.name=hgt", "model.heads=3"], "do not divide"),
        (["model.name=rgat", "train.seed_states=false", "model.self_loop=false"],
         "reads the destination's state"),
        (["model.layers=3"], "they must be equal"),
        (["task.targets=author"], "the task is about author"),
    ):
        with pytest.raises(InputError, match=message):
            check(store, full, load_settings(overrides=wishes, environ={}), plugins)
