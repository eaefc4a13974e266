"""`dgl-heta stage`: for each machine a directory with what its partitions read."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from dgl_heta.cli.options import AsJson, Overwrite, SshOptions, grouped, refuse
from dgl_heta.errors import InputError
from dgl_heta.report.console import note, out, print_json, progress, table

if TYPE_CHECKING:
    from dgl_heta.launch.cluster import Host
    from dgl_heta.partition.staging import OpenedPartition, Staging

app = typer.Typer()
_MOST_ROWS = 12


@dataclass(frozen=True)
class MachineOptions:
    """Which machines there are."""

    hosts: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Stage to these machines over ssh, a line each: an address or a name, "
        "in the order of their ranks. rsync must be on all of them.")] = None
    python: Annotated[str | None, typer.Option(
        help="Python with dgl-heta there, with --hosts. Default: the path of this one.")] = None
    timeout: Annotated[float, typer.Option(
        min=1, help="Seconds to wait for a connection, with --hosts.")] = 30


@dataclass
class _Each:
    """The staging to one machine, and the result."""

    staging: Staging
    directory: Path
    host: Host | None = None
    copied: bool = False
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {"host": self.host and self.host.destination,
                "parts": list(self.staging.staged.parts), "directory": str(self.directory),
                "bytes": self.staging.bytes, "by_name": self.staging.by_name(),
                "copied": self.copied, "seconds": self.seconds}


@app.command(epilog="Example: dgl-heta stage data/mag --to /nvme/mag --part 0. Or, for all "
             "machines: dgl-heta stage data/mag --hosts hosts.txt --to /nvme/mag --dry-run")
@grouped
def stage(
    partition: Annotated[str, typer.Argument(
        help="Partition, as `dgl-heta partition` writes it, or a copy of it in object storage by "
        "its URL, such as s3://bucket/mag.")],
    to: Annotated[Path, typer.Option("--to", help="Directory to write, on each machine.")],
    machines: MachineOptions, ssh: SshOptions,
    part: Annotated[list[int] | None, typer.Option(
        "--part", metavar="NUMBER", help="Partition that this machine runs; repeat it for "
        "several. Default: each into a directory of its own, part-0, part-1 …")] = None,
    also: Annotated[list[str] | None, typer.Option(
        "--also", metavar="NAME", help="Relation (src:etype:dst) or node type that a training "
        "reads beside its partition's, such as one whose edges it predicts.")] = None,
    dry_run: Annotated[bool, typer.Option(
        "--dry-run", help="Show the bytes per machine, write nothing.")] = False,
    overwrite: Overwrite = False, as_json: AsJson = False,
) -> None:
    """Copy what a machine's partitions read into a directory that opens with nothing else.

    Staging that was interrupted goes on where it ended; what is there already is not copied again.
    All files are compared with the checksums of the partition before the directory appears.
    """
    from dgl_heta.partition.staging import opened_partition
    from dgl_heta.system.remote_files import check_on_disk

    check_on_disk(to, "--to")
    with opened_partition(partition) as opened:
        each = _planned(opened, to, machines, part, also or [])
        if not dry_run:
            _stage(each, machines, ssh, overwrite, not as_json)
        whole = opened.store.manifest.bytes
    if as_json:
        print_json({"partition": partition, "dry_run": dry_run,
                    "stagings": [one.to_json() for one in each]})
    else:
        _show(whole, each, dry_run)


def _planned(opened: OpenedPartition, to: Path, machines: MachineOptions, part: list[int] | None,
             also: list[str]) -> list[_Each]:
    """Decide which partitions each machine gets."""
    from dgl_heta.launch.cluster import DGL_PORT, read_ip_config
    from dgl_heta.launch.remote import is_this_machine
    from dgl_heta.launch.sending import parts_of_hosts
    from dgl_heta.partition.staging import Staging

    if machines.hosts is None:
        refuse({"--python": machines.python}, "an effect with --hosts only")
        groups = [part] if part else [[p] for p in range(opened.plan.num_parts)]
        return [_Each(Staging.of(opened, group, also), to if part else to / f"part-{group[0]}")
                for group in groups]
    refuse({"--part": part}, "no effect with --hosts, whose order says who runs what; leave one "
           "of them out")
    hosts = read_ip_config(machines.hosts)
    here = [str(host) for host in hosts if is_this_machine(host.address)]
    if len(here) > 1:
        raise InputError(f"{' and '.join(here)} are this machine, on which {to} would be written "
                         "twice, each with other partitions; list a machine once")
    if any(host.port != DGL_PORT for host in hosts):
        note(f"the ports in {machines.hosts} are for DistDGL; ssh goes by --ssh-port")
    return [_Each(Staging.of(opened, group, also), to.absolute(), host)
            for host, group in zip(hosts, parts_of_hosts(opened.plan.num_parts, hosts))]


def _stage(each: list[_Each], machines: MachineOptions, ssh: SshOptions, overwrite: bool,
           show: bool) -> None:
    from dgl_heta.launch.remote import is_this_machine
    from dgl_heta.launch.sending import Sender

    sent = [one for one in each if one.host and not is_this_machine(one.host.address)]
    started = time.perf_counter()
    with progress(show) as advance:
        for one in each:
            if one not in sent:
                one.copied = one.staging.write(one.directory, overwrite=overwrite,
                                               progress=advance)
                one.seconds = time.perf_counter() - started
        if sent:
            sender = Sender(ssh.ssh(machines.timeout), sent[0].directory,
                            machines.python or sys.executable, overwrite)
            done = sender.send([(one.host, one.staging) for one in sent if one.host],
                               lambda host, what: advance(f"{host}: {what}", 0))
            for one, copied in zip(sent, done):
                one.copied, one.seconds = copied, time.perf_counter() - started


def _show(whole: int, each: list[_Each], dry_run: bool) -> None:
    from dgl_heta.report.text import human_bytes

    rows = table("host", "partition", "bytes", "of the store", "directory", "",
                 right=["bytes", "of the store"])
    for one in each:
        state = ("" if dry_run else f"copied in {one.seconds:.1f} s" if one.copied
                 else "there already")
        size = one.staging.bytes
        rows.add_row(str(one.host or ""), ", ".join(map(str, one.staging.staged.parts)),
                     human_bytes(size), f"{size / max(whole, 1):.0%}",
                     escape(str(one.directory)), state)
    out.print(rows)
    heaviest = max(each, key=lambda one: one.staging.bytes).staging
    largest = sorted(heaviest.by_name().items(), key=lambda item: -item[1])[:_MOST_ROWS]
    listed = ", ".join(map(str, heaviest.staged.parts))
    out.print(f"Largest in partition {listed}: " + ", ".join(
        f"{escape(name)} {human_bytes(size)}" for name, size in largest), highlight=False)
    if dry_run:
        out.print("Nothing was written (--dry-run).", highlight=False)
