"""GraphStorm's own commands on meta-partitions, unmodified: training, models, embeddings."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("dgl")

from tests.support import warm
from tests.support.dist_reference import parts, whole_graph
from tests.support.link_reference import edge_graph
from tests.support.link_reference import parts as edge_parts
from tests.support.link_script import CITES, WRITES
from tests.support.waiting import PATIENCE, PROMPT

RUN = "graphstorm.run"
CONFIG: dict[str, Any] = {
    "version": 1.0,
    "gsf": {
        "basic": {"model_encoder_type": "rgcn", "backend": "gloo"},
        "gnn": {"num_layers": 2, "hidden_size": 8, "fanout": "-1,-1", "eval_fanout": "-1,-1"},
        "hyperparam": {"dropout": 0.0, "lr": 0.01, "num_epochs": 1, "batch_size": 16,
                       "eval_batch_size": 32, "wd_l2norm": 0, "no_validation": False},
        "rgcn": {"num_bases": -1, "use_self_loop": True, "sparse_optimizer_lr": 0.01},
        "node_classification": {
            "target_ntype": "paper", "label_field": "labels", "num_classes": 4,
            "task_type": "node_classification", "eval_metric": ["accuracy"]},
    },
}


def config(directory: Path, graph) -> Path:
    """A file of GraphStorm's, in JSON, which is YAML: features where the graph has some."""
    CONFIG["gsf"]["node_classification"]["node_feat_name"] = [
        f"{t}:feat" for t in graph.ntypes if "feat" in graph.nodes[t].data]
    file = directory / "config.yaml"
    file.write_text(json.dumps(CONFIG))
    return file


LINKS = {
    "task_type": "link_prediction", "eval_metric": ["mrr"], "train_negative_sampler": "joint",
    "train_etype": [",".join(WRITES), ",".join(CITES)], "eval_etype": [",".join(WRITES)],
    "num_negative_edges": 4, "num_negative_edges_eval": 10, "exclude_training_targets": False,
    "lp_decoder_type": "distmult", "gamma": 4.0,
}


REGRESSION = {
    "task_type": "edge_regression", "eval_metric": ["rmse"], "target_etype": [",".join(WRITES)],
    "label_field": "label", "exclude_training_targets": False,
}


def edge_task(directory: Path, graph, task: dict, **basic: object) -> Path:
    """Of a task with edges of two types, which alone have masks."""
    for etype in graph.canonical_etypes:
        data = graph.edges[etype].data
        data["label"] = data["label"].float() / 3
        data["test_mask"] = ~(data["train_mask"] | data["val_mask"])
        for name in () if etype in (WRITES, CITES) else [*data]:
            del data[name]
    gsf = json.loads(json.dumps(CONFIG["gsf"]))
    del gsf["node_classification"]
    gsf["basic"] |= basic
    gsf["hyperparam"]["batch_size"] = 64
    gsf["gnn"]["node_feat_name"] = [
        f"{t}:feat" for t in graph.ntypes if "feat" in graph.nodes[t].data]
    gsf["rgat"] = {"num_heads": 2}
    gsf[task["task_type"]] = task
    file = directory / "config.yaml"
    file.write_text(json.dumps({"version": 1.0, "gsf": gsf}))
    return file


def launch(hosts: int, part_config: Path, module: str, file: Path, *words: object,
           learnable: str = "exact", by: str = "launch") -> str:
    """Run one of GraphStorm's commands on emulated hosts; what was printed."""
    for option, value in itertools.pairwise(words):
        if option == "--save-model-path":  # else its processes make and remove it at once
            Path(str(value)).mkdir()
    package = next(f"{RUN}.gsgnn_{name}" for name in ("emb", "ep", "lp", "np") if name in module)
    command = [warm.python(), "-m", "dgl_heta", by, "--hosts", hosts, "--part-config",
               part_config, "--num-omp-threads", "1", "--stop-after", PATIENCE,
               *(("--set", "partition.method=meta", "--set", f"train.learnable={learnable}")
                 if hosts > 1 else ()), "--",
               "python", "-m", f"{package}.{module}", "--cf", file,
               "--part-config", "{part_config}", "--ip-config", "{ip_config}",
               "--logging-level", "info", *words]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          timeout=PATIENCE + PROMPT, stderr=subprocess.STDOUT, text=True,
                          errors="replace", check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def saved(directory: Path, what: str, ntype: str = "paper") -> dict[int, Tensor]:
    """Rows that GraphStorm has saved for nodes of a type, by node id."""
    return dict(zip(pieces(directory / ntype, f"{what}_nids").tolist(),
                    pieces(directory / ntype, what), strict=True))


