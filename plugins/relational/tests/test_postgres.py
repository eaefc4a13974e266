"""PostgreSQL's own server: types, schemas, views, a password, a server that goes away."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator

import pyarrow.parquet as pq
import pytest
from dgl_heta_relational import RelationalSettings
from dgl_heta_relational.graph import read_graph
from dgl_heta_relational.sql import SqlDatabase

from dgl_heta import HetaError, InputError, Relation
from tests.support.postgres import PASSWORD, Postgres, started

pytestmark = pytest.mark.needs("postgres")

SHOP = (
    "CREATE TYPE kind AS ENUM ('new', 'old')",
    "CREATE TABLE customer (id uuid PRIMARY KEY, name text, kind kind, rank numeric(4), box jsonb)",
    "CREATE TABLE visit (id bigserial PRIMARY KEY, who uuid REFERENCES customer, "
    "at timestamptz, lasted interval, paid numeric(10, 2), days int[])",
    "CREATE SCHEMA \"the past\"",
    "CREATE TABLE \"the past\".visit (id bigint PRIMARY KEY, who uuid REFERENCES public.customer)",
    "CREATE VIEW recent AS SELECT id, who, at FROM visit",
    "INSERT INTO customer SELECT md5(i::text)::uuid, 'n' || i, (CASE WHEN i % 2 = 0 THEN 'new' "
    "ELSE 'old' END)::kind, i % 5, '{}' FROM generate_series(1, 40) i",
    "INSERT INTO visit SELECT i, md5((1 + i % 40)::text)::uuid, '2020-01-01 00:00+01'::timestamptz "
    "+ i * interval '1 hour', i * interval '1 minute', i / 7.0, '{1}' "
    "FROM generate_series(1, 500) i",
    "INSERT INTO \"the past\".visit SELECT i, md5((1 + i % 40)::text)::uuid "
    "FROM generate_series(1, 30) i")


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with started() as postgres:
        postgres.run(*SHOP)
        yield postgres


@pytest.fixture(autouse=True)
def password(monkeypatch):
    monkeypatch.setenv("HETA_DATABASE_PASSWORD", PASSWORD)


def read(url: str, **said):
    chosen = RelationalSettings.model_validate(said)
    with SqlDatabase(url, chosen) as database:
        return read_graph(database)


def test_types_schemas_and_views(server):
    source = read(server.url, schemas=["public", "the past"], tables={
        "visit": {"time": "at"}, "recent": {"key": ["id"], "foreign": {"who": "customer"}},
        "customer": {"features": {"box": "text"}}})
    assert source.node_counts == {"customer": 40, "visit": 500, "the past.visit": 30, "recent": 500}
    assert source.edges[Relation("the past.visit", "who", "customer")].num_edges == 30
    assert source.edges[Relation("customer", "rev-who", "recent")].num_edges == 500
    kinds = {r["column"]: r["kind"] for r in source.info["columns"]["visit"]}
    assert kinds == {"at": "date", "lasted": "number", "paid": "number"}
    assert {r["column"]: r["kind"] for r in source.info["columns"]["customer"]} == {
        "name": "text", "kind": "category", "rank": "number", "box": "text"}
    # 2019-12-31T23:00Z and an hour
    assert source.times["visit"][0] == 1577836800
    assert len(source.node_ids["customer"].names(0, 1)[0]) == 36


def test_nothing_of_the_password_is_in_a_store_or_a_message(server, tmp_path, heta, monkeypatch):
    done = heta("partition", server.url, "--target", "visit", "--out", tmp_path / "out")
    assert done.status == 0, done.err
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or PASSWORD.encode() not in file.read_bytes()
    monkeypatch.setenv("HETA_DATABASE_PASSWORD", "another " + PASSWORD)
    refused = heta("partition", server.url, "--target", "visit", "--out", tmp_path / "other")
    assert refused.status == 1
    assert "password authentication failed" in refused.err
    assert PASSWORD not in refused.err
    assert len(refused.err.strip().splitlines()) == 1
    assert not (tmp_path / "other").exists()


def test_a_query_that_would_write_is_refused(server, tmp_path):
    chosen = RelationalSettings(seeds=tmp_path / "seeds.parquet")
    query = "SELECT nextval('visit_id_seq') AS id, now() AS time, 1 AS label"
    with SqlDatabase(server.url, chosen) as database, pytest.raises(
            HetaError, match="read-only transaction"):
        read_graph(database, query)
    assert not [*tmp_path.iterdir()]


def test_what_others_write_meanwhile_is_not_seen(server):
    chosen = RelationalSettings()
    with SqlDatabase(server.url, chosen) as database:
        server.run("INSERT INTO visit (id) VALUES (9999)")
        try:
            assert read_graph(database).node_counts["visit"] == 500
            assert read(server.url).node_counts["visit"] == 501
        finally:
            server.run("DELETE FROM visit WHERE id = 9999")


def test_a_server_that_goes_away_is_one_line_and_nothing_stays(tmp_path, monkeypatch):
    with started() as postgres:
        postgres.run(*SHOP, "INSERT INTO visit SELECT i FROM generate_series(1000, 300000) i")
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr(tempfile, "tempdir", None)
        chosen = RelationalSettings()
        with SqlDatabase(postgres.url, chosen) as database:
            batches = SqlDatabase.batches

            def killed(self, table, columns):
                for number, batch in enumerate(batches(self, table, columns)):
                    if table.name == "visit" and number == 1:
                        os.kill(postgres.process.pid, signal.SIGQUIT)
                        postgres.process.wait()
                    yield batch

            monkeypatch.setattr(SqlDatabase, "batches", killed)
            with pytest.raises(HetaError, match="cannot read postgresql://127.0.0.1") as caught:
                read_graph(database)
        assert "\n" not in str(caught.value)
        assert not [*tmp_path.iterdir()]
        with pytest.raises(HetaError, match="cannot read postgresql://127.0.0.1"):
            read(postgres.url)


def test_a_server_that_stops_is_given_up(server):
    """Its connection stays open, and its machine answers for it."""
    chosen = RelationalSettings(timeout_s=1)
    database = SqlDatabase(server.url, chosen)
    with database:
        (pid,), = database._connection.exec_driver_sql("SELECT pg_backend_pid()")
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(HetaError, match=r"did not answer for 1 s \(plugins\.relational\.t"):
                read_graph(database)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_driver_that_is_not_there_is_named():
    with pytest.raises(InputError, match=r"no driver for mysql://host/db .*\[mysql\]"):
        read("mysql+nodriver://host/db")


def test_a_query_may_have_a_percent_sign(server, tmp_path):
    chosen = RelationalSettings(seeds=tmp_path / "seeds.parquet")
    query = "SELECT id, at AS time, paid AS label FROM visit WHERE id::text LIKE '49%' ORDER BY id"
    with SqlDatabase(server.url, chosen) as database:
        source = read_graph(database, query)
    assert source.write_seeds is not None
    source.write_seeds()
    rows = pq.read_table(chosen.seeds).to_pylist()
    assert [row["id"] for row in rows] == [49, *range(490, 500)]
    assert rows[0]["label"] == 7


def test_numbers_as_keys_are_exact_or_refused(server):
    server.run('CREATE SCHEMA large', "CREATE TABLE large.item (id bigint PRIMARY KEY)",
               "CREATE TABLE large.owner (id numeric(20, 0) PRIMARY KEY)",
               "CREATE TABLE large.part (id int PRIMARY KEY, item numeric(20, 0), owner numeric)",
               "INSERT INTO large.item VALUES (9007199254740992), (9007199254740993)",
               "INSERT INTO large.owner VALUES (18446744073709551615), (18446744073709551614)",
               "INSERT INTO large.part VALUES (1, 9007199254740993, 18446744073709551614)")
    source = read(server.url, schemas=["large"], tables={"part": {"foreign": {"item": "item"}}})
    ((part, item),) = source.edges[Relation("part", "item", "item")].chunks(9)
    assert part.tolist() == [0]
    assert source.node_ids["item"].names(0, 2)[item[0]] == "9007199254740993"
    with pytest.raises(InputError, match="'owner' of table 'part' .* a key, but has such numbers"):
        read(server.url, schemas=["large"], tables={"part": {"foreign": {"owner": "owner"}}})


def test_blanks_that_fill_a_key_of_fixed_width_count_for_nothing(server, tmp_path):
    """As the database compares them; in the task's ids, too."""
    server.run("CREATE SCHEMA fixed", "CREATE TABLE fixed.land (code char(5) PRIMARY KEY)",
               "CREATE TABLE fixed.town (id int PRIMARY KEY, land char(3) REFERENCES fixed.land)",
               "INSERT INTO fixed.land VALUES ('de'), ('fr')",
               "INSERT INTO fixed.town VALUES (1, 'fr'), (2, NULL), (3, 'de')")
    chosen = RelationalSettings(schemas=["fixed"], seeds=tmp_path / "seeds.parquet")
    with SqlDatabase(server.url, chosen) as database:
        source = read_graph(database, "SELECT land AS id, now() AS time, id AS label FROM "
                            "fixed.town WHERE land IS NOT NULL ORDER BY id")
    assert source.node_ids["land"].names(0, 2) == ["de", "fr"]
    ((town, land),) = source.edges[Relation("town", "land", "land")].chunks(9)
    assert [*zip(town.tolist(), land.tolist())] == [(0, 1), (2, 0)]
    assert source.check_seeds is not None
    source.check_seeds("land")


