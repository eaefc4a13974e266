"""`dgl-heta catgnn train`: parts trained in turn, averaged, judged on the whole graph."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from dgl_heta import EdgeArrays, GraphSource, InputError, Relation, Task
from dgl_heta.hooks.manager import Plugins
from dgl_heta.partition.request import make_request
from dgl_heta.store import write_store
from tests.support.needs import lacking

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.needs("dgl")
if not lacking("dgl"):
    import dgl
    import dgl.distributed
    import torch
    from dgl.nn.pytorch import GraphConv, SAGEConv, SGConv
    from dgl_heta_catgnn import Communities, Spring
    from dgl_heta_catgnn.training.batches import FullBatch, make_batches
    from dgl_heta_catgnn.training.evaluation import evaluate
    from dgl_heta_catgnn.training.job import TrainRequest, TrainSettings, train_graph
    from dgl_heta_catgnn.training.local import load_part
    from dgl_heta_catgnn.training.models import MODELS, ModelShape, build
    from dgl_heta_catgnn.training.parts import TrainingParts, prepare
    from dgl_heta_catgnn.training.turns import TrainChoices, Turns, _seed
    from safetensors.torch import load_file

    from dgl_heta.comm.collectives import Comm, Traffic


def graph(**options) -> GraphSource:
    return Communities().load(nodes=600, mixed=0.05, train=0.5, **options)


def as_dgl(source: GraphSource):
    """The whole graph, without self-loops, in DGL."""
    ((src, dst),) = next(iter(source.edges.values())).chunks(10**6)
    whole = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=600)
    whole.ndata.update({k: torch.from_numpy(v) for k, v in source.node_arrays["node"].items()})
    return whole


def cut(source, out, parts=4, hops=1, method="spring"):
    """Parts on the disk: DistDGL's, and those for training."""
    backend = Spring() if method == "spring" else Plugins(guests=False).get(
        "partition backend", method)
    script = {"num_hops": hops} if "num_hops" in backend.honours else {}
    request = make_request(backend, source.schema(), parts, script=script)
    written = backend.partition(source, request, out / "parts")
    (out / "training").mkdir()
    return written, prepare(written.part_config, out / "training")


def train(request, tmp_path, **settings):
    """A training on workers, its summary and the model."""
    summary = train_graph(request, TrainSettings(**settings), Plugins(guests=False))
    return summary, load_file(tmp_path / request.run_dir / "model.safetensors")


@pytest.mark.usefixtures("warm_workers")
def test_the_result_does_not_depend_on_the_number_of_workers(tmp_path):
    """Four parts; sampled mini-batches with dropout, and numbers of steps that differ."""
    written, _ = cut(graph(), tmp_path)
    runs = []
    for workers in (1, 2, 4):
        request = TrainRequest(str(written.part_config), "gcn", workers=workers, epochs=5,
                               sync_every=2, run_dir=tmp_path / f"run-{workers}")
        runs.append(train(request, tmp_path, dtype="float64", batch_size=32, hidden=16))
    for summary, weights in runs[1:]:
        assert summary["steps"] == runs[0][0]["steps"]
        assert summary["test_acc"] == runs[0][0]["test_acc"]
        for name, value in runs[0][1].items():
            torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-12)
    assert runs[0][0]["metrics"][-1]["loss"] < runs[0][0]["metrics"][0]["loss"]
    assert runs[0][0]["bytes_sent_per_epoch"] == 0
    size = 8 * sum(value.numel() for value in runs[0][1].values())
    per_round = 2 * size * (1 - 1 / runs[-1][0]["workers"])  # epochs 2, 4 and 5
    assert runs[-1][0]["bytes_sent_per_epoch"] == pytest.approx(3 * per_round / 5, rel=0.25)


def test_without_validation_nodes_the_last_model_is_kept(tmp_path):
    source = graph()
    arrays = next(iter(source.node_arrays.values()))
    arrays["test_mask"], arrays["val_mask"] = arrays["val_mask"] | arrays["test_mask"], (
        np.zeros_like(arrays["val_mask"]))
    written, _ = cut(source, tmp_path, parts=2)
    request = TrainRequest(str(written.part_config), "gcn", workers=1, epochs=3,
                           run_dir=tmp_path / "run")
    summary, _ = train(request, tmp_path, hidden=8)
    assert summary["val_acc"] is None
    assert summary["best_epoch"] == 3
    assert summary["test_acc"] == summary["last_test_acc"] > 0


