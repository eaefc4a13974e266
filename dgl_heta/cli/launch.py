"""`dgl-heta launch`: a DistDGL script on several hosts, or on hosts emulated here."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dgl_heta.cli.options import SettingsOptions, SshOptions, grouped
from dgl_heta.errors import InputError
from dgl_heta.report.console import note, print_json

if TYPE_CHECKING:
    from dgl_heta.launch.activation import Command
    from dgl_heta.launch.cluster import Host, Roles
    from dgl_heta.launch.emulated import Link
    from dgl_heta.launch.script_job import Outcome, ScriptJob

app = typer.Typer()
EXAMPLE = ("Example: dgl-heta launch --hosts 2 --rate 1gbit --part-config data/mag.json "
           "-c heta.toml -- python train_dist.py --ip-config {ip_config}")

_NOT_PLAIN = ("which plain DistDGL cannot load; give -c heta.toml or --set (as --set "
              "train.wrapper=raf), or call dgl_heta.enable() in the script")


@dataclass(frozen=True)
class HostOptions:
    """Which hosts there are, and how to reach them."""

    ip_config: Annotated[Path | None, typer.Option(
        metavar="FILE", help="The hosts: a line each, an address or a name and, if it is not "
        "30050, a port. They are reached over ssh.")] = None
    hosts: Annotated[int | None, typer.Option(
        min=1, help="Emulate so many hosts on this machine instead.")] = None
    local: Annotated[bool, typer.Option(
        "--local/--no-local", help="Start a host that is this machine without ssh.")] = True

    def listed(self) -> list[Host]:
        """All hosts.

        Raises
        ------
        InputError
            Not exactly one of --ip-config and --hosts is given, or the file is wrong.
        """
        from dgl_heta.launch.cluster import read_ip_config
        from dgl_heta.launch.emulated import emulated_hosts

        if self.hosts is not None and self.ip_config is None:
            return emulated_hosts(self.hosts)
        if self.ip_config is not None and self.hosts is None:
            return read_ip_config(self.ip_config)
        raise InputError("give either --ip-config with the hosts' addresses, or --hosts with how "
                         "many to emulate")


@dataclass(frozen=True)
class EmulationOptions:
    """Options for emulated hosts: their links and cores."""

    rate: Annotated[str | None, typer.Option(
        help="Emulated hosts: speed of every host's link, such as 1gbit. Default: no "
        "limit.")] = None
    latency: Annotated[float, typer.Option(
        min=0, help="Emulated hosts: milliseconds that a packet takes. Default: no wait.",
        show_default=False)] = 0
    cores: Annotated[int | None, typer.Option(
        min=1, help="Emulated hosts: cores of every host, its own as far as there are enough. "
        "Default: all hosts share all.")] = None

    def link(self, emulated: bool) -> Link | None:
        """Return the link of emulated hosts, None for real ones, which take none of these options.
        """
        from dgl_heta.launch.emulated import Link

        link = Link(self.rate, self.latency)
        if emulated:
            return link
        for option, value in (("--rate", self.rate), ("--latency", self.latency),
                              ("--cores", self.cores)):
            if value:
                raise InputError(f"{option} is for emulated hosts (--hosts); real hosts have "
                                 "what they have")
        return None

    def cores_of(self, hosts: int) -> list[list[int]]:
        """Cores of every host, in turn; hosts share them where there are too few."""
        if not self.cores:
            return []
        there = sorted(os.sched_getaffinity(0))
        if hosts * self.cores > len(there):
            note(f"{hosts} hosts with {self.cores} cores each share the {len(there)} cores of "
                 "this machine")
        return [sorted({there[(host * self.cores + i) % len(there)] for i in range(self.cores)})
                for host in range(hosts)]


@dataclass(frozen=True)
class ProcessOptions:
    """Options for the processes of a host."""

    num_trainers: Annotated[int, typer.Option(min=1, help="Trainers per host.")] = 1
    num_samplers: Annotated[int, typer.Option(
        min=0, help="Sampling processes per trainer.")] = 0
    num_servers: Annotated[int, typer.Option(min=1, help="Servers per host.")] = 1
    num_server_threads: Annotated[int, typer.Option(
        min=1, help="OpenMP threads per server.")] = 1
    num_omp_threads: Annotated[int | None, typer.Option(
        min=1, help="OpenMP threads per trainer. Default: OMP_NUM_THREADS, else the cores of "
        "its host evenly.")] = None
    graph_format: Annotated[str, typer.Option(
        help="Formats of the graph in servers: csc, csr, coo, separated by commas.")] = "csc"
    env: Annotated[list[str], typer.Option(
        metavar="NAME[=VALUE]", help="A variable for all processes; repeat it for more. Without "
        "a value it is this command's own, so that a secret is on no command line.")] = field(
            default_factory=list)
    workdir: Annotated[Path | None, typer.Option(
        metavar="DIR", help="Where the processes start, on every host. Default: here.")] = None

    def roles(self) -> Roles:
        """The processes of a host."""
        from dgl_heta.launch.cluster import Roles

        threads = self.num_omp_threads
        if threads is None and os.environ.get("OMP_NUM_THREADS", "").isdecimal():
            threads = max(1, int(os.environ["OMP_NUM_THREADS"]))
        return Roles(self.num_trainers, self.num_samplers, self.num_servers,
                     self.num_server_threads, threads, self.graph_format, self._variables())

    def _variables(self) -> dict[str, str]:
        from dgl_heta.settings import setting_variables

        variables = {}
        for text in self.env:
            name, equals, value = text.partition("=")
            if not name:
                raise InputError(f"--env {text}: write NAME=VALUE, or NAME for the variable of "
                                 "this command")
            if setting_variables([name]):
                raise InputError(f"--env {name}: it is a setting; give it to this command, as "
                                 f"{name}=… dgl-heta launch, or by --set")
            if not equals and name not in os.environ:
                raise InputError(f"--env {name}: there is no variable {name} here; set it, or "
                                 f"write {name}=VALUE")
            variables[name] = value if equals else os.environ[name]
        return variables

    @property
    def hidden(self) -> frozenset[str]:
        """Variables whose values were not written on the command line."""
        return frozenset(text for text in self.env if "=" not in text)


@dataclass(frozen=True)
class LimitOptions:
    """Options for the meeting port and for time limits."""

    master_port: Annotated[int | None, typer.Option(
        min=1, max=65535, help="Port at the first host where the trainers meet. Default: a free "
        "one.")] = None
    timeout: Annotated[float, typer.Option(
        min=1, help="Seconds for the hosts to answer before the start.")] = 30
    stop_after: Annotated[float | None, typer.Option(
        min=0, help="Seconds after which the run is ended and has failed. Default: no "
        "limit.")] = None


@dataclass(frozen=True)
class OutputOptions:
    """Options for what is shown and written."""

    dry_run: Annotated[bool, typer.Option(
        "--dry-run", help="Check the input and show every process with its environment, start "
        "nothing.")] = False
    check: Annotated[bool, typer.Option(
        "--check", help="Connect to all hosts and show their versions and what is missing there, "
        "start nothing.")] = False
    as_json: Annotated[bool, typer.Option(
        "--json", help="Print the summary as one JSON object (last line).")] = False
    json_file: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Write the same JSON object to a file.")] = None


@app.command(epilog=EXAMPLE, context_settings={"allow_interspersed_args": False})
@grouped
def launch(
    command: Annotated[list[str], typer.Argument(
        metavar="COMMAND", show_default=False,
        help="What every server and trainer runs, such as python train_dist.py …; {ip_config} "
        "and {part_config} in it become the paths of these files. With settings (-c, --set) a "
        "Python script, which runs under `dgl-heta run`. On this machine 'python' is the one that "
        "runs dgl-heta; give a path for another.")],
    part_config: Annotated[Path, typer.Option(
        metavar="FILE", help="What partition_graph wrote, such as data/mag.json.")],
    hosts: HostOptions, ssh: SshOptions, emulation: EmulationOptions, source: SettingsOptions,
    processes: ProcessOptions, limits: LimitOptions, output: OutputOptions,
) -> None:
    """Run a DistDGL script on several hosts, or on hosts emulated here.

    With settings (-c, --set, DGL_HETA_CONFIG) it runs with meta-partitioning and RAF; without,
    as it is, with plain DistDGL.
    """
    from dgl_heta.cli.launch_output import line_printer, show_hosts, show_outcome, show_processes
    from dgl_heta.launch.hosts import run_on_hosts
    from dgl_heta.system.atomic_files import write_atomic

    if output.json_file is not None:
        _check_file(output.json_file)
    job, ours = make_job(command_of(command, source), part_config, hosts, ssh, emulation,
                         processes, limits)
    job = replace(job, only_ask=output.check)
    if ours and not job.command.active:
        note(f"{part_config} was made by meta-partitioning, {_NOT_PLAIN}")
    elif job.command.active and not ours:
        note(f"{part_config} has parts of DGL's own, so the script runs as plain DistDGL, with no "
             "more of the settings than a feature cache; to train by relation make a "
             f"meta-partition of them: dgl-heta partition {part_config} --out DIR")
    if output.dry_run:
        show_processes(job, output.as_json, processes.hidden)
        return
    outcome = run_on_hosts(job, line_printer(job))
    if output.json_file is not None:
        write_atomic(output.json_file, json.dumps(outcome.to_json(job)) + "\n")
    if outcome.unprinted:
        _leave_unread(outcome)
    show_outcome(job, outcome)
    if job.only_ask and not output.as_json:
        show_hosts(job, outcome)
    if output.as_json:
        print_json(outcome.to_json(job))
    if outcome.signal is not None:
        print(f"error: ended by {signal.Signals(outcome.signal).name}", file=sys.stderr)
        raise typer.Exit(outcome.status)
    if outcome.error is not None:
        if ours and not job.command.active:
            raise type(outcome.error)(
                f"{outcome.error}; {part_config} was made by meta-partitioning, {_NOT_PLAIN}",
                outcome.error.details)
        raise outcome.error


def _check_file(path: Path) -> None:
    """
    Raises
    ------
    InputError
        The summary cannot be written there.
    """
    directory = path.absolute().parent
    if not directory.is_dir():
        raise InputError(f"--json-file {path}: there is no directory {directory}; make it")
    if path.is_dir() or not os.access(path if path.exists() else directory, os.W_OK):
        raise InputError(f"--json-file {path} cannot be written; name another file")


def _leave_unread(outcome: Outcome) -> NoReturn:
    """End this process though nobody reads what it writes; the error is written if it can be."""
    message = (f"ended by {signal.Signals(outcome.signal).name}" if outcome.signal is not None
               else str(outcome.error))
    last = threading.Thread(target=os.write, args=(2, f"error: {message}\n".encode()),
                            daemon=True)
    last.start()
    last.join(1.0)
    os._exit(outcome.status)


def make_job(command: Command, part_config: Path, hosts: HostOptions, ssh: SshOptions,
             emulation: EmulationOptions, processes: ProcessOptions, limits: LimitOptions
             ) -> tuple[ScriptJob, bool]:
    """Return the checked job, and whether dgl-heta made its partition.

    Raises
    ------
    InputError
        An option or a file is wrong, or there is no such command.
    """
    from dgl_heta.launch.cluster import check_part_config
    from dgl_heta.launch.remote import carried_variables, is_this_machine
    from dgl_heta.launch.script_job import ScriptJob

    listed = hosts.listed()
    link = emulation.link(emulated=hosts.hosts is not None)
    parts = check_part_config(part_config, len(listed))
    direct = [h.index for h in listed if link is None and hosts.local
              and is_this_machine(h.address)]
    roles = processes.roles()
    if (link is not None or len(direct) == len(listed)) and "PATH" not in roles.variables:
        command = command.run_by(sys.executable)
    job = ScriptJob(
        hosts=listed, command=command, roles=roles,
        part_config=part_config.absolute(), part_files=parts.files,
        workdir=(processes.workdir or Path()).absolute(),
        emulated=link, direct=frozenset(direct), cores=emulation.cores_of(len(listed)),
        ssh=ssh.ssh(limits.timeout), carried=carried_variables(),
        master_port=limits.master_port, timeout=limits.timeout,
        stop_after=math.inf if limits.stop_after is None else limits.stop_after)
    job.check()
    return job, parts.ours


def command_of(words: list[str], source: SettingsOptions) -> Command:
    """Return the command of all processes. Settings are checked before anything starts."""
    from dgl_heta.launch.activation import Command, activate
    from dgl_heta.settings import load_settings, setting_variables

    config = source.config
    if config is None and os.environ.get("DGL_HETA_CONFIG"):
        config = Path(os.environ["DGL_HETA_CONFIG"])
    command = Command(tuple(words), config.absolute() if config else None,
                      tuple(source.overrides), bool(setting_variables(os.environ)))
    if command.active:
        from dgl_heta.hooks.manager import plugins

        plugins().configured(load_settings(config, source.overrides))
        activate(words, None, ())
    return command
