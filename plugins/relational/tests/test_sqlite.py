"""SQLite files as graphs: what is read is what was written, and what is wrong is one line."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dgl_heta_relational import RelationalSettings
from dgl_heta_relational.graph import read_graph
from dgl_heta_relational.sql import SqlDatabase, Values
from dgl_heta_relational.tables import TIME
from hypothesis import given, settings
from hypothesis import strategies as st

from dgl_heta import HetaError, InputError, Relation
from dgl_heta.graph.changes import columns_text
from dgl_heta.graph.readers import open_source
from dgl_heta.hooks.manager import plugins
from dgl_heta.partition.directory import open_partition

SHOP = """
CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT, country TEXT, born DATE, level BOOLEAN,
                       referrer INTEGER REFERENCES customer(id), planet TEXT, photo BLOB);
CREATE TABLE "sales order" (number TEXT PRIMARY KEY, "the customer" INTEGER REFERENCES customer,
                            placed TIMESTAMP, total NUMERIC(10, 2), late BOOLEAN);
CREATE TABLE line (number TEXT REFERENCES "sales order"(number), line INTEGER, amount REAL,
                   PRIMARY KEY (number, line));
CREATE TABLE claim (id INTEGER PRIMARY KEY, number TEXT, line INTEGER, text TEXT,
                    FOREIGN KEY (number, line) REFERENCES line(number, line));
CREATE TABLE friend (one INTEGER REFERENCES customer(id), other INTEGER REFERENCES customer(id));
CREATE VIEW big AS SELECT * FROM "sales order" WHERE total > 10;
INSERT INTO customer VALUES (7, 'Ada L', 'de', '1990-01-02', 1, NULL, 'Earth', x'00'),
    (3, 'Bob M', 'fr', '1991-02-03', 0, 7, 'Earth', NULL),
    (5, 'Cyd N', 'de', NULL, NULL, 99, 'Earth', NULL),
    (6, 'Di O', 'fr', '1999-01-01', 1, 6, 'Earth', NULL);
INSERT INTO "sales order" VALUES ('a|1', 7, '2020-01-01 10:00:00', 5, 0),
    ('b\\', 3, '2020-02-01 10:00:00.5', 15, 1), ('c', NULL, '2020-03-01', 25, 0),
    ('d', 3, '2020-04-01 00:00:00', 1000, 1);
INSERT INTO line VALUES ('a|1', 1, 0.5), ('a|1', 2, 1.5), ('b\\', 1, NULL);
INSERT INTO claim VALUES (1, 'a|1', 2, 'broken'), (2, 'b\\', 1, 'late'), (3, 'b\\', 9, 'lost'),
    (4, 'c', NULL, 'odd');
INSERT INTO friend VALUES (7, 3), (7, 5), (3, 8), (NULL, 3);
"""


def made(path: Path, script: str = SHOP, *more: str) -> str:
    """The URL of a new database."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script + ";".join(more))
    return f"sqlite:///{path}"


def read(url: str, task: str | None = None, **said):
    chosen = RelationalSettings.model_validate(said)
    with SqlDatabase(url, chosen) as database:
        source = read_graph(database, task)
    if source.write_seeds is not None:
        source.write_seeds()
    return source


def named(source, relation: Relation) -> list[tuple[str, str]]:
    """The edges of a relation by the ids of their ends."""
    ((src, dst),) = source.edges[relation].chunks(1 << 20) or [([], [])]
    ids = {t: source.node_ids[t].names(0, len(source.node_ids[t])) for t in source.node_ids}
    return sorted((ids[relation.src][a], ids[relation.dst][b]) for a, b in zip(src, dst))