def test_the_average_is_weighted_by_training_nodes_and_moments_are_the_parts_own(tmp_path):
    """Against a loop of its own in plain PyTorch, one optimizer object for each part."""
    _, parts = cut(graph(), tmp_path, parts=3)
    shape = ModelShape(32, 8, 8, dropout=0)
    choices = TrainChoices("sage", shape, FullBatch, 4, 2, dtype=torch.float64)
    turns = Turns(parts, choices, Comm(Traffic()))
    averaged = {k: v.clone() for k, v in turns.state.items()}
    list(turns.rounds())

    models = [build("sage", shape).double() for _ in range(3)]
    optimizers = [torch.optim.Adam(m.parameters(), 0.01) for m in models]
    local = [load_part(parts, i, loops=False, dtype=torch.float64).graph for i in range(3)]
    weights = [int(part.ndata["train"].sum()) for part in local]
    assert len(set(weights)) > 1
    for _ in range(2):
        for net, optimizer, part in zip(models, optimizers, local):
            net.load_state_dict(averaged)
            for _ in range(2):
                out, mask = net(part, part.ndata["feat"]), part.ndata["train"]
                loss = torch.nn.functional.cross_entropy(out[mask], part.ndata["label"][mask])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        averaged = {k: sum(w * m.state_dict()[k] for w, m in zip(weights, models)) / sum(weights)
                    for k in averaged}
    for name, value in averaged.items():
        torch.testing.assert_close(turns.state[name], value, rtol=0, atol=1e-13)


@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "sgc", "ngnn"])
def test_the_averaged_model_is_judged_as_on_the_whole_graph(model, tmp_path):
    """Part by part, layer by layer: what DGL gives on the graph in one piece."""
    source = graph(noise=1.0)
    written, parts = cut(source, tmp_path)
    turns = Turns(parts, TrainChoices(model, ModelShape(32, 16, 8), FullBatch, 3, lr=0.1,
                                      dtype=torch.float64), Comm(Traffic()))
    list(turns.rounds())
    net, whole = turns.averaged(), as_dgl(source)
    degree = whole.in_degrees() + 1.0
    whole = dgl.add_self_loop(whole) if net.loops else whole
    whole.ndata.update({"in_norm": degree.double().rsqrt(), "out_norm": degree.double().rsqrt(),
                        "in_degree": whole.in_degrees()})
    right = net(whole, whole.ndata["feat"].double()).argmax(1) == whole.ndata["label"]
    wanted = {split: float(right[whole.ndata[f"{split}_mask"]].double().mean())
              for split in ("train", "val", "test")}
    assert evaluate(parts, net, turns.world) == pytest.approx(wanted, abs=1e-12)
    assert wanted["test"] > 0.2
    if model == "gcn":
        plain = [GraphConv(32, 16).double(), GraphConv(16, 8).double()]
        for layer, own in zip(plain, net.layers):
            layer.load_state_dict(own.conv.state_dict())
        states = plain[1](whole, torch.relu(plain[0](whole, whole.ndata["feat"].double())))
        torch.testing.assert_close(net(whole, whole.ndata["feat"].double()), states)
    if model == "sgc":
        other = SGConv(32, 8, 2).double()
        other.fc.load_state_dict(net.layers[1].linear.state_dict())
        torch.testing.assert_close(net(whole, whole.ndata["feat"].double()),
                                   other(whole, whole.ndata["feat"].double()))


def test_sampled_batches_of_gcn_are_scaled_to_all_neighbours(tmp_path):
    """With all neighbours a mini-batch gives what the part gives; with few, the right scale."""
    _, parts = cut(graph(), tmp_path, parts=2)
    part = load_part(parts, 0, loops=True, dtype=torch.float64)
    net = build("gcn", ModelShape(32, 16, 8, dropout=0)).double()
    wanted = net(part.graph, part.graph.ndata["feat"])
    (blocks,) = make_batches(None, False, 10**6, [-1, -1]).batches(
        part.graph, np.random.default_rng(0))
    torch.testing.assert_close(net(blocks, blocks[0].srcdata["feat"]),
                               wanted[blocks[-1].dstdata[dgl.NID]])
    ones = torch.ones(part.graph.num_nodes(), 1, dtype=torch.float64)
    (blocks,) = make_batches(None, False, 10**6, [3, 3]).batches(
        part.graph, np.random.default_rng(0))
    hop = GraphConv(1, 1, norm="none", weight=False, bias=False)
    from dgl_heta_catgnn.training.models import edge_weights

    few = hop(blocks[1], ones[:blocks[1].num_src_nodes()], edge_weight=edge_weights(blocks[1]))
    all_of_them = hop(part.graph, ones, edge_weight=edge_weights(part.graph))
    assert few.mean() == pytest.approx(all_of_them[part.train].mean().item(), rel=0.1)