def pieces(directory: Path, name: str) -> Tensor:
    """Return the rows that all trainers have saved under a name, joined."""
    return torch.cat([torch.load(f, weights_only=True)
                      for f in sorted(directory.glob(f"{name}-*.pt"))])


def predicted(directory: Path) -> list[tuple[float, ...]]:
    """Source, destination and prediction of edges, sorted by them."""
    saved_in = directory / "_".join(WRITES)
    return sorted(zip(*(pieces(saved_in, name).flatten().tolist()
                        for name in ("src_nids", "dst_nids", "predict")), strict=True))


def model_of(directory: Path) -> dict[str, Tensor]:
    """All parameters and tables of a saved model, by name."""
    epoch = directory / "epoch-0"
    dense = torch.load(epoch / "model.bin", weights_only=True)
    parameters = {f"{part}/{name}": x for part, layers in dense.items()
                  for name, x in layers.items()}
    tables: dict[str, list[Tensor]] = {}
    for file in sorted(epoch.glob("*/sparse_emb_*.pt")):
        tables.setdefault(file.parent.name, []).append(torch.load(file, weights_only=True))
    return parameters | {ntype: torch.cat(rows) for ntype, rows in tables.items()}


@pytest.mark.needs("graphstorm")
@pytest.mark.needs("hosts")
def test_training_saves_a_model_that_plain_graphstorm_infers_the_same_with(tmp_path: Path) -> None:
    """RGCN with tables for the types without features; all nodes' states layer by layer."""
    graph = whole_graph()
    file, meta = config(tmp_path, graph), parts(graph, 2, tmp_path / "meta")
    plain = parts(graph, 1, tmp_path / "plain", "metis")
    model, trained = tmp_path / "model", tmp_path / "trained"
    text = launch(2, meta, "gsgnn_np", file, "--save-model-path", model, "--save-embed-path",
                  trained, "--use-mini-batch-infer", "false")
    assert "not proved" not in text
    ours = launch(2, meta, "np_infer_gnn", file, "--restore-model-path", model / "epoch-0",
                  "--use-mini-batch-infer", "true", "--save-embed-path", tmp_path / "ours",
                  "--save-prediction-path", tmp_path / "our classes")
    theirs = launch(1, plain, "np_infer_gnn", file, "--restore-model-path", model / "epoch-0",
                    "--use-mini-batch-infer", "false", "--save-embed-path", tmp_path / "theirs",
                    "--save-prediction-path", tmp_path / "their classes")
    every, wanted = saved(trained, "embed"), saved(tmp_path / "theirs", "embed")
    assert len(every) == graph.num_nodes("paper")
    assert wanted.keys() == saved(tmp_path / "ours", "embed").keys()
    for rows in (every, saved(tmp_path / "ours", "embed")):
        for node, row in wanted.items():
            torch.testing.assert_close(rows[node], row, rtol=1e-4, atol=1e-5)
    classes = saved(tmp_path / "their classes", "predict")
    for node, row in saved(tmp_path / "our classes", "predict").items():
        torch.testing.assert_close(row, classes[node], rtol=1e-4, atol=1e-5)
    assert [line.rpartition("]")[2].rpartition("|")[2] for line in ours.splitlines()
            if "Test accuracy" in line] == [
        line.rpartition("]")[2].rpartition("|")[2] for line in theirs.splitlines()
        if "Test accuracy" in line]