def test_tables_are_node_types_and_keys_are_relations_with_reverses(tmp_path):
    source = read(made(tmp_path / "shop.db"))
    assert source.node_counts == {"customer": 4, "sales order": 4, "line": 3, "claim": 4}
    order, customer = "sales order", "customer"
    assert named(source, Relation(order, "the customer", customer)) == [
        ("a|1", "7"), ("b\\", "3"), ("d", "3")]
    assert named(source, Relation(customer, "rev-the customer", order)) == [
        ("3", "b\\"), ("3", "d"), ("7", "a|1")]
    assert named(source, Relation(customer, "referrer", customer)) == [("3", "7"), ("6", "6")]
    assert named(source, Relation("claim", "number line", "line")) == [
        ("1", r"a\|1|2"), ("2", r"b\\|1")]
    assert named(source, Relation(customer, "friend", customer)) == [("7", "3"), ("7", "5")]
    assert len(source.edges) == 10
    assert {"1 keys 'referrer' of 'customer', which name no row",
            "1 keys 'number line' of 'claim', which name no row",
            "1 keys 'other' of 'friend', which name no row"} <= {*source.info["left out"]}
    with pytest.raises(InputError, match="table 'claim' whose 'number line' is in no row of"):
        read(made(tmp_path / "again.db"), missing="error")


def test_a_column_may_have_two_foreign_keys(tmp_path):
    source = read(made(tmp_path / "shop.db", SHOP, """
        CREATE TABLE member (id INTEGER PRIMARY KEY REFERENCES customer REFERENCES claim
                             REFERENCES claim(id), since DATE);
        INSERT INTO member VALUES (3, NULL), (7, NULL)"""))
    assert named(source, Relation("member", "id", "customer")) == [("3", "3"), ("7", "7")]
    assert named(source, Relation("member", "id", "claim")) == [("3", "3")]


def test_columns_become_features_by_their_types(tmp_path):
    source = read(made(tmp_path / "shop.db"), tables={"sales order": {"time": "placed"}})
    kinds = {t: {r["column"]: r["kind"] for r in records}
             for t, records in source.info["columns"].items()}
    assert kinds == {
        "customer": {"name": "text", "country": "category", "born": "date", "level": "number"},
        "sales order": {"placed": "date", "total": "number", "late": "number"},
        "line": {"amount": "number"}, "claim": {"text": "text"}}
    assert "column 'planet' of 'customer', which is the same in all rows" in (
        source.info["left out"])
    assert source.info["columns that are not used"]["customer"] == [
        "id", "referrer", "photo"]
    assert source.times["sales order"].tolist() == [
        1577872800, 1580551201, 1583020800, 1585699200]  # a part of a second is a second
    level = source.node_arrays["customer"]["feat"][:, -2:]
    assert level[:, 1].tolist() == [0, 1, 0, 0]  # in the row that has none


def test_times_of_a_day_are_numbers(tmp_path):
    more = """ALTER TABLE claim ADD opens TIME;
              UPDATE claim SET opens = CASE id WHEN 1 THEN '10:00:00' WHEN 2 THEN '11:00' END"""
    source = read(made(tmp_path / "shop.db", SHOP, more))
    (opens,) = (r for r in source.info["columns"]["claim"] if r["column"] == "opens")
    assert (opens["kind"], opens["mean"], opens["missing"]) == ("number", 10.5 * 3600, 2)
    for value, said, why in (("'soon'", {}, "is declared as time64.us., but has the value 'soon'"),
                             ("NULL", {"claim": {"time": "opens"}}, "declares it as time64.us.;")):
        url = made(tmp_path / f"{value}.db", SHOP, more, f"UPDATE claim SET opens = {value}")
        with pytest.raises(InputError, match=why):
            read(url, tables=said)


def test_keys_to_tables_that_are_not_read_are_no_features(tmp_path):
    source = read(made(tmp_path / "shop.db"), skip=["customer", "friend"])
    assert {*source.node_counts} == {"sales order", "line", "claim"}
    assert "the customer" in source.info["columns that are not used"]["sales order"]


