"""A SLURM of two nodes on this machine: munged, slurmctld and two slurmd, ended with the test."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.launching import free_port
from tests.support.waiting import PATIENCE, PROMPT, until

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo")
NODES = ("alpha", "beta")
CONFIGURATION = """ClusterName=heta
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={control}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={here}/munge.socket
StateSaveLocation={here}/state
SlurmctldPidFile={here}/slurmctld.pid
SlurmctldLogFile={here}/slurmctld.log
SlurmdPidFile={here}/%n.pid
SlurmdLogFile={here}/%n.log
SlurmdSpoolDir={here}/spool-%n
SlurmctldParameters=enable_configless
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
ReturnToService=2
MailProg=/bin/true
SlurmdParameters=config_overrides
NodeName=alpha NodeAddr=127.0.0.1 Port={first} CPUs=2
NodeName=beta NodeAddr=127.0.0.1 Port={second} CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def lacks() -> str | None:
    """Why there can be no SLURM here, or None."""
    if missing := [name for name in PROGRAMS if _path(name) is None]:
        return (f"{', '.join(missing)} not found: apt-get install slurmctld slurmd slurm-client "
                "munge")
    return None if os.geteuid() == 0 else "slurmd runs jobs only for root"


def _path(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")


@dataclass(frozen=True)
class Slurm:
    """A running SLURM; `environment` makes its commands find it."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.directory / "slurm.conf")}

    def run(self, *words: object, **more: object) -> subprocess.CompletedProcess[str]:
        """Run a command of SLURM to its end."""
        return subprocess.run([str(word) for word in words], capture_output=True, text=True,
                              timeout=PATIENCE, env={**self.environment, **more.pop("env", {})},
                              **more)  # type: ignore[call-overload]

    def state(self, job: str) -> dict[str, str]:
        """What SLURM says of a job."""
        text = self.run("scontrol", "show", "job", job).stdout
        return dict(re.findall(r"(\w+)=(\S+)", text))


@contextlib.contextmanager
def started() -> Iterator[Slurm]:
    """Start SLURM in a directory of its own; nothing is left of it afterwards."""
    here = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # a socket's path is short
    running: list[subprocess.Popen[bytes]] = []
    control, first, second = (free_port("127.0.0.1") for _ in range(3))
    try:
        (here / "state").mkdir()
        (here / "hosts").write_text("".join(f"127.0.0.1 {name}\n"
                                            for name in ("localhost", *NODES)))
        (here / "key").write_bytes(os.urandom(128))
        (here / "key").chmod(0o600)
        (here / "slurm.conf").write_text(CONFIGURATION.format(
            here=here, control=control, first=first, second=second))

        def start(program: str, *words: str) -> None:
            with open(here / f"{program}.out", "ab") as log:
                running.append(subprocess.Popen([_path(program), *words], stdout=log, stderr=log,
                                                env=slurm.environment))

        slurm = Slurm(here)
        start("munged", "--foreground", "--force", f"--socket={here}/munge.socket",
              f"--key-file={here}/key", f"--log-file={here}/munge.log",
              f"--pid-file={here}/munge.pid", f"--seed-file={here}/munge.seed")
        assert until((here / "munge.socket").exists, PROMPT)
        start("slurmctld", "-D", "-f", str(here / "slurm.conf"))
        for node in NODES:
            (here / f"spool-{node}").mkdir()
            # Debian's slurmd takes its name from the machine: each has a machine's name of its own,
            # and knows the others'.
            start("unshare", "--uts", "--mount", "sh", "-c",
                  f"hostname {node} && mount --bind {here}/hosts /etc/hosts && "
                  f"exec {_path('slurmd')} -D -f {here}/slurm.conf")
        until(lambda: any(process.poll() is not None for process in running) or slurm.run(
            "sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() == str(len(NODES)), PROMPT)
        assert all(process.poll() is None for process in running), _logs(here)
        yield slurm
    finally:
        for process in reversed(running):  # munged last: the others end by its credentials
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(here, ignore_errors=True)


def _logs(here: Path) -> str:
    return "\n".join(f"{file.name}:\n{file.read_text(errors='replace')[-2000:]}"
                     for file in sorted(here.glob("*.log")) + sorted(here.glob("*.out")))