@pytest.mark.parametrize("method", ["spring", "metis"])
def test_neighbour_lists_are_whole_with_a_hop_and_torn_without(method, tmp_path):
    source = graph()
    written, parts = cut(source, tmp_path, method=method)
    whole, original = as_dgl(source), written.nodes["node"]
    pairs: dict[tuple[int, int], int] = {}
    for index in range(4):
        part = load_part(parts, index, loops=False)
        ids = original[part.nodes]
        np.testing.assert_array_equal(part.graph.in_degrees()[:part.own],
                                      whole.in_degrees(torch.from_numpy(ids[:part.own])))
        src, dst = (ids[ends.numpy()] for ends in part.graph.edges())
        assert whole.has_edges_between(torch.from_numpy(src), torch.from_numpy(dst)).all()
        # The halo nodes' edges back to the part's own are there: an edge is in both parts.
        assert {*zip(src.tolist(), dst.tolist())} == {*zip(dst.tolist(), src.tolist())}
        assert len({*zip(src.tolist(), dst.tolist())}) == len(src)
        torn = load_part(parts, index, loops=False, full=False)
        src, dst = (original[torn.nodes][ends.numpy()].tolist() for ends in torn.graph.edges())
        for pair in zip(src, dst):
            pairs[pair] = pairs.get(pair, 0) + 1
    src, dst = (ends.tolist() for ends in whole.edges())
    assert pairs == dict.fromkeys(zip(src, dst), 1)  # each edge in one part alone


def test_the_command_trains_a_heterogeneous_graph_as_one(tmp_path, heta_catgnn):
    """Parts by METIS; features of types side by side, with a column that says the type."""
    rng, papers = np.random.default_rng(0), 200
    author, paper = rng.integers(0, 50, 800), rng.integers(0, papers, 800)
    label = np.arange(papers) % 2
    source = GraphSource(
        "two", {"paper": papers, "author": 50},
        {Relation("author", "wrote", "paper"): EdgeArrays(author, paper),
         Relation("paper", "by", "author"): EdgeArrays(paper, author)},
        {"paper": {"feat": np.stack([label, 1 - label], 1).astype(np.float32), "label": label,
                   "train_mask": np.arange(papers) < 150, "test_mask": np.arange(papers) >= 150}},
        Task("paper", 2))
    backend = Plugins(guests=False).get("partition backend", "metis")
    written = backend.partition(source, make_request(backend, source.schema(), 2),
                                tmp_path / "metis")
    done = heta_catgnn("train", written.part_config, "--model", "sage", "--epochs", 30,
                       "--full-batch", "--json", "--run-dir", tmp_path / "run",
                       "--set", "plugins.catgnn.dropout=0")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["method"], summary["parts"], summary["workers"]) == ("metis", 2, 1)
    assert summary["last_test_acc"] > 0.9
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 30
    again = heta_catgnn("train", written.part_config, "--run-dir", tmp_path / "run")
    assert (again.returncode, "holds a run already" in again.stderr) == (2, True)


@pytest.mark.usefixtures("warm_workers")
def test_labels_are_those_of_the_graphs_task(tmp_path):
    """Beside others that are named label; one number stands for no label."""
    source = graph()
    arrays = source.node_arrays["node"]
    arrays["kind"] = np.where(np.arange(600) < 100, 99, arrays["label"])
    arrays["label"] = np.arange(600) % 50
    source.task = Task("node", 8, "kind", unlabelled=99)
    write_store(source, tmp_path / "store")
    request = TrainRequest(str(tmp_path / "store"), "gcn", "metis", epochs=1,
                           run_dir=tmp_path / "run")
    _, weights = train(request, tmp_path, hidden=4)
    assert weights["layers.1.conv.bias"].shape == (8,)
    source.task = Task("node", 1, "label", "regression")
    write_store(source, tmp_path / "years")
    with pytest.raises(InputError, match="task is regression of node by label.*dgl-heta train"):
        train(TrainRequest(str(tmp_path / "years"), run_dir=tmp_path / "other"), tmp_path)