def test_means_and_categories_are_of_training_time(tmp_path):
    said: dict[str, Any] = {"label": "sales order.late", "split": [0.5, 0.25, 0.25],
            "tables": {"sales order": {"time": "placed"}}}
    source = read(made(tmp_path / "shop.db"), **said)
    total = next(r for r in source.info["columns"]["sales order"] if r["column"] == "total")
    assert (total["mean"], total["deviation"]) == (10, 5)
    masks = source.node_arrays["sales order"]
    assert [masks[f"{part}_mask"].tolist() for part in ("train", "val", "test")] == [
        [True, True, False, False], [False, False, True, False], [False, False, False, True]]
    assert "late" not in {r["column"] for r in source.info["columns"]["sales order"]}
    said["train_until"] = "2020-01-15"
    assert next(r for r in read(made(tmp_path / "b.db"), **said).info["columns"]["sales order"]
                if r["column"] == "total")["mean"] == 5


def test_the_task_of_a_query_is_a_table_of_seeds(tmp_path):
    url, seeds = made(tmp_path / "shop.db"), tmp_path / "seeds.parquet"
    query = ('SELECT number AS id, placed AS time, late AS label, CASE WHEN placed < "2020-03" '
             'THEN "train" ELSE "test" END AS split FROM "sales order"')
    said: dict[str, Any] = {"tables": {"sales order": {"time": "placed"}}, "seeds": str(seeds)}
    source = read(url, query, **said)
    rows = pq.read_table(seeds).to_pylist()
    assert [(row["id"], row["label"], row["split"]) for row in rows] == [
        ("a|1", 0, "train"), ("b\\", 1, "train"), ("c", 0, "test"), ("d", 1, "test")]
    assert rows[1]["time"] == "2020-02-01 10:00:00.5"
    total = next(r for r in source.info["columns"]["sales order"] if r["column"] == "total")
    assert total["mean"] == 10
    read(url, query, **said)  # what --task made it may make again
    for wrong, why in (("SELECT 1 AS id", "must give id, time and label"),
                       ("DELETE FROM friend", "readonly database"),
                       (query.replace('"train"', '"learn"'), "'learn'; a split is train, val"),
                       (query.replace("placed AS", "total AS"), "must be a date, a timestamp"),
                       (query.replace("placed AS", "'soon' AS"), "row 1: column 'time' is '")):
        with pytest.raises(HetaError, match=why):
            read(url, wrong, **said)
    assert pq.read_table(seeds).num_rows == 4
    seeds.write_text("mine")
    with pytest.raises(InputError, match="is there, and --task did not make it"):
        read(url, query, **said)
    assert seeds.read_text() == "mine"


OUTCOME = """CREATE TABLE outcome (id TEXT PRIMARY KEY REFERENCES "sales order", late BOOLEAN,
                                     split TEXT);
INSERT INTO outcome VALUES ('a|1', 0, 'train'), ('d', 1, 'test');"""


def test_a_table_of_the_task_with_features_is_told(tmp_path, caplog):
    """What the query reads may say the answer, where it is in the graph, too."""
    url = made(tmp_path / "shop.db", SHOP + OUTCOME)
    query = ('SELECT o.number AS id, placed AS time, outcome.late AS label, split FROM Outcome '
             'JOIN "sales order" o ON o.number = Outcome.id ORDER BY 1')
    said: dict[str, Any] = {"seeds": str(tmp_path / "seeds.parquet"),
                            "tables": {"sales order": {"time": "placed"}}}
    read(url, query, **said)
    second, first = (r.message for r in caplog.records if "of the query of --task" in r.message)
    assert "'sales order' of the query of --task is in the graph with its columns late as" in first
    assert "'outcome' of the query of --task is in the graph with its columns late, split" in second
    assert "plugins.relational.skip" in second
    caplog.clear()
    said["tables"]["sales order"]["features"] = {"late": "none"}
    read(url, query, skip=["outcome"], **said)
    assert "of the query of --task" not in caplog.text


