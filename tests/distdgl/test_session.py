"""A session refuses what no script can use, and what a replay does in it is not seen by the run."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

os.environ.setdefault("DGLBACKEND", "pytorch")

import pytest
import torch

from dgl_heta.comm.collectives import Comm, Traffic
from dgl_heta.distdgl.due_merges import DueMerges
from dgl_heta.distdgl.reference import Reference
from dgl_heta.distdgl.session import Session
from dgl_heta.distdgl.state import process_state
from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from dgl_heta.planning.plan import Plan
from dgl_heta.raf.chain import Chain
from dgl_heta.sampling.blocks import Block
from dgl_heta.settings import load_settings
from tests.support.cuts import cut_partition
from tests.support.dist_reference import parts, whole_graph


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(parts(whole_graph(), 1, tmp_path_factory.mktemp("session") / "parts"))


def opened(config: str, *settings: str) -> Session:
    chosen = load_settings(None, ["train.kernel=torch", *settings])
    return Session(config, 0, chosen, Plugins(guests=False))


@pytest.mark.parametrize(("settings", "message"), [
    (["train.seed_states=false", "model.self_loop=false"],
     "train.seed_states = false cannot be used .* destinations' states; leave it out"),
    (["train.dtype=float64"], "train.dtype = 'float64' cannot be used .* decides; leave it out"),
    (["train.trainers=2"], "train.trainers = 2 has no effect .* a machine has; leave it out"),
    (["partition.shared=delegate"], "made without it; partition the graph with this setting")])
def test_refused_settings(config: str, settings: list[str], message: str
                                             ) -> None:
    with pytest.raises(InputError, match=message):
        opened(config, *settings)


def test_in_edges_of_a_node_that_are_cut_are_refused(tmp_path: Path) -> None:
    whole = parts(whole_graph(), 2, tmp_path / "whole")
    where = str(cut_partition(whole, "hubs", tmp_path / "parts"))
    with pytest.raises(InputError, match="cuts the in-edges of single nodes by '.*', which modules "
                                         ".* make it again with partition.cut = ranges"):
        opened(where)


def test_nothing_can_be_compared_to_metapaths() -> None:
    with pytest.raises(InputError, match="there is nothing to compare with; partition it by hops"):
        Reference().plan(cast(Plan, SimpleNamespace(metapaths=[("writes",)])))


def test_trainers_need_a_process_group(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(config)
    monkeypatch.setattr(session, "_count_trainers", lambda: 2)
    with pytest.raises(InputError, match=r"call torch.distributed.init_process_group before the "
                                         "first data loader: trainers exchange"):
        session.connect()


def test_a_replay_leaves_the_session_as_it_was(config: str) -> None:
    session = opened(config)
    session.groups.agreed["asked"] = 1
    before, world = dict(vars(session)), session.world
    other = Comm(Traffic())
    with session.replayed(other, other, Chain()):
        assert session.world is session.group is other
        assert not session.order.checking
        assert not session.groups.agreed
        session.groups.agreed["in the replay"] = 2
        session.backward.under_way()  # outside of a backward pass: an error if it were heard
    assert vars(session) == before
    assert session.world is world
    assert session.groups.agreed == {"asked": 1}
    session.close()
    assert not session.groups.agreed


def test_the_process_closes_its_session(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session, closed = opened(config), []
    monkeypatch.setattr(session, "close", lambda: closed.append(session))
    process_state().session = session
    process_state().close()
    assert closed == [session]
    assert process_state().session is None


def test_batches_that_were_not_used_are_checked_later(config: str,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    session, checked = opened(config), []
    monkeypatch.setattr(DueMerges, "_check", lambda self, due, done: checked.append(done))
    merges = session.merges

    def block(done: set[tuple[int, str]]) -> Any:
        made = Block.__new__(Block)
        vars(made).update(layer=1, seeds={}, remote={}, done=done)
        return made

    used, unused = {(1, "paper")}, set()
    merges.begin([block(unused)])
    merges.begin([block(used)])
    assert checked == []
    merges.begin([block(set())])
    assert checked == [used]
    unused.add((1, "author"))
    merges.check_earlier()
    assert checked == [used, unused]
    with session.order.call():
        merges.begin([block({(1, "paper")})])
        merges.check_earlier()
    assert len(checked) == 2


def test_compared_runs_send_numbers_as_they_are(config: str) -> None:
    assert not opened(config).reference
    assert opened(config, "run.reference=true").reference
    assert opened(config, "train.exchange_dtype=bfloat16").groups._wire is torch.bfloat16
    assert opened(config, "train.exchange_dtype=bfloat16", "run.reference=true"
                  ).groups._wire is None