def test_features_of_another_name_are_features(tmp_path, caplog):
    """A type's only matrix; of two none is, which is said."""
    source = graph()
    arrays = source.node_arrays["node"]
    arrays["embedding"] = arrays.pop("feat")
    written, parts = cut(source, tmp_path / "one", parts=1)
    np.testing.assert_array_equal(parts.array("feat"), arrays["embedding"][written.nodes["node"]])
    arrays["other"] = arrays["embedding"]
    assert not caplog.text
    _, parts = cut(source, tmp_path / "two", parts=1)
    assert parts.width == 1
    assert "none of embedding, other is named feat" in caplog.text


def test_what_is_not_finite_is_refused(tmp_path):
    """Features, also of parts that DGL wrote, and a training that diverged."""
    source, shape = graph(), ModelShape(32, 8, 8, dropout=0)
    _, parts = cut(source, tmp_path, parts=1)
    turns = Turns(parts, TrainChoices("sage", shape, FullBatch, 3, lr=1e36), Comm(Traffic()))
    with pytest.raises(InputError, match=r"the loss is .* 2: .* diverged; lower plugins"):
        list(turns.rounds())
    source.node_arrays["node"]["feat"][7, 2] = np.nan
    with pytest.raises(InputError, match=r"'feat' of node type 'node' .* first in row 7;"):
        cut(source, tmp_path / "other")
    dgl.distributed.partition_graph(as_dgl(source), "dgls", 1, str(tmp_path / "dgls"))
    with pytest.raises(InputError, match=r"'feat' of node type '_N' .* first in row 7;"):
        prepare(tmp_path / "dgls/dgls.json", tmp_path / "training")


def test_a_damaged_store_is_named_before_it_is_partitioned(tmp_path):
    write_store(graph(), tmp_path / "store")
    file = tmp_path / "store/nodes/0-node/0-feat.npy"
    data = file.read_bytes()
    file.write_bytes(data[:400] + bytes(4) + data[404:])
    request = TrainRequest(str(tmp_path / "store"), method="metis", run_dir=tmp_path / "run")
    with pytest.raises(InputError, match="0-feat.npy was edited or damaged"):
        train(request, tmp_path)


def test_what_is_wrong_is_said_with_what_is_right(tmp_path):
    written, _ = cut(graph(), tmp_path, parts=2)
    config, registry = str(written.part_config), Plugins(guests=False)
    for request, message in (
            (TrainRequest(config, model="saga"), "unknown model 'saga'; known are: gat, gcn, ngnn, "
             "sage, sgc, or module:attribute; did you mean 'sage'"),
            (TrainRequest(config, workers=3), "--workers is 3, but there are 2 parts"),
            (TrainRequest(config, parts=2), "has parts already; leave it out"),
            (TrainRequest(config, method="metis"), "has parts already; leave it out"),
            (TrainRequest(config, hops=2), "--hops is 2, but the parts have 1 hop of"),
            (TrainRequest(config, seed=-1), "--seed is -1; it must be 0 or more"),
            (TrainRequest(config, "torch.nn:Linear"), "called with one argument, a ModelShape"),
            (TrainRequest(config, epochs=0), "--epochs is 0; it must be 1 or more"),
            (TrainRequest(config, target="paper"), "'paper' has no label and train_mask"),
            (TrainRequest(config, batches="json:JSONDecoder"), "is no PartBatches"),
            (TrainRequest(str(tmp_path / "none")), "is no file, directory or data set")):
        with pytest.raises(InputError, match=message):
            train_graph(TrainRequest(**{**vars(request), "run_dir": tmp_path / "run"}),
                        TrainSettings(), registry)
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())


