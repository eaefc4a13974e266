"""What a launch prints: the processes' lines, each with its origin, and a summary."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dgl_heta.launch.supervise import Job, Outcome
from dgl_heta.report.text import PALETTE, human_bytes


def line_printer(job: Job) -> Callable[[str, str, str], None]:
    """A function that prints a line as `[host0 trainer1] …`, coloured by host at a terminal."""
    consoles = {"out": Console(file=sys.stdout), "err": Console(file=sys.stderr)}
    colours = {host.name: PALETTE[host.index % len(PALETTE)] for host in job.hosts}

    def show(label: str, stream: str, text: str) -> None:
        console = consoles[stream]
        if not console.is_terminal:
            console.file.write(f"[{label}] {text}\n")
            console.file.flush()
            return
        console.print(Text.assemble((f"[{label}] ", colours[label.split()[0]]),
                                    Text.from_ansi(text)), soft_wrap=True)

    return show


def show_processes(job: Job, as_json: bool) -> None:
    """Every process with its environment and command, as they would be started."""
    cores = len(os.sched_getaffinity(0))
    answers = {host.index: {
        "directory": "/tmp/dgl-heta-launch-…", "free_port": 0,
        "cores": len(job.cores[host.index]) if job.cores else cores} for host in job.hosts}
    processes = job.processes(answers)
    if as_json:
        print(json.dumps([{"host": p.host.index, "address": p.host.address, "role": p.role,
                           "number": p.number, "environment": p.environment,
                           "command": p.command} for p in processes]))
        return
    for process in processes:
        print(f"[{process.label}] at {process.host.address}"
              + (" over ssh" if job.over_ssh(process.host) else ""))
        for name, value in sorted(process.environment.items()):
            print(f"  {name}={shlex.quote(value)}")
        print(f"  {shlex.join(process.command)}")


def summary(job: Job, outcome: Outcome) -> dict[str, Any]:
    """The summary as JSON."""
    processes = []
    for process in outcome.processes:
        end = outcome.ended.get(process.label)
        processes.append({"host": process.host.index, "role": process.role,
                          "number": process.number, "status": None if end is None else end.status})
    hosts = []
    for host in job.hosts:
        sent, received = outcome.traffic.get(host.index, (None, None))
        hosts.append({"host": host.index, "address": host.address, "bytes_sent": sent,
                      "bytes_received": received})
    return {"status": outcome.status, "seconds": outcome.seconds,
            "error": str(outcome.error) if outcome.error else None, "notes": outcome.notes,
            "emulated": job.emulated is not None,
            "rate": job.emulated.rate if job.emulated else None, "hosts": hosts,
            "processes": processes}


def show_summary(job: Job, outcome: Outcome) -> None:
    """Time, exit status and the bytes of every host, on standard error."""
    err = Console(stderr=True)
    if not outcome.processes:
        return
    for note in outcome.notes:
        err.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    if outcome.traffic:
        table = Table(header_style="dim", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False,
                      padding=(0, 1, 0, 0))
        for column in ("host", "address"):
            table.add_column(column)
        for column in ("sent", "received"):
            table.add_column(column, justify="right")
        for host in job.hosts:
            if host.index in outcome.traffic:
                sent, received = outcome.traffic[host.index]
                table.add_row(host.name, host.address, human_bytes(sent), human_bytes(received))
        err.print(table)
        if job.emulated is None:
            err.print("(all traffic of the hosts' interfaces)", highlight=False)
    err.print(f"{outcome.seconds:.1f} s, exit status {outcome.status}", highlight=False)
