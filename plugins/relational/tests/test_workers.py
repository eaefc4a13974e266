"""From a database to a trained model: any number of workers computes the same."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from dgl_heta_relational import RelationalSettings
from dgl_heta_relational.graph import read_graph
from dgl_heta_relational.sql import SqlDatabase

import dgl_heta
from dgl_heta.hooks.manager import Plugins
from dgl_heta.launch.jobs.prediction import PredictionJob
from dgl_heta.store import write_store

pytestmark = pytest.mark.usefixtures("warm_workers")

SHOP = """
CREATE TABLE customer (id INTEGER PRIMARY KEY, country TEXT, age INTEGER, joined DATE);
CREATE TABLE product (id INTEGER PRIMARY KEY, price REAL, name TEXT);
CREATE TABLE "order" (id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customer,
                      placed TIMESTAMP);
CREATE TABLE line ("order" INTEGER REFERENCES "order", number INTEGER,
                   product INTEGER REFERENCES product, amount REAL, at TIMESTAMP,
                   PRIMARY KEY ("order", number));
CREATE TABLE likes (customer INTEGER REFERENCES customer, product INTEGER REFERENCES product,
                    at TIMESTAMP);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40)
INSERT INTO customer SELECT i, 'c' || i % 5, 18 + i * 7 % 50, '2020-01-01' FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20)
INSERT INTO product SELECT i, i * 31 % 17 / 4.0, 'thing ' || i % 9 FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
INSERT INTO "order" SELECT i, 1 + i * i * 7 % 40, datetime('2020-01-02', i || ' days') FROM n;
INSERT INTO line SELECT id, id % 3, 1 + id * 13 % 20, id % 7 / 3.0, placed FROM "order"
    UNION SELECT id, 3, 1 + id * 17 % 20, id % 5, placed FROM "order" WHERE id % 2;
INSERT INTO likes SELECT customer, 1 + id * 11 % 20, datetime(placed, '5 hours') FROM "order";
"""
QUERY = """
SELECT customer.id AS id, date('2020-01-02', d.i || ' days') AS time, EXISTS (
    SELECT 1 FROM "order" o WHERE o.customer = customer.id AND o.placed > date('2020-01-02', d.i ||
    ' days') AND o.placed <= date('2020-01-02', (d.i + 30) || ' days')) AS label
FROM customer, (SELECT 40 i UNION SELECT 70 UNION SELECT 100 UNION SELECT 130 UNION SELECT 160) d"""
SETTINGS = ["model.hidden=8", "train.fanouts=4,4", "train.global_batch_size=24", "train.threads=1",
            "train.epochs=2", "train.dtype=float64",
            "task.val_time=2020-05-01", "task.test_time=2020-06-01"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a database, and a table of seeds beside it."""
    path = tmp_path_factory.mktemp("shop")
    with closing(sqlite3.connect(path / "shop.db")) as connection:
        connection.executescript(SHOP)
    chosen = RelationalSettings.model_validate({
        "seeds": path / "seeds.parquet", "train_until": "2020-05-01", "tables": {
            "order": {"time": "placed"}, "line": {"time": "at"}, "likes": {"time": "at"},
            "customer": {"time": "joined"}}})
    with SqlDatabase(f"sqlite:///{path}/shop.db", chosen) as database:
        source = read_graph(database, QUERY)
    assert source.check_seeds is not None
    assert source.write_seeds is not None
    source.check_seeds("customer")
    source.write_seeds()
    write_store(source, path / "store")
    return path


@pytest.mark.parametrize("task", ["customers", "links"])
def test_four_workers_compute_what_one_does(shop: Path, tmp_path: Path, task: str) -> None:
    """Losses and scores of every epoch, and predictions as of a time, in double precision."""
    told = {"customers": ["task.targets=customer", f"task.table={shop}/seeds.parquet"],
            "links": ["task.relation=likes", "task.eval_negatives=9"]}[task]
    figures, rows = [], []
    for parts in (1, 4):
        run = tmp_path / f"{parts}"
        dgl_heta.train(shop / "store", run, parts=parts, settings=[*SETTINGS, *told])
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        figures.append([(line["loss"], line["val_acc"]) for line in lines
                        if line["event"] == "epoch"])
        PredictionJob(run, tmp_path / f"{parts}.npy", time="2020-06-15", ntype="customer",
                      what="scores" if task == "customers" else "embeddings").run(Plugins())
        rows.append(np.load(tmp_path / f"{parts}.npy"))
    np.testing.assert_allclose(figures[1], figures[0], rtol=1e-9)
    np.testing.assert_allclose(rows[1], rows[0], rtol=1e-7, atol=1e-9)
    assert np.isfinite(rows[0]).all()
    assert len(np.unique(rows[0], axis=0)) > 20
