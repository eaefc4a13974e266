"""Minutes and memory of partitioning a synthetic database, by its rows.

    python scripts/bench/relational_rows.py --rows 5000000

Customers, products, orders and their lines, in a SQLite file that is made first: of 100 rows 76 are
lines, 19 orders, 4 customers and 1 is a product.
"""

from __future__ import annotations

import argparse
import os
import resource
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from common import CLI, run_child

SCRIPT = """
CREATE TABLE customer (id INTEGER PRIMARY KEY, country TEXT, age INTEGER);
CREATE TABLE product (id INTEGER PRIMARY KEY, price REAL, name TEXT);
CREATE TABLE "order" (id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customer,
                      placed TIMESTAMP, late BOOLEAN);
CREATE TABLE line ("order" INTEGER REFERENCES "order"(id), number INTEGER,
                   product INTEGER REFERENCES product, amount REAL, PRIMARY KEY ("order", number));
"""
TABLES = {
    "customer": (0.04, "i, 'country ' || i % 40, 18 + i % 60"),
    "product": (0.01, "i, i % 997 / 10.0, 'thing ' || i % 5000"),
    '"order"': (0.19, "i, 1 + abs(random()) % {customer}, "
                      "datetime(1500000000 + i * 60, 'unixepoch'), i % 7 = 0"),
    "line": (0.76, "1 + i / 4, i % 4, 1 + abs(random()) % {product}, i % 31 / 3.0")}


def make(path: Path, rows: int) -> None:
    """Write the database."""
    counts = {name.strip('"'): int(rows * share) for name, (share, _) in TABLES.items()}
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCRIPT)
        for name, (_, columns) in TABLES.items():
            connection.execute(
                f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < "
                f"{counts[name.strip(chr(34))]}) INSERT INTO {name} SELECT {columns} FROM n".format(
                    **counts))
        connection.commit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        make(path / "rows.db", rows)
        (path / "heta.toml").write_text('[plugins.relational]\nlabel = "order.late"\n'
                                        '[plugins.relational.tables.order]\ntime = "placed"\n')
        child = run_child([*CLI, "partition", f"sqlite:///{path}/rows.db", "-c",
                           f"{path}/heta.toml", "--parts", "2", "--out", f"{path}/parts", "--json"],
                          f"{rows:,} rows")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{rows:,} rows: {child.seconds:.0f} s ({used.ru_utime + used.ru_stime:.0f} s of the "
          f"processor), peak {child.peak_mb:,.0f} MB, of which {child.anon_mb:,.0f} MB of no file; "
          f"load of the last minutes {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


if __name__ == "__main__":
    main()
