"""Output of a launch: the processes' lines, each with its origin, and a summary."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection
from dataclasses import replace

from dgl_heta.launch.script_job import Outcome, ScriptJob
from dgl_heta.report.console import err, note, out, print_json, print_line, table
from dgl_heta.report.text import PALETTE, human_bytes


def line_printer(job: ScriptJob) -> Callable[[str, str, str], None]:
    """A function that prints a line as `[host0 trainer1] …`, coloured by host at a terminal."""
    consoles = {"out": out, "err": err}
    colours = {host.name: PALETTE[host.index % len(PALETTE)] for host in job.hosts}

    def show(label: str, stream: str, text: str) -> None:
        print_line(consoles[stream], label, text, colours[label.split()[0]])

    return show


def show_processes(job: ScriptJob, as_json: bool, hidden: Collection[str] = ()) -> None:
    """Every process with its environment and command, as they would be started; of `hidden`
    variables the names alone."""
    cores = len(os.sched_getaffinity(0))
    answers = {host.index: {
        "directory": "/tmp/dgl-heta-launch-…", "free_port": 0,
        "cores": len(job.cores[host.index]) if job.cores else cores} for host in job.hosts}
    processes = [replace(p, environment={
        name: "…" if name in hidden else value for name, value in p.environment.items()})
        for p in job.processes(answers)]
    if as_json:
        print_json([{"host": p.host.index, "address": p.host.address, "role": p.role,
                           "number": p.number, "environment": p.environment,
                           "command": p.command} for p in processes])
        return
    for process in processes:
        lines = [f"[{process.label}] at {process.host.address}"
                 + (" over ssh" if job.over_ssh(process.host) else ""),
                 *(f"  {name}={shlex.quote(value)}" for name, value in sorted(
                     process.environment.items())),
                 f"  {shlex.join(process.command)}"]
        out.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def show_hosts(job: ScriptJob, outcome: Outcome) -> None:
    """Print a table of the hosts' versions, and a line for each thing that is missing there."""
    packages = ("python", "dgl-heta", "torch", "dgl")
    rows, lines = table("host", *packages, "problems", right=("problems",)), []
    for host in job.hosts:
        answer = outcome.answers.get(host.index, {"problems": ["it was not asked"]})
        versions, problems = answer.get("versions") or {}, answer["problems"]
        rows.add_row(str(host), *(versions.get(package) or "-" for package in packages),
                     str(len(problems)))
        lines += [f"{host}: {problem}" for problem in problems]
    out.print(rows)
    for line in lines:
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def show_outcome(job: ScriptJob, outcome: Outcome) -> None:
    """Time, exit status and the bytes of every host, on standard error."""
    if not outcome.processes:
        return
    for text in outcome.notes:
        note(text)
    if outcome.traffic:
        rows = table("host", "address", "sent", "received", right=("sent", "received"))
        for host in job.hosts:
            if host.index in outcome.traffic:
                sent, received = outcome.traffic[host.index]
                rows.add_row(host.name, host.address, human_bytes(sent), human_bytes(received))
        err.print(rows)
        if job.emulated is None:
            err.print("(all traffic of the hosts' interfaces)", highlight=False)
    err.print(f"{outcome.seconds:.1f} s, exit status {outcome.status}", highlight=False)
