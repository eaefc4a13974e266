"""`dgl-heta stage --hosts`: machines that share no disk get what they need, over OpenSSH."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import dgl_heta
from dgl_heta.errors import HetaError
from dgl_heta.launch.cluster import Host
from dgl_heta.launch.remote import Ssh
from dgl_heta.launch.sending import Sender
from dgl_heta.partition.directory import write_partition
from dgl_heta.partition.staged_directory import working_directory
from dgl_heta.partition.staging import Staging, opened_partition
from dgl_heta.planning.making import make_plan
from dgl_heta.store import Store, write_store
from dgl_heta.system.checksums import file_sum
from tests.support.graphs import academic
from tests.support.launching import over_ssh
from tests.support.ssh_hosts import ADDRESSES, LAUNCHER, SshHosts
from tests.support.storage import server, storage_port
from tests.support.waiting import PATIENCE, until

HOSTS = [Host(i, address) for i, address in enumerate(ADDRESSES)]
SETTINGS = ["train.epochs=1", "model.hidden=8", "train.fanouts=4,4", "train.threads=1",
            "train.device=cpu", "partition.shared=rows"]


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("graph")
    write_store(academic(papers=120, dense=20), directory / "store")
    opened = Store(directory / "store")
    write_partition(opened, make_plan(opened.schema, "paper", 2, 2), directory / "parts")
    return directory / "parts"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Where each host has a disk of its own; with a blank and a quote in its name."""
    path = tmp_path / "nvme 'of a host'"
    path.mkdir()
    return path


def on(hosts: SshHosts, host: Host, command: list[str], **variables: str) -> subprocess.Popen[str]:
    words = ["env", *(f"{name}={value}" for name, value in variables.items()), *command]
    return subprocess.Popen(Ssh(config=hosts.config).command(host, shlex.join(words)),
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def staging(partition: Path, part: int) -> Staging:
    with opened_partition(str(partition)) as opened:
        return Staging.of(opened, [part])


@over_ssh
def test_hosts_without_a_common_disk_train_as_one_machine_does(place, partition, disk, tmp_path):
    hosts = place.ssh_hosts()
    listed = place.script("".join(f"{address}\n" for address in ADDRESSES), "hosts.txt")
    command = [sys.executable, "-m", "dgl_heta", "stage", str(partition), "--hosts", str(listed),
               "--to", str(disk / "graph"), "--ssh-config", str(hosts.config), "--json"]

    def stage(*more: str) -> list[dict]:
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])["stagings"]

    train = [sys.executable, "-m", "dgl_heta", "train"]
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    with hosts.mounted(0, disk), hosts.mounted(1, disk):
        forecast = stage("--dry-run")
        staged = stage()
        assert [each["copied"] for each in staged] == [True, True]
        ranks = [on(hosts, host, [*train, str(disk / "graph"), "--run-dir", str(disk / "run"),
                                  *words],
                    RANK=str(host.index), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                    MASTER_ADDR=ADDRESSES[0], MASTER_PORT="29501",
                    GLOO_SOCKET_IFNAME="eth0") for host in HOSTS]
        sizes = [on(hosts, host, ["sh", "-c", f"cd {shlex.quote(str(disk))} && find . -name "
                                  "'*.npy' -printf '%s\\n'"]) for host in HOSTS]
        said = [process.communicate(timeout=PATIENCE)[0] for process in (*ranks, *sizes)]
        assert [process.returncode for process in ranks] == [0, 0], said
        model = on(hosts, HOSTS[0], ["sha256sum", str(disk / "run" / "model.safetensors")])
        checksum = model.communicate(timeout=PATIENCE)[0].lstrip("\\").split()[0]
    assert [each["bytes"] for each in forecast] == [
        sum(map(int, text.split())) for text in said[2:]]
    assert not list(disk.iterdir())
    alone = subprocess.run([*train, str(partition), "--run-dir", str(tmp_path / "alone"), *words],
                           capture_output=True, text=True, timeout=PATIENCE)
    assert alone.returncode == 0, alone.stderr
    assert file_sum(tmp_path / "alone" / "model.safetensors") == checksum


