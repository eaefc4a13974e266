"""MariaDB's own server: types and keys, one moment, a server that stops."""

from __future__ import annotations

import os
import signal

import pytest
from dgl_heta_relational import RelationalSettings
from dgl_heta_relational.graph import read_graph
from dgl_heta_relational.sql import SqlDatabase

from dgl_heta import HetaError, Relation
from tests.support.mariadb import PASSWORD, started

pytestmark = pytest.mark.needs("mariadb")

SHOP = (
    "CREATE TABLE customer (id BIGINT UNSIGNED PRIMARY KEY, name TEXT, kind ENUM('new', 'old'), "
    "active TINYINT(1), photo BLOB)",
    "CREATE TABLE visit (id INT AUTO_INCREMENT PRIMARY KEY, who BIGINT UNSIGNED, at DATETIME(3), "
    "day DATE, lasted TIME, paid DECIMAL(10, 2), sent TIMESTAMP NULL, "
    "FOREIGN KEY (who) REFERENCES customer(id))",
    "INSERT INTO customer SELECT 18446744073709551600 + seq, CONCAT('n', seq), IF(seq % 2, 'new', "
    "'old'), seq % 3 = 0, x'00' FROM seq_1_to_9",
    "INSERT INTO visit SELECT seq, 18446744073709551601 + seq % 9, '2020-01-01 00:00:00.5' + "
    "INTERVAL seq HOUR, '2020-01-01', SEC_TO_TIME(seq), seq / 7, FROM_UNIXTIME(1577836800 + seq) "
    "FROM seq_1_to_500",
    "SET GLOBAL time_zone = '+05:00'")


def test_a_database_of_mariadb_is_read_as_of_one_moment(monkeypatch):
    with started(*SHOP) as (url, pid):
        monkeypatch.setenv("HETA_DATABASE_PASSWORD", PASSWORD)
        chosen = RelationalSettings.model_validate(
            {"tables": {"visit": {"time": "at"}}, "timeout_s": 2})
        with SqlDatabase(url, chosen) as database:
            source = read_graph(database)
            assert source.node_counts == {"customer": 9, "visit": 500}
            assert source.edges[Relation("visit", "who", "customer")].num_edges == 500
            assert source.node_ids["customer"].names(0, 1) == ["18446744073709551601"]
            kinds = {t: {r["column"]: r["kind"] for r in records}
                     for t, records in source.info["columns"].items()}
            assert kinds == {"customer": {"name": "text", "kind": "category", "active": "number"},
                             "visit": {"at": "date", "lasted": "number", "paid": "number",
                                       "sent": "date"}}
            assert source.times["visit"][0] == 1577836800 + 3600 + 1  # of 2020, an hour, a part
            chosen.tables["visit"].time = "sent"
            assert read_graph(database).times["visit"][0] == 1577836801  # whatever the zone
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(HetaError, match=r"cannot read mysql://127.*did not answer for 2 s"):
                read_graph(database)
            with pytest.raises(HetaError, match="cannot read mysql://127") as caught:
                SqlDatabase(url, chosen)
            assert PASSWORD not in str(caught.value)


ODD = (
    "CREATE TABLE `PARTITION%s` (`a``b` INT, `c)d` INT UNIQUE, n INT, PRIMARY KEY (`a``b`, `c)d`))",
    "CREATE TABLE `o``dd` (id INT PRIMARY KEY, one INT, two INT, up INT, "
    "CONSTRAINT same UNIQUE (up), CONSTRAINT same FOREIGN KEY (up) REFERENCES `o``dd`(id), "
    "FOREIGN KEY (one, two) REFERENCES `PARTITION%s`(`a``b`, `c)d`), "
    "FOREIGN KEY (two) REFERENCES `PARTITION%s`(`c)d`))",
    "INSERT INTO `PARTITION%s` VALUES (1, 2, 5), (2, 3, 6)",
    "INSERT INTO `o``dd` VALUES (1, 1, 2, 1), (2, 2, 3, NULL), (3, 1, 2, 2)",
    "CREATE TABLE gone (id INT)", "CREATE VIEW broken AS SELECT * FROM gone", "DROP TABLE gone",
    "GRANT SHOW VIEW ON shop.* TO reader")


def test_names_may_be_any(monkeypatch):
    """Also those that SQLAlchemy does not find in SHOW CREATE TABLE, with their keys."""
    with started(*ODD) as (url, _):
        monkeypatch.setenv("HETA_DATABASE_PASSWORD", PASSWORD)
        with SqlDatabase(url, RelationalSettings()) as database:
            source = read_graph(database)
    assert source.node_ids["PARTITION%s"].names(0, 2) == ["1|2", "2|3"]
    edges = {r: [ends.tolist() for ends in next(e.chunks(9))] for r, e in source.edges.items()
             if not r.etype.startswith("rev-")}
    assert edges == {
        Relation("o`dd", "one two", "PARTITION%s"): [[0, 1, 2], [0, 1, 0]],
        Relation("o`dd", "two", "PARTITION%s"): [[0, 1, 2], [0, 1, 0]],
        Relation("o`dd", "up", "o`dd"): [[0, 2], [0, 1]]}
    assert [r["column"] for r in source.info["columns"]["PARTITION%s"]] == ["n"]