def test_seeds_are_written_when_the_partition_is(tmp_path, heta):
    url, config, seeds = (made(tmp_path / "shop.db"), tmp_path / "heta.toml",
                          tmp_path / "seeds.parquet")
    config.write_text(f'[plugins.relational]\nseeds = "{seeds}"\n'
                      '[plugins.relational.tables."sales order"]\ntime = "placed"\n')
    query = 'SELECT number AS id, placed AS time, {} AS label FROM "sales order"'
    target = ("--target", "sales order", "-c", str(config), "--task")
    to = ("--out", str(tmp_path / "out"))
    for args in (("partition", url, *to, *target, query.format(1), "--dry-run"),
                 ("partition", url, *to, *target[2:], query.format(1)),
                 ("plan", url, *target, query.format(1), "--compare")):
        heta(*args)
        assert [p.name for p in tmp_path.iterdir() if "seeds" in p.name] == []
    done = heta("partition", url, *to, *target, query.format(1))
    assert done.status == 0, done.err
    assert "has no array 'label'" not in done.err  # the table has the labels
    before = seeds.read_bytes()
    assert pq.read_table(seeds)["label"].to_pylist() == [1] * 4
    again = heta("partition", url, *to, *target, query.format(2))
    assert again.status == 2
    assert "exists" in again.err
    assert seeds.read_bytes() == before
    config.write_text(f'[plugins.relational]\nseeds = "{tmp_path}/nowhere/seeds.parquet"\n')
    lost = heta("partition", url, "--out", str(tmp_path / "b"), *target, query.format(1))
    assert "there is no directory" in lost.err
    assert not (tmp_path / "b").exists()


def test_seeds_of_no_node_end_before_a_partition_is_written(tmp_path, heta):
    url, config = made(tmp_path / "shop.db"), tmp_path / "heta.toml"
    config.write_text(f'[plugins.relational]\nseeds = "{tmp_path}/seeds.parquet"\n'
                      '[plugins.relational.tables."sales order"]\ntime = "placed"\n')
    for more in ((), ("--dry-run",)):
        done = heta("partition", url, "--out", tmp_path / "out", "--target", "customer", "-c",
                    config, "--task", "SELECT id + id / 6 AS id, '2021-01-01' AS time, 1 AS label "
                    "FROM customer ORDER BY id", *more)
        assert done.status == 2
        assert ("row 4 of the query of --task has the id '8', which is the id of no node of type "
                "'customer'; 1 of 4 rows have such") in " ".join(done.err.split())
        assert {p.name for p in tmp_path.iterdir()} == {"shop.db", "heta.toml"}


def test_references_may_be_written_in_another_case(tmp_path):
    other = SHOP.replace("REFERENCES customer(id)", "REFERENCES Customer(ID)").replace(
        "REFERENCES line(number, line)", "references LINE(Number, LINE)").replace(
        "FOREIGN KEY (number, line)", "FOREIGN KEY (NUMBER, Line)")
    one, two = (read(made(tmp_path / f"{i}.db", script)) for i, script in enumerate((SHOP, other)))
    assert {*one.edges} == {*two.edges}
    assert all(named(one, relation) == named(two, relation) for relation in one.edges)


def test_rows_without_their_time_are_counted(tmp_path):
    """They are always there, of node types and of link tables."""
    url = made(tmp_path / "shop.db", SHOP, """ALTER TABLE friend ADD since DATE;
        UPDATE friend SET since = '2020-01-01' WHERE one = 3;
        UPDATE "sales order" SET placed = NULL WHERE late""")
    source = read(url, tables={"sales order": {"time": "placed"}, "friend": {"time": "since"}})
    told = [text for text in columns_text(source) if "have no time" in text]
    assert told == ["2 of 4 rows of 'sales order' have no time, so they are always there, for "
                    "seeds of any time",
                    "2 of 2 edges of 'customer friend customer' have no time, so they are always "
                    "there, for seeds of any time"]