@over_ssh
def test_each_host_reads_object_storage_with_its_own_keys(place, partition, disk, tmp_path,
                                                           monkeypatch):
    pytest.importorskip("moto.server")
    hosts = place.ssh_hosts()
    listed = place.script("".join(f"{address}\n" for address in ADDRESSES), "hosts.txt")
    port = storage_port(monkeypatch, LAUNCHER)
    keys = hosts.directory / "home" / ".aws"
    keys.mkdir()
    (keys / "credentials").write_text("[default]\naws_access_key_id = its\n"
                                      "aws_secret_access_key = own\n")
    (keys / "config").write_text(f"[default]\nendpoint_url = http://{LAUNCHER}:{port}\n"
                                 "region = us-east-1\n")
    with server(port, LAUNCHER), hosts.mounted(0, disk), hosts.mounted(1, disk):
        # By a process of its own: fsspec's thread stays in the network in which it began.
        url = subprocess.run(
            [sys.executable, "-c", "import sys, pathlib; from tests.support.storage import upload; "
             "print(upload(pathlib.Path(sys.argv[1]), 'bucket/graph'))", partition.parent],
            check=True, capture_output=True, text=True, timeout=PATIENCE,
            cwd=Path(__file__).parents[2]).stdout.strip() + "/parts"
        command = [sys.executable, "-m", "dgl_heta", "stage", url, "--hosts", str(listed), "--to",
                   str(disk / "graph"), "--ssh-config", str(hosts.config), "--json"]
        for copied in (True, False):
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == 0, done.stderr
            assert [each["copied"] for each in json.loads(done.stdout)["stagings"]] == [copied] * 2
        sums = [on(hosts, host, ["sh", "-c", f"cd {shlex.quote(str(disk))} && find . -name '*.npy' "
                                 "-exec sha256sum {} +"]) for host in HOSTS]
        there = [process.communicate(timeout=PATIENCE)[0].split() for process in sums]
    shutil.rmtree(keys)
    for host, words in zip(HOSTS, there):
        one = staging(partition, host.index)
        assert dict(zip(words[1::2], words[::2])) == {
            f"./graph/store/{entry.file}": entry.sha256 for entry in one.entries}
    assert not list(disk.iterdir())


@over_ssh
def test_what_arrived_before_a_fault_is_not_sent_again(place, partition, disk):
    """A file that is whole stays as it is, half a one becomes whole; what differs is named by the
    host that has it, and sent again by the next run."""
    hosts, one = place.ssh_hosts(), staging(partition, 0)
    sender = Sender(Ssh(config=hosts.config), disk / "graph")
    store = one.store.directory
    work = working_directory(disk / "graph") / "store"
    whole, half, wrong = (entry.file for entry in one.entries[:3])
    for file in (whole, half, wrong):
        (work / file).parent.mkdir(parents=True, exist_ok=True)
        (work / file).write_bytes((store / file).read_bytes()[:100 if file == half else None])
    os.utime(work / whole, ns=((store / whole).stat().st_mtime_ns,) * 2)
    before = (work / whole).stat()
    changed = bytearray((work / wrong).read_bytes())
    changed[-1] ^= 1
    (work / wrong).write_bytes(changed)
    os.utime(work / wrong, ns=((store / wrong).stat().st_mtime_ns,) * 2)
    with pytest.raises(HetaError, match=f"host0 .*{Path(wrong).name} was edited or damaged.*run "
                       "the same command again"):
        sender.send([(HOSTS[0], one)])
    assert sender.send([(HOSTS[0], one)]) == [True]
    after = (disk / "graph" / "store" / whole).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    Store(disk / "graph" / "store").verify()