def test_a_damaged_file_of_the_parts_is_named_before_it_is_used(tmp_path):
    _, parts = cut(graph(), tmp_path, parts=2)

    def read():
        opened = TrainingParts.open(parts.directory)
        return [load_part(opened, part, loops=False) for part in range(2)]

    read()
    files = sorted(parts.directory.rglob("*.*"))
    assert {str(file.relative_to(parts.directory)) for file in files} == {
        "parts.json", *(f"{name}.npy" for name in (
            "feat", "label", "split", "in_degree", "out_degree", "part-0/nodes", "part-0/src",
            "part-0/dst", "part-1/nodes", "part-1/src", "part-1/dst"))}
    for file in files:
        data = file.read_bytes()
        for damaged in (data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], data[:-9]):
            file.write_bytes(damaged)
            with pytest.raises(InputError, match=f"{file.name} (is|was edited or) damaged"):
                read()
        file.write_bytes(data)
    read()


@pytest.mark.parametrize("fanouts", [[-5, 3], [0, 0], [1, 2, 3]])
def test_fanouts_are_refused_before_parts_are_made(fanouts):
    with pytest.raises(InputError, match="fanouts is .* for each of 2 layers"):
        train_graph(TrainRequest("none"), TrainSettings(fanouts=fanouts), Plugins(guests=False))


def test_parts_of_two_hops_are_not_said_to_have_one(tmp_path):
    written, _ = cut(graph(), tmp_path, hops=2)
    request = TrainRequest(str(written.part_config), epochs=1, hops=1, run_dir=tmp_path / "run")
    with pytest.raises(InputError, match="--hops is 1, but the parts have 2 hops"):
        train(request, tmp_path)
    summary, _ = train(TrainRequest(**{**vars(request), "hops": None}), tmp_path)
    assert summary["hops"] == 2


def test_a_module_in_the_working_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "beside_the_data.py").write_text("from dgl_heta_catgnn.training.models import Sage")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path])
    assert build("beside_the_data:Sage", ModelShape(5, 8, 3)).layers


def test_the_models_are_those_of_the_paper():
    assert set(MODELS) == {"sage", "gcn", "gat", "sgc", "ngnn"}
    shape = ModelShape(5, 8, 3, layers=3)
    extra = {name: build(name, shape) for name in ("sage", "ngnn")}
    assert sum(p.numel() for p in extra["ngnn"].parameters()) == sum(
        p.numel() for p in extra["sage"].parameters()) + 2 * (8 * 8 + 8)
    assert all(isinstance(layer.conv, SAGEConv) for layer in extra["sage"].layers)


@pytest.mark.parametrize("example", ["cluster_gcn:ClusterGCN", "graph_saint:GraphSaint"])
def test_the_examples_of_algorithms_learn(example, tmp_path, monkeypatch):
    """As modules of one's own; each epoch's batches are subgraphs, drawn by part and epoch."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    _, parts = cut(graph(noise=1.0), tmp_path, parts=2)
    turns = Turns(parts, TrainChoices(
        "sage", ModelShape(32, 16, 8, dropout=0), lambda: make_batches(example, False, 1, [1]), 15),
        Comm(Traffic()))
    rounds = list(turns.rounds())
    assert rounds[-1].steps >= 2
    accuracy = evaluate(parts, turns.averaged(), turns.world)
    assert accuracy["test"] > 0.6
    part = load_part(parts, 0, loops=False).graph
    first, again, other = (
        list(make_batches(example, False, 1, [1]).batches(part, _seed(seed)))
        for seed in (1, 1, 2))
    for one, same in zip(first, again):
        assert one.ndata[dgl.NID].tolist() == same.ndata[dgl.NID].tolist()
    assert first[0].ndata[dgl.NID].tolist() != other[0].ndata[dgl.NID].tolist()
    if "Cluster" in example:  # each node once
        nodes = torch.cat([batch.ndata[dgl.NID] for batch in first])
        assert sorted(nodes.tolist()) == list(range(part.num_nodes()))
    else:  # weights make up for what is drawn often: the mean loss is that of all training nodes
        saint = make_batches(example, False, 1, [1])
        rng = np.random.default_rng(0)
        sums = [float(batch.ndata["loss_weight"][batch.ndata["train"]].sum())
                for _ in range(200) for batch in saint.batches(part, rng)]
        assert np.mean(sums) == pytest.approx(1, abs=0.1)


def test_examples_are_short():
    for file in EXAMPLES.glob("*.py"):
        assert len(file.read_text("utf-8").splitlines()) <= 40
