"""The command line of `dgl-heta launch`: its options, their checks and what it prints."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dgl_heta.errors import InputError

if TYPE_CHECKING:
    from dgl_heta.launch.activation import Command
    from dgl_heta.launch.supervise import Job

EXAMPLE = ("Example: dgl-heta launch --hosts 2 --rate 1gbit --part-config data/mag.json "
           "-c heta.toml -- python train_dist.py --ip-config {ip_config}")


def launch(
    command: Annotated[list[str], typer.Argument(
        metavar="COMMAND", show_default=False,
        help="What every server and trainer runs, such as python train_dist.py …; {ip_config} "
        "and {part_config} in it become the paths of these files.")],
    part_config: Annotated[Path, typer.Option(
        metavar="FILE", help="What partition_graph wrote, such as data/mag.json.")],
    ip_config: Annotated[Path | None, typer.Option(
        metavar="FILE", help="The hosts: a line each, an address and, if it is not 30050, a "
        "port. They are reached over ssh.")] = None,
    hosts: Annotated[int | None, typer.Option(
        min=1, help="Emulate so many hosts on this machine instead.")] = None,
    config: Annotated[Path | None, typer.Option(
        "-c", "--config", metavar="FILE", help="Settings in TOML: run the script under "
        "`dgl-heta run`. Without settings it runs as it is, with plain DistDGL.")] = None,
    overrides: Annotated[list[str] | None, typer.Option(
        "--set", help="Override a setting, e.g. --set train.lr=0.003.")] = None,
    num_trainers: Annotated[int, typer.Option(min=1, help="Trainers per host.")] = 1,
    num_samplers: Annotated[int, typer.Option(
        min=0, help="Sampling processes per trainer.")] = 0,
    num_servers: Annotated[int, typer.Option(min=1, help="Servers per host.")] = 1,
    num_server_threads: Annotated[int, typer.Option(
        min=1, help="OpenMP threads per server.")] = 1,
    num_omp_threads: Annotated[int | None, typer.Option(
        min=1, help="OpenMP threads per trainer. Default: OMP_NUM_THREADS, else the cores of "
        "its host evenly.")] = None,
    graph_format: Annotated[str, typer.Option(
        help="Formats of the graph in servers: csc, csr, coo, separated by commas.")] = "csc",
    env: Annotated[list[str] | None, typer.Option(
        metavar="NAME=VALUE", help="A variable for all processes; repeat it for more.")] = None,
    workdir: Annotated[Path | None, typer.Option(
        metavar="DIR", help="Where the processes start, on every host. Default: here.")] = None,
    rate: Annotated[str | None, typer.Option(
        help="Emulated hosts: speed of every host's link, such as 1gbit. Default: no "
        "limit.")] = None,
    latency: Annotated[float, typer.Option(
        min=0, help="Emulated hosts: milliseconds that a packet takes. Default: no wait.",
        show_default=False)] = 0,
    cores: Annotated[int | None, typer.Option(
        min=1, help="Emulated hosts: cores of every host, its own as far as there are enough. "
        "Default: all hosts share all.")] = None,
    ssh_port: Annotated[int | None, typer.Option(
        min=1, max=65535, help="Port of ssh. Default: as ssh is configured.")] = None,
    ssh_user: Annotated[str | None, typer.Option(
        help="User of ssh. Default: as ssh is configured.")] = None,
    local: Annotated[bool, typer.Option(
        "--local/--no-local", help="Start a host that is this machine without ssh.")] = True,
    master_port: Annotated[int | None, typer.Option(
        min=1, max=65535, help="Port at the first host where the trainers meet. Default: a free "
        "one.")] = None,
    timeout: Annotated[float, typer.Option(
        min=1, help="Seconds for the hosts to answer before the start.")] = 30,
    stop_after: Annotated[float | None, typer.Option(
        min=0, help="Seconds after which the run is ended and has failed. Default: no "
        "limit.")] = None,
    dry_run: Annotated[bool, typer.Option(
        "--dry-run", help="Check the input and show every process with its environment, start "
        "nothing.")] = False,
    as_json: Annotated[bool, typer.Option(
        "--json", help="Print the summary as one JSON object (last line).")] = False,
    json_file: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Write the same JSON object to a file.")] = None,
) -> None:
    """Run a DistDGL script on several hosts, or on hosts emulated here.

    With settings (-c, --set, DGL_HETA_CONFIG) it runs with meta-partitioning and RAF.
    """
    from dgl_heta.launch import console, supervise
    from dgl_heta.launch.cluster import Roles, check_part_config, read_ip_config
    from dgl_heta.launch.emulated import Link, emulated_hosts
    from dgl_heta.launch.remote import Ssh, is_this_machine

    link = Link(rate, latency)
    if hosts is not None and ip_config is None:
        found, direct = emulated_hosts(hosts), frozenset[int]()
    elif ip_config is not None and hosts is None:
        for option, value in (("--rate", rate), ("--latency", latency), ("--cores", cores)):
            if value:
                raise InputError(f"{option} is for emulated hosts (--hosts); real hosts have "
                                 "what they have")
        found = read_ip_config(ip_config)
        direct = frozenset(h.index for h in found if local and is_this_machine(h.address))
    else:
        raise InputError("give either --ip-config with the hosts' addresses, or --hosts with how "
                         "many to emulate")
    ours = check_part_config(part_config, len(found))
    if num_omp_threads is None and os.environ.get("OMP_NUM_THREADS", "").isdecimal():
        num_omp_threads = max(1, int(os.environ["OMP_NUM_THREADS"]))
    job = supervise.Job(
        hosts=found, command=_command(command, config, overrides or []),
        roles=Roles(num_trainers, num_samplers, num_servers, num_server_threads, num_omp_threads,
                    graph_format, _variables(env or [])),
        part_config=part_config.absolute(), workdir=(workdir or Path()).absolute(),
        emulated=link if hosts is not None else None, direct=direct,
        cores=_cores(len(found), cores) if cores else (), ssh=Ssh(ssh_port, ssh_user, timeout),
        carried=_carried(), master_port=master_port, timeout=timeout,
        stop_after=math.inf if stop_after is None else stop_after)
    _check(job)
    if ours and not job.command.active:
        print(f"note: {part_config} was made by meta-partitioning, which plain DistDGL refuses; "
              "give -c heta.toml or --set (as --set train.wrapper=raf)", file=sys.stderr)
    if dry_run:
        console.show_processes(job, as_json)
        return
    outcome = supervise.run_job(job, console.line_printer(job))
    summary = console.summary(job, outcome)
    if json_file is not None:
        json_file.write_text(json.dumps(summary) + "\n", encoding="utf-8")
    console.show_summary(job, outcome)
    if as_json:
        print(json.dumps(summary), flush=True)
    if outcome.signal is not None:
        print(f"error: ended by {signal.Signals(outcome.signal).name}", file=sys.stderr)
        raise typer.Exit(outcome.status)
    if outcome.error is not None:
        raise outcome.error


def _command(words: list[str], config: Path | None, overrides: list[str]) -> Command:
    """What all processes run; the settings are checked before anything starts."""
    from dgl_heta.launch.activation import Command, activate

    if config is None and os.environ.get("DGL_HETA_CONFIG"):
        config = Path(os.environ["DGL_HETA_CONFIG"])
    command = Command(tuple(words), config.absolute() if config else None, tuple(overrides))
    if command.active:
        from dgl_heta.hooks.manager import plugins
        from dgl_heta.settings import load_settings

        plugins().configured(load_settings(config, overrides))
        activate(words, None, ())
    return command


def _check(job: Job) -> None:
    """Find what is wrong without asking any host."""
    roles = job.roles
    if len(job.direct) > 1:
        names = " and ".join(str(job.hosts[i]) for i in sorted(job.direct))
        raise InputError(f"{names} are this machine, but DistDGL's shared memory allows one host "
                         f"per machine; emulate them (--hosts {len(job.hosts)})")
    for host in job.hosts:
        if roles.ports(host)[-1] > 65535:
            raise InputError(f"{host}: {roles.servers} servers from port {host.port} on go "
                             "beyond port 65535; give a lower one")
    if job.master_port in roles.ports(job.hosts[0]):
        raise InputError(f"--master-port {job.master_port} is the port of a server at "
                         f"{job.hosts[0]}; give another one")
    unknown = {f.strip() for f in roles.graph_format.split(",")} - {"csc", "csr", "coo"}
    if unknown:
        raise InputError(f"--graph-format {roles.graph_format}: '{min(unknown)}' is none of csc, "
                         "csr and coo")
    if all(job.over_ssh(host) for host in job.hosts):
        return
    if not job.workdir.is_dir():
        raise InputError(f"no directory {job.workdir} (--workdir)")
    word, path = job.command.words[0], roles.variables.get("PATH")
    if not shutil.which(word if os.sep not in word else job.workdir / word, path=path):
        raise InputError(f"no command '{word}'; write the command after --, for example: "
                         "-- python train_dist.py")


def _variables(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"--env {text}: write NAME=VALUE")
        found[name] = value
    return found


def _carried() -> dict[str, str]:
    """What another machine's processes get of this environment."""
    return {name: value for name, value in os.environ.items()
            if name == "PYTHONPATH" or (name.startswith("DGL_HETA_")
                                        and name != "DGL_HETA_CONFIG")}


def _cores(hosts: int, each: int) -> list[list[int]]:
    """Cores of every host, in turn; hosts share them where there are too few."""
    there = sorted(os.sched_getaffinity(0))
    if hosts * each > len(there):
        print(f"note: {hosts} hosts with {each} cores each share the {len(there)} cores of this "
              "machine", file=sys.stderr)
    return [sorted({there[(host * each + i) % len(there)] for i in range(each)})
            for host in range(hosts)]
