"""DuckDB, directories of Parquet files, RelBench's files: the graph of the same rows."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dgl_heta_relational import RelationalSettings
from dgl_heta_relational.duck import DuckDatabase
from dgl_heta_relational.graph import read_graph

from dgl_heta import HetaError, InputError, Relation
from dgl_heta.graph.readers import open_source

ORDER = Relation("order", "customer", "customer")
TABLES = {
    "customer": pa.table({"id": [7, 3, 5],
                          "country": pa.array(["de", "fr", "de"]).dictionary_encode(),
                          "vector": [[1, 2], [3], []]}),
    "order": pa.table({"id": ["a", "b", "c"], "customer": [3.0, float("nan"), 9.0],
                       "placed": pa.array([1, 2, None], pa.timestamp("ns")),
                       "total": [1, 2, 3]})}
KEYS = """
[tables.customer]
key = ["id"]
[tables.order]
key = ["id"]
foreign = {customer = "customer"}
time = "placed"
"""


def edges(source) -> list[tuple[int, int]]:
    ((src, dst),) = source.edges[ORDER].chunks(100)
    return [*zip(src.tolist(), dst.tolist())]


def test_a_directory_of_parquet_files_with_keys(tmp_path):
    for name, table in TABLES.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match="no graph can be read"):
        open_source(tmp_path)
    (tmp_path / "relational.toml").write_text(KEYS)
    source = open_source(tmp_path)
    assert edges(source) == [(0, 1)]
    assert source.info["left out"][0] == "1 keys 'customer' of 'order', which name no row"
    assert source.node_ids["customer"].names(0, 3) == ["7", "3", "5"]
    assert source.times["order"].tolist()[:2] == [0, 0]
    assert [r["kind"] for r in source.info["columns"]["order"]] == ["date", "number"]
    assert source.info["columns that are not used"]["customer"] == ["id", "vector"]
    (tmp_path / "relational.toml").write_text(KEYS + '[tables.nobody]\nkey = ["id"]\n')
    with pytest.raises(InputError, match="names table 'nobody', which .* does not have"):
        open_source(tmp_path)
    (tmp_path / "relational.toml").write_text(KEYS.replace(
        '["id"]\n[tables.order]', '["id"]\nfeatures = {pair = "vector"}\n[tables.order]'))
    pq.write_table(TABLES["customer"].append_column("pair", [[[1, 2], [3, 4], None]]),
                   tmp_path / "customer.parquet")
    assert open_source(tmp_path).node_arrays["customer"]["feat"][:, -2:].tolist() == [
        [1, 2], [3, 4], [2, 3]]
    (tmp_path / "relational.toml").write_text("mode = 1\n" + KEYS)
    with pytest.raises(InputError, match="mode"):
        open_source(tmp_path)


def test_a_directory_may_be_named_like_a_pattern(tmp_path):
    for name, rows in (("run[1]", 3), ("run1", 2)):
        (tmp_path / name).mkdir()
        for table, content in TABLES.items():
            pq.write_table(content.slice(0, rows), tmp_path / name / f"{table}.parquet")
        (tmp_path / name / "relational.toml").write_text(KEYS)
    assert open_source(tmp_path / "run[1]").node_counts == {"customer": 3, "order": 3}


def test_a_label_that_is_a_foreign_key_is_refused_or_told(tmp_path, caplog):
    """Its relation says it."""
    for name, table in TABLES.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    (tmp_path / "relational.toml").write_text(KEYS)
    with DuckDatabase(tmp_path, RelationalSettings(label="order.customer")) as database, (
            pytest.raises(InputError, match="relation 'order customer customer' would give the "
                                            "answer away; leave table 'customer' out by")):
        read_graph(database)
    for query, told in (
            ("id, placed AS time, CAST(customer AS INT) AS label FROM \"order\" WHERE id = 'a'", 1),
            ("id, placed AS time, o.customer label FROM \"order\" o WHERE id = 'a'", 1),
            ("id, placed AS time, label FROM (SELECT *, customer > 3 AS label FROM \"order\") "
             "WHERE id = 'a'", 1),
            ("CAST(customer AS INT) AS id, max(placed) AS time, count(*) AS label FROM \"order\" "
             "WHERE customer = 3 GROUP BY customer", 0),
            ("id, TIMESTAMP '2020-01-01' AS time, (SELECT count(*) FROM \"order\" o "
             "WHERE o.customer = c.id) AS label FROM customer c", 0)):
        caplog.clear()
        with DuckDatabase(tmp_path, RelationalSettings(seeds=tmp_path / "seeds.parquet")) as opened:
            read_graph(opened, f"SELECT {query}")
        told_of = [r.message for r in caplog.records if "'order customer customer'" in r.message]
        assert len(told_of) == told, query


def test_files_of_relbench_say_their_keys_themselves(tmp_path):
    said = {"customer": ("id", {}, None), "order": (None, {"customer": "customer"}, "placed")}
    (tmp_path / "db").mkdir()
    for name, table in TABLES.items():
        key, foreign, time = said[name]
        pq.write_table(table.replace_schema_metadata({
            "pkey_col": json.dumps(key), "time_col": json.dumps(time),
            "fkey_col_to_pkey_table": json.dumps(foreign)}), tmp_path / "db" / f"{name}.parquet")
    source = open_source(tmp_path)
    assert edges(source) == [(0, 1)]
    assert "order" not in source.node_ids
    assert "order" in source.times
    chosen = RelationalSettings.model_validate(
        {"tables": {"order": {"features": {"total": "none"}}}})
    with DuckDatabase(tmp_path, chosen) as database:
        again = read_graph(database, "SELECT 7 AS id, '2020-01-01' AS time, 1 AS label")
    assert edges(again) == [(0, 1)]
    assert [r["column"] for r in again.info["columns"]["order"]] == ["id", "placed"]
    assert again.write_seeds is not None  # files answer queries, too


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path):
    for name, table in TABLES.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    (tmp_path / "relational.toml").write_text(KEYS)
    with DuckDatabase(tmp_path, RelationalSettings()) as directory:
        pq.write_table(TABLES["order"].slice(1), tmp_path / "order.parquet")
        with pytest.raises(HetaError, match="changed while they were read"):
            read_graph(directory)


def test_a_date_that_is_no_time_is_one_line(tmp_path):
    days = pa.array([1, 2, 2**31 - 1], pa.date32())
    pq.write_table(TABLES["customer"], tmp_path / "customer.parquet")
    pq.write_table(TABLES["order"].set_column(2, "placed", days), tmp_path / "order.parquet")
    (tmp_path / "relational.toml").write_text(KEYS)
    with pytest.raises(InputError, match="'placed' of table 'order' .* a date that is no time"):
        open_source(tmp_path)


def test_duckdb(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute("CREATE TABLE customer (id INTEGER PRIMARY KEY, country VARCHAR)")
        connection.execute('CREATE TABLE "order" (id VARCHAR PRIMARY KEY, customer INTEGER '
                           'REFERENCES customer(id), placed TIMESTAMP, n HUGEINT)')
        connection.execute("INSERT INTO customer VALUES (7, 'de'), (3, 'fr'), (5, 'de')")
        connection.execute("INSERT INTO \"order\" VALUES ('a', 3, '2020-01-01', 1), "
                           "('b', NULL, NULL, 2)")
    chosen = RelationalSettings.model_validate({"tables": {"order": {"time": "placed"}}})
    with DuckDatabase(tmp_path / "shop.duckdb", chosen) as database:
        source = read_graph(database)
    assert edges(source) == [(0, 1)]
    assert source.times["order"][0] == 1577836800


def test_keys_of_another_schema_of_duckdb_lead_to_tables_there(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute("CREATE SCHEMA past; "
                           "CREATE TABLE item (id int PRIMARY KEY); INSERT INTO item VALUES (1); "
                           "CREATE TABLE past.item (id int PRIMARY KEY); "
                           "INSERT INTO past.item VALUES (7), (1); "
                           "CREATE TABLE past.part (id int PRIMARY KEY, item int REFERENCES "
                           "past.item(id)); INSERT INTO past.part VALUES (0, 1)")
    with DuckDatabase(tmp_path / "shop.duckdb",
                      RelationalSettings(schemas=["main", "past"])) as database:
        source = read_graph(database)
    ((part, item),) = source.edges[Relation("past.part", "item", "past.item")].chunks(9)
    assert (part.tolist(), item.tolist()) == ([0], [1])
    with pytest.raises(InputError, match="names 'future', which .* schemas: main, past"):
        DuckDatabase(tmp_path / "shop.duckdb", RelationalSettings(schemas=["main", "future"]))


def test_what_a_task_gives_must_be_of_types_that_readers_know(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, next int REFERENCES item(id))")
    for query, why in (("INTERVAL 1 DAY AS time, 1", "'time' of .* type month_day_nano_interval"),
                       ("TIME '10:00' AS time, 1", "'time' of the query of --task is such as 36"),
                       ("TIMESTAMP '2020-01-01' AS time, {'a': 1}", "'label' of .* struct<a: ")):
        with DuckDatabase(tmp_path / "shop.duckdb", RelationalSettings(
                seeds=tmp_path / "seeds.parquet")) as database, pytest.raises(
                InputError, match=why):
            read_graph(database, f"SELECT 1 AS id, {query} AS label")


@pytest.mark.parametrize(("kind", "value", "wrong"), [
    ("timestamp", "'infinity'", None), ("date", "'0044-03-15 (BC)'", None),
    ("timestamp_s", "'infinity'", "'what' of table 'part' of .* has a value that cannot be read"),
    ("union(a int, b varchar)", "1", None), ("uhugeint", "1267650600228229401496703205377", None)])
def test_values_of_duckdb_that_others_have_not(kind, value, wrong, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute(f"CREATE TABLE item (id int PRIMARY KEY); INSERT INTO item VALUES (1);"
                           f"CREATE TABLE part (id int PRIMARY KEY, item int REFERENCES item(id), "
                           f"what {kind}); INSERT INTO part VALUES (1, 1, {value}), (2, 1, NULL)")
    chosen = RelationalSettings()
    with DuckDatabase(tmp_path / "shop.duckdb", chosen) as database:
        if wrong:
            with pytest.raises(InputError, match=wrong):
                read_graph(database)
        else:
            assert read_graph(database).node_counts == {"item": 1, "part": 2}


def test_keys_that_are_rounded_are_refused(tmp_path):
    ids = [float(2**53), 3.0, None]
    pq.write_table(pa.table({"id": [2**53, 2**53 + 1, 3]}), tmp_path / "item.parquet")
    pq.write_table(pa.table({"id": [0, 1, 2], "item": ids}), tmp_path / "part.parquet")
    chosen = RelationalSettings.model_validate({"tables": {
        "item": {"key": ["id"]}, "part": {"key": ["id"], "foreign": {"item": "item"}}}})
    with DuckDatabase(tmp_path, chosen) as database, pytest.raises(
            InputError, match="column 'item' of table 'part' .* such numbers as 9007199254740992"):
        read_graph(database)
