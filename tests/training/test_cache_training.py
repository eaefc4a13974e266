"""Training with a feature cache: the same numbers, counted hits, profiles, what can go wrong."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from dgl_heta.cache.policies import Policy
from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.partition.directory import write_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.report.cache_profile import show_profile
from dgl_heta.settings import Settings, load_settings
from dgl_heta.store import Store, write_store
from dgl_heta.training import caches as caching
from dgl_heta.training.engine import Engine
from dgl_heta.training.setup import build_engine
from tests.support import warm
from tests.support.graphs import academic
from tests.support.signing import edit_json
from tests.support.waiting import PATIENCE

SETTINGS = ["model.hidden=8", "train.fanouts=3,3", "train.batch_size=8", "train.threads=1",
            "train.epochs=2", "train.device=cpu"]
EVERY_TIER = ["cache.tables=disk", "cache.gate=false"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "store"
    write_store(academic(papers=120), path)
    return path


def settings_of(*more: str) -> Settings:
    return load_settings(None, [*SETTINGS, *more], {})


def engine_of(store: Path, scratch: Path, *more: str) -> Engine:
    """One process, with the cache that the settings ask for."""
    opened, chosen = Store(store), settings_of(*more)
    engine = build_engine(opened, make_plan(opened.schema, ["paper"], 2, 1), chosen, Plugins(),
                          scratch)
    caching.attach(engine, scratch / "profiles")
    return engine


def state_after(engine: Engine, steps: int = 6) -> dict[str, torch.Tensor]:
    """Everything that training changes, after some steps."""
    engine.start_epoch(1)
    for _ in engine.train(engine.steps("train", 1)[:steps], 0):
        pass
    state = {f"model.{k}": v for k, v in engine.model.state_dict().items()}
    for name, table in engine.learnable.tables().items():
        for part in ("value", "first", "second"):
            state[f"{name}.{part}"] = torch.cat([block[part] for block in table.blocks()])
        state[f"{name}.step"] = torch.tensor(table.step)
    return state


@pytest.fixture(scope="module")
def plain(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return state_after(engine_of(store, tmp_path_factory.mktemp("plain")))


@pytest.mark.parametrize("policy", ["degree", "hotness", "miss_penalty", "density", "fifo",
                                    "clock"])
@pytest.mark.parametrize("capacity", [0, 0.002, 0.01, 1])
def test_training_is_the_same_bit_for_bit(store: Path, tmp_path: Path, policy: str,
                                          capacity: float, plain: dict) -> None:
    engine = engine_of(store, tmp_path, f"cache.policy={policy}", f"cache.capacity_mb={capacity}",
                       *EVERY_TIER)
    got = state_after(engine)
    assert got.keys() == plain.keys()
    for name, want in plain.items():
        assert torch.equal(got[name], want), name
    assert engine.part.caches is not None
    counted = engine.part.caches.counted()
    held = sum(c["cached_bytes"] for c in counted.values())
    assert held <= capacity * 1e6
    assert (held > 0) == (capacity > 0)
    if capacity == 1:
        assert all(c["hits"] == c["reads"] for c in counted.values())
        assert set(counted) == {"paper", "field", "author", "institution"}
    if capacity == 0:
        assert "cache.capacity_mb is 0" in engine.part.caches.notes[0]
    assert not list(tmp_path.glob(".table*"))


def test_static_rows_that_are_read_directly(store: Path, tmp_path: Path, plain: dict) -> None:
    try:
        engine = engine_of(store, tmp_path, "cache.policy=density", "cache.capacity_mb=0.002",
                           "cache.reads=direct", *EVERY_TIER)
    except InputError as error:
        pytest.skip(f"no direct reads here: {error}")
    got = state_after(engine)
    assert all(torch.equal(got[name], want) for name, want in plain.items())


def test_profile_is_stored_and_used_again_only_for_the_same_sampling(store: Path, tmp_path: Path
                                                                     ) -> None:
    def made(*more: str) -> set[str]:
        engine_of(store, tmp_path, "cache.policy=hotness", *more)
        return {path.name for path in (tmp_path / "profiles").iterdir()}

    first = made()
    assert len(first) == 2
    assert made("train.epochs=5", "cache.capacity_mb=1") == first
    assert len(made("train.fanouts=2,3") - first) == 1  # penalties stay
    assert made("train.fanouts=2,3") == made()
    visits = next((tmp_path / "profiles").glob("visits*"))
    visits.write_bytes(visits.read_bytes()[:-100])  # cut off: made again
    made()
    made("train.fanouts=2,3")
    assert load_file(visits)


def test_a_profile_of_something_else_is_refused_by_name(store: Path, tmp_path: Path) -> None:
    engine_of(store, tmp_path, "cache.policy=hotness")
    named = [f"cache.profile={tmp_path / 'profiles'}", "cache.policy=hotness"]
    engine_of(store, tmp_path / "a", *named)
    with pytest.raises(InputError, match=r"another train.fanouts \(\[3, 3\] instead of \[2, 3\]\)"):
        engine_of(store, tmp_path / "b", *named, "train.fanouts=2,3")
    write_store(academic(seed=1, papers=120), tmp_path / "other")
    with pytest.raises(InputError, match="was made for another graph"):
        engine_of(tmp_path / "other", tmp_path / "c", *named)
    with pytest.raises(InputError, match=r"there is no profile for worker 0 in .*empty"):
        engine_of(store, tmp_path, "cache.policy=hotness", f"cache.profile={tmp_path / 'empty'}")
    (penalties,) = (tmp_path / "profiles").glob("penalties*")
    text = penalties.read_text()
    penalties.write_text(text.replace("row_bytes", "row_bites"))
    with pytest.raises(InputError, match=r"penalties.* is damaged: its checksum"):
        engine_of(store, tmp_path, *named)
    penalties.write_text(text)
    edit_json(penalties, lambda note: note["types"]["paper"].update(
        seconds={"64": [float("nan"), 1.0]}))
    with pytest.raises(InputError, match=r"penalties.* is damaged: seconds are \(nan"):
        engine_of(store, tmp_path, *named)
    edit_json(penalties, lambda note: note["types"]["paper"].update(seconds={"0": [1.0, 1.0]}))
    with pytest.raises(InputError, match=r"penalties.* is damaged: .* for 0 rows"):
        engine_of(store, tmp_path, *named)
    edit_json(penalties, lambda note: note["types"]["paper"].update(
        seconds={"64": [1.0, 1.0]}, row_bytes=float("inf")))
    with pytest.raises(InputError, match=r"penalties.* is damaged: cannot convert float infinity"):
        engine_of(store, tmp_path, *named)
    penalties.write_text('{"types": ' * 20_000)
    with pytest.raises(InputError, match=r"penalties.* is damaged: maximum recursion depth"):
        engine_of(store, tmp_path, *named)
    penalties.unlink()
    engine_of(store, tmp_path, *named, "cache.policy=degree")  # counted, not read


def test_a_profile_that_cannot_be_stored_is_a_note(store: Path, tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("a file where the directory would be")
    engine = engine_of(store, tmp_path, "cache.policy=hotness", "cache.gate=false")
    assert engine.part.caches is not None
    assert "could not be stored" in engine.part.caches.notes[0]
    assert engine.part.caches.counted()


def test_what_cannot_be_is_said(store: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="greater than or equal to 0"):
        settings_of("cache.capacity_mb=-1")
    with pytest.raises(InputError, match=r"cpu has [\d,]+ MB free"):
        engine_of(store, tmp_path, "cache.policy=hotness", "cache.capacity_mb=1e12")
    with pytest.raises(InputError, match="did you mean 'miss_penalty'"):
        engine_of(store, tmp_path, "cache.policy=miss_penality")


def test_a_third_partys_policy_is_a_function(store: Path, tmp_path: Path, plain: dict) -> None:
    """It sees numbers alone, and wherever it puts rows training is the same."""
    seen = {}

    def every_other(counts, row_bytes, penalties, capacity):  # type: ignore[no-untyped-def]
        seen.update(counts=counts, row_bytes=row_bytes, penalties=penalties, capacity=capacity)
        return {ntype: np.arange(0, len(count), 2) for ntype, count in counts.items()}

    engine = engine_of(store, tmp_path, *EVERY_TIER)
    profiler = caching.Profiler(engine, None)
    chosen = engine.settings.model_copy(update={"cache": engine.settings.cache.model_copy(
        update={"policy": "theirs", "capacity_mb": 1.0})})
    engine.part.settings = chosen
    engine.part.caches = caching.FeatureCaches(engine.part, Policy("theirs", every_other), profiler)
    got = state_after(engine)
    assert all(torch.equal(got[name], want) for name, want in plain.items())
    assert seen["capacity"] == 1_000_000
    assert seen["row_bytes"] == {"paper": 56, "field": 12, "author": 96, "institution": 96}
    assert all(seen["penalties"][t] > 0 for t in seen["counts"])
    assert sum(seen["counts"]["paper"]) > 0


def train(graph: Path, run_dir: Path, *more: str, extra: tuple[str, ...] = (),
          status: int = 0) -> dict:
    sets = [part for text in [*SETTINGS, *more] for part in ("--set", text)]
    done = subprocess.run([warm.python(), "-m", "dgl_heta", "train", str(graph), "--run-dir",
                           str(run_dir), "--json", *sets, *extra], capture_output=True, text=True,
                          timeout=PATIENCE, check=False)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if not status else {"error": done.stderr}


def test_workers_share_and_resume_with_caches_as_without(store: Path, tmp_path: Path) -> None:
    """Two workers, types in common, tables on disk, a stop in between: one model."""
    plan = make_plan(Store(store).schema, ["paper"], 2, 2)
    write_partition(academic(papers=120), plan, tmp_path / "part")
    train(tmp_path / "part", tmp_path / "plain")
    cache = ["cache.policy=density", "cache.capacity_mb=0.004", *EVERY_TIER]
    summary = train(tmp_path / "part", tmp_path / "cached", *cache)
    want = load_file(tmp_path / "plain" / "model.safetensors")

    def same(run: str) -> bool:
        got = load_file(tmp_path / run / "model.safetensors")
        return got.keys() == want.keys() and all(torch.equal(got[k], want[k]) for k in want)

    assert same("cached")
    found = summary["cache"]
    assert found["policy"] == "density"
    assert found["types"]
    assert all(0 <= c["hits"] <= c["reads"] for c in found["types"].values())
    assert sum(c["hits"] for c in found["types"].values()) > 0
    assert set(found["types"]) == {"paper", "field", "author", "institution"}
    report = (tmp_path / "cached" / "report.html").read_text()
    assert "Feature cache" in report
    assert len(list((tmp_path / "part" / "profiles").iterdir())) == 4
    line = json.loads((tmp_path / "cached" / "metrics.jsonl").read_text().splitlines()[0])
    assert set(line["cache"]) == set(found["types"])
    # Stopped after one epoch, continued by another policy: what a checkpoint holds is all.
    train(tmp_path / "part", tmp_path / "stopped", *cache, "train.epochs=1")
    train(tmp_path / "part", tmp_path / "stopped", "cache.policy=fifo", "cache.capacity_mb=0.002",
          *EVERY_TIER, extra=("--resume",))
    assert same("stopped")
    assert not list(tmp_path.rglob(".table*"))


@pytest.mark.thorough
def test_profile_command_shows_what_policies_would_save(store: Path, tmp_path: Path) -> None:
    sets = [part for text in [*SETTINGS, "cache.tables=disk", "partition.parts=2"]
            for part in ("--set", text)]

    command = [warm.python(), "-m", "dgl_heta", "profile", str(store), *sets, "--json", "--out",
               str(tmp_path / "profile"), "--svg", str(tmp_path / "saved.svg")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    result = json.loads(done.stdout.splitlines()[-1])
    assert [w["rank"] for w in result["workers"]] == [0, 1]
    for worker in result["workers"]:
        curve = worker["policies"]["hotness"]
        assert curve["hit_rate"] == sorted(curve["hit_rate"])
        assert worker["policies"]["none"]["hit_rate"] == [0] * len(curve["hit_rate"])
        assert all(0 <= x <= 1 + 1e-9 for p in worker["policies"].values() for x in p["time_saved"])
    assert (tmp_path / "saved.svg").read_text().startswith("<?xml")
    assert {p.name.split("-")[0] for p in (tmp_path / "profile").iterdir()} == {
        "visits", "penalties"}
    console = Console(width=120, record=True, file=io.StringIO())
    show_profile(result, console)
    text = console.export_text()
    assert "Worker 1" in text
    assert "density" in text
    # Training takes it from there.
    files = {p: p.stat().st_mtime_ns for p in (tmp_path / "profile").iterdir()}
    train(store, tmp_path / "run", "cache.tables=disk", "partition.parts=2",
          "cache.policy=hotness", f"cache.profile={tmp_path / 'profile'}", "train.epochs=1")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "profile").iterdir()} == files