def test_a_partitioned_table_is_one(server):
    """Its parts are tables, too, and a key to it is one to each of them."""
    server.run("CREATE SCHEMA \"in parts\"", "SET search_path TO \"in parts\"; "
               "CREATE TABLE day (id int PRIMARY KEY, n int) PARTITION BY RANGE (id); "
               "CREATE TABLE day1 PARTITION OF day FOR VALUES FROM (0) TO (2); "
               "CREATE TABLE day2 PARTITION OF day FOR VALUES FROM (2) TO (9); "
               "CREATE TABLE event (id int PRIMARY KEY, day int REFERENCES day); "
               "INSERT INTO day VALUES (1, 2), (2, 3); INSERT INTO event VALUES (1, 2), (2, 1)")
    source = read(server.url, schemas=["in parts"])
    assert source.node_counts == {"day": 2, "event": 2}
    ((event, day),) = source.edges[Relation("event", "day", "day")].chunks(9)
    assert [*zip(event.tolist(), day.tolist())] == [(0, 1), (1, 0)]


def test_a_time_that_python_has_not_is_one_line(server):
    server.run("CREATE SCHEMA old", "CREATE TABLE old.coin (id int PRIMARY KEY, made date, "
               "\"like\" int REFERENCES old.coin)",
               "INSERT INTO old.coin VALUES (1, '0044-03-15 BC', 1)")
    with pytest.raises(HetaError, match="cannot read .*: year -44 is out of range"):
        read(server.url, schemas=["old"])