@pytest.mark.thorough
@pytest.mark.needs("graphstorm")
@pytest.mark.needs("hosts")
def test_training_goes_on_from_a_saved_model_with_attention(tmp_path: Path) -> None:
    graph = whole_graph()
    file, meta = config(tmp_path, graph), parts(graph, 2, tmp_path / "meta")
    model = tmp_path / "model"
    common = ("--model-encoder-type", "hgt", "--num-heads", "2", "--save-model-path")
    launch(2, meta, "gsgnn_np", file, *common, model)
    text = launch(2, meta, "gsgnn_np", file, *common, tmp_path / "again", "--restore-model-path",
                  model / "epoch-0")
    assert "not proved" not in text
    before, after = (torch.load(path / "epoch-0" / "model.bin", weights_only=True)["gnn"]
                     for path in (model, tmp_path / "again"))
    assert before.keys() == after.keys()
    moved = max(float((before[name] - after[name]).abs().max()) for name in before)
    assert 0 < moved < 0.2  # it went on from there, by a few steps of 0.01


@pytest.mark.needs("graphstorm")
@pytest.mark.needs("hosts")
@pytest.mark.thorough
def test_link_prediction_saves_what_plain_graphstorm_computes_from_its_model(tmp_path: Path
                                                                             ) -> None:
    """States of all nodes by the edges with a training mask, which are the targets."""
    graph = edge_graph()
    file = edge_task(tmp_path, graph, LINKS, model_encoder_type="rgat")
    trained = tmp_path / "trained"
    meta = edge_parts(graph, 2, tmp_path / "meta")
    plain = edge_parts(graph, 1, tmp_path / "plain", "metis")
    text = launch(2, meta, "gsgnn_lp", file, "--save-model-path", tmp_path / "model",
                  "--save-embed-path", trained)
    assert "Best Test mrr" in text
    launch(1, plain, "lp_infer_gnn", file, "--restore-model-path",
           tmp_path / "model" / "epoch-0", "--save-embed-path", tmp_path / "theirs")
    for ntype in graph.ntypes:
        got, wanted = (saved(run, "embed", ntype) for run in (trained, tmp_path / "theirs"))
        assert got.keys() == wanted.keys() == {*range(graph.num_nodes(ntype))}
        for node, row in wanted.items():
            torch.testing.assert_close(got[node], row, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.needs("graphstorm")
@pytest.mark.needs("hosts")
def test_edge_regression_predicts_what_plain_graphstorm_does_from_its_model(tmp_path: Path) -> None:
    """Over the whole graph and in mini-batches; states of nodes by the command for these alone."""
    graph = edge_graph()
    file = edge_task(tmp_path, graph, REGRESSION | {"remove_target_edge_type": False})
    meta = edge_parts(graph, 2, tmp_path / "meta")
    plain = edge_parts(graph, 1, tmp_path / "plain", "metis")
    model = ("--restore-model-path", tmp_path / "model" / "epoch-0")
    text = launch(2, meta, "gsgnn_ep", file, "--save-model-path", tmp_path / "model")
    assert "Best Test rmse" in text
    launch(1, plain, "ep_infer_gnn", file, *model, "--use-mini-batch-infer", "false",
           "--save-embed-path", tmp_path / "theirs", "--save-prediction-path", tmp_path / "values")
    wanted = predicted(tmp_path / "values")
    assert len(wanted) == int(graph.edges[WRITES].data["test_mask"].sum())
    for whole in ("false", "true"):
        out = tmp_path / f"values {whole}"
        launch(2, meta, "ep_infer_gnn", file, *model, "--use-mini-batch-infer", whole,
               "--save-prediction-path", out)
        torch.testing.assert_close(torch.tensor(predicted(out)), torch.tensor(wanted), rtol=1e-4,
                                   atol=1e-5)
    launch(2, meta, "gsgnn_node_emb", file, *model, "--use-mini-batch-infer", "true",
           "--save-embed-path", tmp_path / "ours")
    for ntype in ("author", "paper"):
        rows, theirs = (saved(tmp_path / of, "embed", ntype) for of in ("ours", "theirs"))
        assert rows.keys() == theirs.keys() == {*range(graph.num_nodes(ntype))}
        for node, row in theirs.items():
            torch.testing.assert_close(rows[node], row, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.needs("graphstorm")
@pytest.mark.needs("hosts")
def test_training_with_features_of_edges_is_proved(tmp_path: Path) -> None:
    """Of two relations, two for the first; GraphStorm saves no model's encoder of them."""
    graph, names = whole_graph(), {CITES: ["weight", "age"], WRITES: ["weight"]}
    for etype in names:
        for number, name in enumerate(names[etype]):
            graph.edges[etype].data[name] = torch.sin(torch.arange(
                graph.num_edges(etype) * 3).float() * 1.7 + number).view(-1, 3)
    file, meta = config(tmp_path, graph), parts(graph, 2, tmp_path / "meta")
    text = launch(2, meta, "gsgnn_np", file, "--edge-feat-name",
                  *(f"{','.join(e)}:{','.join(of)}" for e, of in names.items()), by="prove")
    assert "proved: " in text


@pytest.mark.thorough
@pytest.mark.needs("graphstorm")
@pytest.mark.needs("hosts")
def test_a_step_on_from_a_model_of_plain_graphstorm_is_plain_graphstorms(tmp_path: Path) -> None:
    """RGAT, with tables of one owner and with copies, whose means are saved. All training nodes are
    in one step, so machines together compute what one does."""
    graph = whole_graph()
    file, meta = config(tmp_path, graph), parts(graph, 2, tmp_path / "meta")
    plain = parts(graph, 1, tmp_path / "plain", "metis")
    common = ("--model-encoder-type", "rgat", "--num-heads", "2", "--batch-size",
              graph.num_nodes("paper"), "--save-model-path")
    go_on = ("--restore-model-path", tmp_path / "first" / "epoch-0")
    launch(1, plain, "gsgnn_np", file, *common, tmp_path / "first")
    launch(1, plain, "gsgnn_np", file, *common, tmp_path / "theirs", *go_on)
    first, wanted = model_of(tmp_path / "first"), model_of(tmp_path / "theirs")
    assert sum(not torch.equal(x, first[name]) for name, x in wanted.items()) > 30
    for learnable in ("exact", "replica"):
        launch(2, meta, "gsgnn_np", file, *common, tmp_path / learnable, *go_on,
               learnable=learnable)
        stepped = model_of(tmp_path / learnable)
        assert stepped.keys() == wanted.keys()
        for name, x in wanted.items():
            if (learnable, name) == ("replica", "author"):  # both machines train a copy
                assert 0 < float((stepped[name] - first[name]).abs().max()) < 0.0101
                continue
            torch.testing.assert_close(stepped[name], x, rtol=1e-4, atol=1e-4)


OPTIONS = {
    "edge_feat_name": ["weight"], "construct_feat_ntype": ["author"], "use_graphbolt": True,
    "use_wholegraph_embed": True, "use_pseudolabel": True,
    "node_lm_configs": [{"lm_type": "bert"}], "distill_lm_configs": [{"lm_type": "bert"}],
    "training_method": {"name": "glem", "kwargs": {}}, "model_encoder_type": "sage",
    "multi_tasks": [{}], "decoder_edge_feat": ["weight"], "lp_edge_weight_for_loss": ["weight"],
    "train_etypes_negative_dstnode": ["hard"], "eval_etypes_negative_dstnode": ["hard"],
    "train_negative_sampler": "all_etype_uniform", "gnn_norm": "batch",
}

READ = """
import json, sys
import dgl_heta
dgl_heta.enable()
from argparse import Namespace
from graphstorm.config import GSConfig
for option, value in json.loads(sys.argv[3]).items():
    config = GSConfig(Namespace(yaml_config_file=sys.argv[1], local_rank=0,
                                part_config=sys.argv[2], logging_level="error"))
    config._model_encoder_type = "hgt"
    setattr(config, "_" + option, value)
    try:
        config.verify_arguments(True)
        print(option, "was taken")
    except dgl_heta.InputError as error:
        print(error)
"""


@pytest.mark.needs("graphstorm")
def test_options_that_cannot_work_are_named_when_they_are_read(tmp_path: Path) -> None:
    graph = whole_graph()
    file, meta = config(tmp_path, graph), parts(graph, 2, tmp_path / "meta")
    done = subprocess.run([sys.executable, "-c", READ, str(file), str(meta), json.dumps(OPTIONS)],
                          capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(OPTIONS)
    for option, line in zip(OPTIONS, lines, strict=True):
        assert line.startswith(f"GraphStorm's {option} ")
        assert " cannot be used on a meta-partitioned graph" in line