def test_two_commands_make_a_partition_and_the_first_reads_no_row(tmp_path, heta):
    url, config = made(tmp_path / "shop.db"), tmp_path / "heta.toml"
    config.write_text('[plugins.relational]\nlabel = "sales order.late"\n'
                      '[plugins.relational.tables."sales order"]\ntime = "placed"\n')
    shown = heta("plan", url, "--target", "sales order")
    assert shown.status == 0, shown.err
    assert "line number sales order  3 edges" in shown.out
    done = heta("partition", url, "-c", str(config), "--out", str(tmp_path / "out"))
    assert done.status == 0, done.err
    store, _ = open_partition(tmp_path / "out")
    assert store.schema.node_counts["customer"] == 4
    assert store.row_times("sales order") is not None
    again = heta("partition", url, "--target", "customer", "--task", "SELECT 1", "--out",
                str(tmp_path / "other"))
    assert again.status == 2
    assert not (tmp_path / "other").exists()
    refused = heta("partition", str(tmp_path / "out"), "--task", "SELECT 1", "--out",
                  str(tmp_path / "other"))
    assert refused.status == 2
    assert "--task" in refused.err


WRONG = [
    ("CREATE TABLE loose (a INTEGER)", {}, "table 'loose' .* has no primary key"),
    ("CREATE TABLE x (id INTEGER PRIMARY KEY, o TEXT REFERENCES big(number))", {},
     "foreign key 'o' of table 'x' is to 'big', which is a view"),
    ("CREATE TABLE x (id INTEGER PRIMARY KEY, o TEXT REFERENCES gone(id))", {},
     "is to 'gone', which .* does not have"),
    ("", {"tables": {"customer": {"time": "name"}}}, "declares it as text; it must be a date"),
    ("INSERT INTO \"sales order\" VALUES ('e', 3, '2020-05-01 10:00:00+02:00', 1, 0)",
     {"tables": {"sales order": {"time": "placed"}}},
     r"has the value '2020-05-01 10:00:00\+02:00'; correct it, .* all with a zone or none"),
    ("INSERT INTO \"sales order\" VALUES ('e', 3, 'soon', 1, 0)", {},
     "column 'placed' of table 'sales order' .* but has the value 'soon'"),
    ("UPDATE \"sales order\" SET placed = 1577836800", {},
     "column 'placed' of table 'sales order' .* the value 1577836800; correct it, a time as ISO 8"),
    ("UPDATE \"sales order\" SET placed = 1577836800.5 WHERE late", {}, "the value 1577836800.5;"),
    ("UPDATE customer SET born = 1577836800", {"tables": {"customer": {"time": "born"}}},
     "column 'born' of table 'customer' .* the value 1577836800; correct it, a time as ISO 8601"),
    ("UPDATE customer SET born = 7300", {}, "'born' of table 'customer' .* has the value 7300;"),
    ("INSERT INTO \"sales order\" VALUES ('e', 3, NULL, 'much', 0)", {},
     "column 'total' of table 'sales order' .* but has the value 'much'"),
    ("INSERT INTO \"sales order\" VALUES (NULL, 3, NULL, 1, 0)", {},
     r"row 5: its key \(number\) is empty"),
    ("", {"label": "sales order.late", "tables": {"sales order": {"features": {
        "late": "number"}}}}, "column 'late' of table 'sales order' is the label, and is to be a"),
    ("", {"label": "sales order.nothing"}, "must be TABLE.COLUMN"),
    ("", {"tables": {"customers": {}}}, "names table 'customers'.*Did you mean|customer"),
    ("", {"tables": {"customer": {"key": ["country"]}}}, "has two rows whose key"),
    ("", {"tables": {"customer": {"features": {"nme": "text"}}}}, "has no column 'nme'"),
    ("CREATE TABLE referrer (a INTEGER REFERENCES customer, b INTEGER REFERENCES customer)", {},
     "two relations of .* would be 'customer referrer customer'"),
    ("CREATE TABLE badge (id INT UNIQUE, code INT UNIQUE, key INTEGER PRIMARY KEY); CREATE TABLE "
     "owner (id INTEGER PRIMARY KEY, of INT REFERENCES badge(id) REFERENCES badge(code))", {},
     "two relations of .* would be 'owner of badge', of foreign keys to other columns"),
    ("", {"only": ["claim"]}, "no table of .* has a foreign key to another"),
]


