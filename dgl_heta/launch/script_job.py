"""A script that runs on several hosts: what is asked for, and what is left of it."""

from __future__ import annotations

import math
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dgl_heta.comm.launch_secret import SECRET
from dgl_heta.errors import HetaError, InputError
from dgl_heta.launch.activation import Command
from dgl_heta.launch.blame import Ended
from dgl_heta.launch.cluster import Files, Host, Process, Roles, processes_of
from dgl_heta.launch.emulated import MASTER_PORT, VARIABLES, Link
from dgl_heta.launch.remote import Ssh


@dataclass(frozen=True)
class ScriptJob:
    """A command to run, on which hosts, for how long."""

    hosts: Sequence[Host]
    roles: Roles
    command: Command
    part_config: Path
    workdir: Path
    part_files: Sequence[Sequence[str]] = ()  # per host, what it reads of the partition
    emulated: Link | None = None  # joins the hosts, which this machine emulates
    cores: Sequence[Sequence[int]] = ()  # per emulated host, the cores that it has
    direct: frozenset[int] = frozenset()  # hosts that are this machine
    ssh: Ssh = field(default_factory=Ssh)
    carried: dict[str, str] = field(default_factory=dict)  # variables for other machines
    master_port: int | None = None
    timeout: float = 30
    stop_after: float = math.inf
    only_ask: bool = False  # the hosts what they have, and start nothing

    def check(self) -> None:
        """Find what is wrong without asking any host.

        Raises
        ------
        InputError
            Two hosts are this machine, ports or formats that cannot be, no such command or script
            here.
        """
        roles = self.roles
        if len(self.direct) > 1:
            names = " and ".join(str(self.hosts[i]) for i in sorted(self.direct))
            raise InputError(f"{names} are this machine, but DistDGL's shared memory allows one "
                             f"host per machine; emulate them (--hosts {len(self.hosts)})")
        for host in self.hosts:
            if roles.ports(host)[-1] > 65535:
                raise InputError(f"{host}: {roles.servers} servers from port {host.port} on go "
                                 "beyond port 65535; give a lower one")
        if self.master_port in roles.ports(self.hosts[0]):
            raise InputError(f"--master-port {self.master_port} is the port of a server at "
                             f"{self.hosts[0]}; give another one")
        unknown = {f.strip() for f in roles.graph_format.split(",")} - {"csc", "csr", "coo"}
        if unknown:
            raise InputError(f"--graph-format {roles.graph_format}: '{min(unknown)}' is none of "
                             "csc, csr and coo")
        if self.command.reads_input:
            raise InputError(f"'{shlex.join(self.command.words)}' would read its program from "
                             "standard input, which does not reach the hosts; give a file, for "
                             "example: -- python train_dist.py")
        if all(map(self.over_ssh, self.hosts)):
            return
        if not self.workdir.is_dir():
            raise InputError(f"no directory {self.workdir} (--workdir)")
        word, path = self.command.words[0], roles.variables.get("PATH")
        if not shutil.which(word if os.sep not in word else self.workdir / word, path=path):
            raise InputError(f"no command '{word}'; write the command after --, for example: "
                             "-- python train_dist.py")
        script = self.command.script
        if script is not None and not (self.workdir / script).exists():
            raise InputError(f"there is no script {self.workdir / script}; its path is relative to "
                             "--workdir, by default the directory that the command is given in")

    def over_ssh(self, host: Host) -> bool:
        """Return whether a host is another machine."""
        return self.emulated is None and host.index not in self.direct

    def needed(self, host: Host) -> list[str]:
        """Return the files that the processes of a host read when they start."""
        script = self.command.script
        return [str(self.part_config), *(self.part_files[host.index] if self.part_files else ()),
                *([] if script is None else [str(self.workdir / script)])]

    def variables(self, host: Host) -> dict[str, str]:
        """Return the variables of a host's processes, whatever their role."""
        if self.emulated is not None:
            return {**VARIABLES, "NCCL_HOSTID": host.name}
        return self.carried if self.over_ssh(host) else {}

    def processes(self, answers: Mapping[int, Mapping[str, Any]],
                  secret: str | None = None) -> list[Process]:
        """All processes, with what the hosts have answered: their cores, a directory, a port, an
        interface. They meet by the secret, if there is one."""
        first = self.hosts[0]
        master = (first.address, self.master_port or (
            MASTER_PORT if self.emulated else answers[0]["free_port"]))
        processes = []
        for host in self.hosts:
            answer, config = answers[host.index], self.command.config
            directory, cores = answer["directory"], answer["cores"]
            files = Files(f"{directory}/ip_config.txt", str(self.part_config),
                          None if config is None else f"{directory}/heta.toml")
            if self.emulated and not self.cores:  # all hosts share the machine's
                cores = cores // len(self.hosts)
            variables = {**self.variables(host), **({} if secret is None else {SECRET: secret})}
            meeting = {}
            if answer.get("interface"):  # gloo's own listeners, which ask nobody's name
                meeting["GLOO_SOCKET_IFNAME"] = answer["interface"]
            processes += processes_of(host, len(self.hosts), self.roles, files, self.command,
                                      master, cores, variables, meeting)
        return processes


@dataclass
class Outcome:
    """How a run ended, and what its hosts sent."""

    seconds: float
    processes: list[Process]
    ended: dict[str, Ended]
    traffic: dict[int, tuple[int, int]]  # host index → bytes sent, received
    error: HetaError | None = None
    signal: int | None = None
    notes: list[str] = field(default_factory=list)
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)  # host index → what it has
    unprinted: bool = False  # whether nobody read the output until the end

    @property
    def status(self) -> int:
        """The exit status of the launch."""
        if self.signal is not None:
            return 128 + self.signal
        return 0 if self.error is None else self.error.exit_status

    def to_json(self, job: ScriptJob) -> dict[str, Any]:
        """As `--json` prints it; None for what is not known."""
        processes = []
        for process in self.processes:
            end = self.ended.get(process.label)
            processes.append({"host": process.host.index, "role": process.role,
                              "number": process.number, "status": end.status if end else None})
        hosts = []
        for host in job.hosts:
            sent, received = self.traffic.get(host.index, (None, None))
            answer = self.answers.get(host.index, {})
            hosts.append({"host": host.index, "address": host.address, "bytes_sent": sent,
                          "bytes_received": received, "versions": answer.get("versions"),
                          "problems": answer.get("problems")})
        return {"status": self.status, "seconds": self.seconds,
                "error": str(self.error) if self.error else None, "notes": self.notes,
                "emulated": job.emulated is not None,
                "rate": job.emulated.rate if job.emulated else None, "hosts": hosts,
                "processes": processes}