@over_ssh
def test_each_host_says_what_is_wrong_there(place, partition, disk, tmp_path):
    hosts = place.ssh_hosts()
    pair = [(host, staging(partition, host.index)) for host in HOSTS]
    sender = Sender(Ssh(config=hosts.config), disk / "graph")
    version = Path(dgl_heta.__file__).with_name("_version.py")
    other = place.script('__version__ = "9.9"\n', "other.py")
    with hosts.mounted(0, disk, size="64k"), hosts.mounted(1, version, other), pytest.raises(
            HetaError) as error:
        sender.send(pair)
    assert "2 of 2 hosts could not be staged to: host0 (10.99.0.1) has room " in str(error.value)
    assert ("; host1 (10.99.0.2) has dgl-heta 9.9, this machine "
            f"{dgl_heta.__version__}; install the same version on both") in str(error.value)
    (disk / "graph").mkdir()
    with pytest.raises(HetaError, match=r"^host0 \(10.99.0.1\): .*graph exists and is another"):
        sender.send(pair[:1])
    (disk / "graph").rmdir()
    work = working_directory(disk / "graph")
    work.mkdir()
    with (work / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(HetaError, match=r"^host0 .*: another command stages into .*graph"):
            sender.send(pair[:1])
    elsewhere = Sender(sender.ssh, sender.out, sys.base_prefix + "/bin/python3")
    with pytest.raises(HetaError, match=r"^host0 .*has no dgl-heta of this version .*--python"):
        elsewhere.send(pair[:1])
    refused = Sender(Ssh(config=hosts.config, port=9), sender.out)
    with pytest.raises(HetaError, match=r"^host0 .*refused; is it up, and is this the port"):
        refused.send(pair[:1])
    assert not (disk / "graph").exists()


@over_ssh
def test_nothing_goes_on_when_staging_is_ended(place, partition, disk, tmp_path):
    """SIGTERM ends it at once, with the rsync that was sending."""
    slow = tmp_path / "bin" / "rsync"
    slow.parent.mkdir()
    slow.write_text(f"#!/bin/sh\necho $$ > {shlex.quote(str(tmp_path / 'pid'))}\nexec sleep 600\n")
    slow.chmod(0o755)
    hosts, cut = place.ssh_hosts(), tmp_path / "hosts.txt"
    cut.write_text(f"{ADDRESSES[0]}\n{ADDRESSES[1]}\n")
    staging = subprocess.Popen(
        [sys.executable, "-m", "dgl_heta", "stage", partition, "--to", disk / "graph", "--hosts",
         cut, "--ssh-config", hosts.config], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PATH": f"{slow.parent}:{os.environ['PATH']}"})
    told = tmp_path / "pid"
    assert until(lambda: told.exists() and told.read_text().strip())
    staging.terminate()
    _, said = staging.communicate(timeout=PATIENCE)
    assert staging.returncode == 143, said
    assert until(lambda: not Path(f"/proc/{told.read_text().strip()}").exists())


def test_a_host_that_reads_object_storage_ends_with_who_asked_it(tmp_path: Path) -> None:
    """ssh that is ended leaves there what it has started: it read on, into a busy directory."""
    pytest.importorskip("s3fs")
    with socket.create_server(("127.0.0.1", 0)) as storage:  # which does not answer
        told = {"source": "s3://bucket/graph", "parts": [0], "also": [], "overwrite": False}
        reader = subprocess.Popen(
            [sys.executable, "-m", "dgl_heta.launch.receiving", "stage", tmp_path / "graph"],
            stdin=subprocess.PIPE, text=True, env={
                **os.environ, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{storage.getsockname()[1]}"})
        assert reader.stdin is not None
        reader.stdin.write(json.dumps(told) + "\n")
        reader.stdin.flush()
        connection, _ = storage.accept()  # it reads
        with connection:
            assert reader.poll() is None
            reader.stdin.close()
            assert reader.wait(PATIENCE) == 128 + signal.SIGTERM