@pytest.mark.parametrize(("more", "said", "why"), WRONG, ids=[why[:40] for *_, why in WRONG])
def test_what_is_wrong_is_one_line(tmp_path, monkeypatch, more, said, why):
    url = made(tmp_path / "shop.db", SHOP, more)
    scratch = tmp_path / "scratch"  # its own: other tests read at the same time
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with pytest.raises(InputError, match=why) as caught:
        read(url, **said)
    assert "\n" not in str(caught.value)
    assert not list(scratch.iterdir())


def test_what_the_driver_cannot_read_is_one_line(tmp_path):
    url = made(tmp_path / "shop.db", SHOP, "UPDATE customer SET name = CAST(x'ff' AS TEXT)")
    with pytest.raises(HetaError, match="cannot read sqlite:///.*shop.db: Could not decode"):
        read(url)


def test_values_of_drivers_are_neither_cut_nor_guessed():
    kinds = {"at": TIME, "is": pa.bool_(), "many": pa.int64()}

    def batch(name: str, *values: Any) -> list[Any]:
        return Values(f"column '{name}'", kinds[name]).array(values).to_pylist()

    def when(zone: int | None, month: int) -> datetime:
        return datetime(2020, month, 1, 5 + (zone or 0), tzinfo=None if zone is None else
                        timezone(timedelta(hours=zone)))

    assert [each.hour for each in batch("at", when(1, 1), when(2, 7))] == [5, 5]
    assert batch("is", 0, None, 1.0) == [False, None, True]
    assert batch("many", Decimal(2), None) == [2, None]
    for name, *values in (("at", when(1, 1), when(None, 1)),
                          ("at", date(2020, 1, 1), when(None, 1)), ("at", 5), ("is", 2),
                          ("is", "1"), ("many", 1.5), ("many", "1")):
        with pytest.raises(InputError, match=r"correct it|values of different types"):
            batch(name, *values)


@pytest.mark.parametrize("url", [
    "sqlite:///nowhere.db", "sqlite://", "duckdb:///nowhere.db"])
def test_a_file_that_is_not_there_is_not_made(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="there is no database"):
        open_source(url)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("url", ["postgresql://me:hush@host/db",
                                 "postgresql://host/db?password=hush", "mysql://me:hush@host/db",
                                 "duckdb:///shop.db?motherduck_token=hush",
                                 "postgresql://host/dbname=db%20password=hush"])
def test_a_password_in_a_url_is_refused_and_not_repeated(url, tmp_path, heta):
    shown = heta("partition", url, "--out", str(tmp_path / "out"))
    assert shown.status == 2
    assert "HETA_DATABASE_PASSWORD" in shown.err
    assert "hush" not in shown.out + shown.err
    assert not (tmp_path / "out").exists()


def test_what_others_write_meanwhile_is_not_seen(tmp_path):
    url = made(tmp_path / "shop.db", "PRAGMA journal_mode = WAL;" + SHOP)
    chosen = RelationalSettings()
    with SqlDatabase(url, chosen) as database:
        with closing(sqlite3.connect(tmp_path / "shop.db")) as other:
            other.execute("INSERT INTO customer (id) VALUES (8)")
            other.commit()
        source = read_graph(database)
    assert source.node_counts["customer"] == 4
    assert named(source, Relation("customer", "friend", "customer")) == [("7", "3"), ("7", "5")]
    assert read(url).node_counts["customer"] == 5


