"""Switching dgl-heta on and off in a process; which graph counts; what is there at the end."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

import dgl_heta
from dgl_heta.distdgl.activate import every_patch
from dgl_heta.distdgl.state import process_state, selected
from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.system import patching
from tests.support.standalone import run
from tests.support.waiting import PATIENCE

MISSING = object()


def there() -> dict[str, object]:
    """What stands at every name that is patched."""
    found = {}
    for patch in every_patch(Plugins(guests=False)):
        owner, name = patch.place()
        found[patch.target] = vars(owner).get(name, MISSING)
    return found


def test_disable_puts_every_name_back(off):
    before = there()
    assert len(before) == len(every_patch(Plugins(guests=False)))
    dgl_heta.enable()
    assert patching.applied()
    during = there()
    assert [t for t in before if during[t] is before[t]] == []
    dgl_heta.enable()
    again = there()
    assert all(again[t] is during[t] for t in again)
    dgl_heta.disable()
    assert not patching.applied()
    after = there()
    assert [t for t in before if after[t] is not before[t]] == []
    dgl_heta.disable()


@pytest.mark.parametrize(("settings", "message"), [
    (["partition.method=nope"], "unknown partition backend 'nope'|partition backend"),
    (["train.wrapper=nope"], "module wrapper"),
    (["cache.policy=nope"], "cache policy"),
    (["train.kernel=nope"], "unknown aggregation kernel .nope.; known are: auto, "),
    (["train.wraper=raf"], "unknown setting 'train.wraper'; did you mean 'train.wrapper'"),
    (["train.learnable=both"], "train.learnable"),
    (["train.seed_states=false"], "train.seed_states = false"),
])
def test_wrong_settings_are_refused_and_nothing_is_patched(off, settings, message):
    with pytest.raises(InputError, match=message):
        dgl_heta.enable(settings=settings)
    assert not patching.applied()


def test_settings_come_from_a_file_and_a_missing_file_is_named(off, tmp_path):
    with pytest.raises(InputError, match="cannot read settings .*missing.toml"):
        dgl_heta.enable(tmp_path / "missing.toml")
    (tmp_path / "heta.toml").write_text('[partition]\nmethod = "nope"\n')
    with pytest.raises(InputError, match="nope"):
        dgl_heta.enable(tmp_path / "heta.toml")


def test_a_call_without_settings_keeps_those_of_before_and_others_are_said(off, caplog):
    dgl_heta.enable(settings=["train.learnable=replica"])
    dgl_heta.enable()
    assert selected().train.learnable == "replica"
    assert not caplog.messages
    dgl_heta.enable(settings=["train.learnable=exact"])
    assert selected().train.learnable == "exact"
    assert "replaces the settings" in caplog.text


def test_settings_by_which_a_graph_is_open_stay(on, monkeypatch):
    monkeypatch.setattr(process_state(), "session", SimpleNamespace(close=lambda: None))
    dgl_heta.enable()
    with pytest.raises(InputError, match=r"call dgl_heta\.disable before"):
        dgl_heta.enable(settings=["train.learnable=replica"])


WAYS = (["-m", "dgl_heta", "run"], ["-m", "dgl_heta.launch.fail_fast"])
ENDS = """
import gzip, pickle, sys, threading, time
out, packed = open(sys.argv[1] + "/log.csv", "w"), gzip.open(sys.argv[1] + "/log.gz", "wt")

class Result:
    pass

def log(line):
    out.write(line)
    packed.write(line)

def save():
    time.sleep(0.5)
    log("from a thread")
    log(f", {len(pickle.dumps(Result()))} bytes")

threading.Thread(target=save).start()
"""


def test_what_a_script_has_not_written_yet_at_its_end_is_written(tmp_path):
    (tmp_path / "ends.py").write_text(ENDS)
    for words in WAYS:
        done = subprocess.run([sys.executable, *words, str(tmp_path / "ends.py"), str(tmp_path)],
                              timeout=PATIENCE, check=False)
        assert done.returncode == 0
        text = (tmp_path / "log.csv").read_text()
        assert re.fullmatch("from a thread, [0-9]+ bytes", text), words
        assert gzip.decompress((tmp_path / "log.gz").read_bytes()).decode() == text, words


def test_a_script_may_close_its_standard_output(tmp_path):
    script = tmp_path / "closes.py"
    script.write_text("import sys\nwith open(sys.argv[1], 'w') as sys.stdout:\n    print('done')")
    for words in WAYS:
        done = subprocess.run([sys.executable, *words, str(script), str(tmp_path / "log")],
                              timeout=PATIENCE, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "ValueError" not in done.stderr


def test_output_that_cannot_be_written_is_no_good_end(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (tmp_path / "prints.py").write_text("print('result 0.9')")
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, *WAYS[0], str(tmp_path / "prints.py")], stdout=full,
                              timeout=PATIENCE, check=False, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 120  # as of Python
    assert done.stderr.count("error: cannot write <stdout>: No space left on device") == 1


TWO = """
import sys
import dgl, torch

out, method = sys.argv[1:]
for value, name in ((1, "A"), (2, "B")):
    g = dgl.heterograph({("a", "r", "b"): (torch.arange(6), torch.arange(6)),
                         ("b", "s", "a"): (torch.arange(6), torch.arange(6).flip(0))})
    g.nodes["a"].data["train_mask"] = torch.ones(6, dtype=torch.bool)
    for t in "ab":
        g.nodes[t].data["feat"] = torch.full((6, 2), float(value))
    dgl.distributed.partition_graph(g, "g", 1, f"{out}/{name}",
                                    part_method="meta" if name == "A" else method)
dgl.distributed.initialize(None)
for name in "AB":
    g = dgl.distributed.DistGraph("g", part_config=f"{out}/{name}/g.json")
    print("read", g.nodes["b"].data["feat"][torch.arange(3)].unique().tolist())
"""


@pytest.mark.parametrize(("method", "settings"), [
    ("random", []), ("meta", ["cache.policy=hotness", "cache.batches=1", "cache.gate=false"])])
def test_the_graph_that_was_opened_last_counts(tmp_path, method, settings):
    (tmp_path / "two.py").write_text(TWO)
    text = run(*(word for setting in settings for word in ("--set", setting)),
               tmp_path / "two.py", tmp_path, method, heta=True)
    assert [line for line in text.splitlines() if line.startswith("read")] == [
        "read [1.0]", "read [2.0]"]