KEYS = st.one_of(st.integers(-2**40, 2**40), st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=4))
NAMES = st.text(st.sampled_from("ab .'\"-é|"), min_size=1, max_size=5).filter(
    lambda name: name.strip() == name and not name.startswith("sqlite_"))


@st.composite
def databases(draw):
    """Tables with keys of one or two columns, rows, and keys of rows to others, some to none."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique_by=str.lower))
    widths = {name: draw(st.integers(1, 2)) for name in names}
    rows = {name: draw(st.lists(st.tuples(*[KEYS] * widths[name]), max_size=6, unique_by=lambda key:
                                tuple(str(part) for part in key))) for name in names}
    foreign = []
    for number in range(draw(st.integers(1, 3))):
        src, dst = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        some = st.one_of(st.none(), st.tuples(*[KEYS] * widths[dst]),
                         *([st.sampled_from(rows[dst])] if rows[dst] else []))
        foreign.append((src, dst, number, [draw(some) for _ in rows[src]]))
    return names, widths, rows, foreign


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def written(path: Path, names, widths, rows, foreign) -> str:
    with closing(sqlite3.connect(path)) as connection:
        for name in names:
            key = [f"key {i}" for i in range(widths[name])]
            more = [(number, dst, [f"to {number} {i}" for i in range(widths[dst])], values)
                    for src, dst, number, values in foreign if src == name]
            columns = [*key, *(column for _, _, own, _ in more for column in own)]
            keys = [f"PRIMARY KEY ({', '.join(map(quoted, key))})", *(
                f"FOREIGN KEY ({', '.join(map(quoted, own))}) REFERENCES {quoted(dst)}"
                for _, dst, own, _ in more)]
            connection.execute(f"CREATE TABLE {quoted(name)} ("
                               f"{', '.join(f'{quoted(c)} TEXT' for c in columns)}, value INTEGER, "
                               f"{', '.join(keys)})")
            for i, row in enumerate(rows[name]):
                cells = [*row, *(cell for _, dst, _, values in more
                                 for cell in values[i] or [None] * widths[dst]), i]
                connection.execute(f"INSERT INTO {quoted(name)} VALUES "
                                   f"({', '.join('?' * len(cells))})", cells)
        connection.commit()
    return f"sqlite:///{path}"


def joined(key) -> str:
    if len(key) == 1:
        return str(key[0])
    return "|".join(str(part).replace("\\", "\\\\").replace("|", "\\|") for part in key)


@given(databases())
@settings(max_examples=60, deadline=None)
def test_any_database_is_read_back_as_it_was_written(database):
    names, widths, rows, foreign = database
    with tempfile.TemporaryDirectory() as directory:
        url = written(Path(directory) / "any.db", *database)
        expected: dict[Relation, list[tuple[str, str]]] = {}
        for src, dst, number, values in foreign:
            name = " ".join(f"to {number} {i}" for i in range(widths[dst]))
            known = {joined(key) for key in rows[dst]}
            edges = sorted((joined(key), joined(value)) for key, value in zip(rows[src], values)
                           if value is not None and joined(value) in known)
            if edges:
                expected[Relation(src, name, dst)] = edges
                expected[Relation(dst, f"rev-{name}", src)] = sorted((b, a) for a, b in edges)
        source = read(url)
        assert {relation: named(source, relation) for relation in source.edges} == expected
        for ntype, ids in source.node_ids.items():
            assert ids.names(0, len(ids)) == [joined(key) for key in rows[ntype]]
            assert source.node_counts[ntype] == len(rows[ntype])


def test_the_reader_is_listed_and_other_urls_are_as_before():
    assert plugins().get("reader", "relational").schemes[0] == "sqlite"
    with pytest.raises(InputError, match="password in it"):
        open_source("s3://me:hush@bucket/graph")
