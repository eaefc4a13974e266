"""`dgl-heta prove`: does a DistDGL script compute under RAF what it does with plain DGL?"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from dgl_heta.cli.launch import (
    EmulationOptions,
    HostOptions,
    LimitOptions,
    ProcessOptions,
    command_of,
    make_job,
)
from dgl_heta.cli.options import AsJson, SettingsOptions, SshOptions, grouped
from dgl_heta.errors import HetaError, InputError
from dgl_heta.report.console import err, note, out, print_json, print_line, table
from dgl_heta.system.leftovers import scratch_directory

if TYPE_CHECKING:
    from dgl_heta.launch.script_job import ScriptJob
    from dgl_heta.proof.comparison import Measure, Verdict
    from dgl_heta.store import Manifest

app = typer.Typer()
NOT_GIVEN = ("data of nodes and edges were not compared with those of the graph that was "
             "partitioned: it was read from files, or partitioned by an earlier version")
ROWS = 12
"""Differences that are shown at most."""
PLURAL = {"input": "rows read", "layer": "results of layers", "output": "outputs", "loss": "loss",
          "gradient": "gradients", "parameter": "parameters after the step",
          "row": "embeddings after the step", "state": "state of sparse optimizers"}


class NotProvedError(HetaError):
    """Nothing differs as far as it was seen, but too little was seen."""

    exit_status = 3


@app.command(epilog="Example: dgl-heta prove --hosts 2 --part-config data/mag.json -c heta.toml -- "
             "python train_dist.py --ip-config {ip_config}",
             context_settings={"allow_interspersed_args": False})
@grouped
def prove(
    command: Annotated[list[str], typer.Argument(
        metavar="COMMAND", show_default=False,
        help="As for dgl-heta launch: python SCRIPT …; {ip_config} and {part_config} in it "
        "become the paths of these files.")],
    part_config: Annotated[Path, typer.Option(
        metavar="FILE", help="What partition_graph wrote, such as data/mag.json.")],
    hosts: HostOptions, ssh: SshOptions, emulation: EmulationOptions, source: SettingsOptions,
    processes: ProcessOptions, limits: LimitOptions,
    keep: Annotated[Path | None, typer.Option(
        metavar="DIR", help="Keep what both runs recorded there. Default: no.")] = None,
    double: Annotated[bool, typer.Option(
        "--double", help="Compute in double precision, where the script names no other itself, "
        "and so find smaller differences.")] = False,
    as_json: AsJson = False,
) -> None:
    """Prove that a DistDGL script computes with RAF what it does with plain DGL.

    The script runs twice, through its first optimizer step and its first evaluation: with RAF, and
    in a reference mode with DGL's own blocks and operators. What its modules read and return, the
    loss, gradients, parameters and embeddings are compared by node id. Both read all data of the
    graph first, which are compared with those that partition_graph was given. Exit status 0 means
    that they agree, 1 that they differ, 3 that too little was seen.
    """
    from dgl_heta.proof.comparison import Verdict

    job, ours = make_job(command_of(command, source), part_config, hosts, ssh, emulation,
                         processes, limits)
    manifest = _check(job, ours)
    unlike = manifest.unlike_given()
    try:
        verdict = (Verdict("differs", f"{part_config}: {unlike}; partition the graph again")
                   if unlike else _compared(job, keep, double))
        if not manifest.given:
            verdict = replace(verdict, notes=(*verdict.notes, NOT_GIVEN))
    except NotProvedError as error:
        if as_json:
            print_json(to_json(Verdict("not proved", str(error))))
        raise
    if as_json:
        print_json(to_json(verdict))
    else:
        _show(verdict)
    if verdict.status == "differs":
        raise HetaError(verdict.message)
    if not verdict.proved:
        raise NotProvedError(verdict.message)


def _compared(job: ScriptJob, keep: Path | None, double: bool) -> Verdict:
    """The verdict on two runs."""
    from dgl_heta.proof.recorded_run import load
    from dgl_heta.proof.runs import compare_runs

    runs_directory = (scratch_directory(None, "dgl-heta-prove") if keep is None
             else nullcontext(_empty(keep.absolute())))
    with runs_directory as directory:
        for name, reference in (("raf", False), ("reference", True)):
            _run(_recording(job, directory / name, reference, double), reference)
        return compare_runs(load(directory / "raf"), load(directory / "reference"))


def _check(job: ScriptJob, ours: bool) -> Manifest:
    """The manifest of the partition's store.

    Raises
    ------
    InputError
        Hosts are other machines, or the partition is none that a reference can be run on.
    """
    from dgl_heta.partition.directory import open_partition, store_of_config
    from dgl_heta.store import Manifest

    if any(job.over_ssh(host) for host in job.hosts):
        raise InputError("prove wants all hosts on this machine, because the reference needs the "
                         "whole relation store: emulate them (--hosts "
                         f"{len(job.hosts)})")
    if not ours:
        raise InputError(f"{job.part_config} was not made by dgl-heta, so there is nothing to "
                         "prove; partition the graph with `dgl-heta run` or `dgl-heta partition`")
    store_path = store_of_config(job.part_config)
    if store_path and (manifest := Manifest.load(store_path)).unlike_given():
        return manifest  # which the plan need not fit
    store, plan = open_partition(job.part_config.parent)
    if plan.metapaths:
        raise InputError(f"{job.part_config} follows metapaths, so plain DGL samples other edges "
                         "and there is nothing to compare with; partition it by hops")
    return store.manifest


def _empty(directory: Path) -> Path:
    if directory.exists() and any(directory.iterdir()):
        raise InputError(f"--keep {directory} is not empty; name a new directory")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _recording(job: ScriptJob, directory: Path, reference: bool, double: bool) -> ScriptJob:
    """The job with what makes it record; in variables too, for a script that calls enable()."""
    settings = {"record": str(directory), "reference": str(reference).lower(),
                "double": str(double).lower()}
    variables = {f"DGL_HETA_RUN__{key.upper()}": value for key, value in settings.items()}
    overrides = (*job.command.overrides, *(f"run.{key}={value}" for key, value in settings.items()))
    return replace(job, command=replace(job.command, overrides=overrides),
                   roles=replace(job.roles, variables={**job.roles.variables, **variables}))


def _run(job: ScriptJob, reference: bool) -> None:
    """One run to its end; what it prints goes to standard error.

    Raises
    ------
    HetaError
        It failed.
    """
    from dgl_heta.launch.hosts import run_on_hosts

    name = "reference" if reference else "raf"

    def show(label: str, stream: str, text: str) -> None:
        print_line(err, f"{name} {label}", text)

    outcome = run_on_hosts(job, show)
    if outcome.signal is not None:
        print(f"error: ended by {signal.Signals(outcome.signal).name}", file=sys.stderr)
        raise typer.Exit(outcome.status)
    if outcome.error is None:
        return
    error = outcome.error
    what = ("the script fails with plain DGL's blocks and operators (reference mode)"
            if reference else "the script fails with RAF")
    wrapped = NotProvedError(f"not proved: {what}: {error}", error.details)
    raise wrapped from None


def _show(verdict: Verdict) -> None:
    """The table, and what is to be known beside it."""
    rows = table("what", "arrays", "largest difference", "where",
                 right=("arrays", "largest difference"))
    groups: dict[tuple[str, str], list[Measure]] = {}
    for measure in sorted(verdict.measures, key=lambda m: m.place.order):
        groups.setdefault((measure.place.step, measure.place.kind), []).append(measure)
    for (step, kind), members in groups.items():
        worst = max(members, key=lambda m: m.largest)
        rows.add_row(f"{PLURAL[kind]}, {step}", str(len(members)), f"{worst.largest:.1e}",
                     _where(worst))
    if groups:
        out.print(rows)
    wrong = sorted((m for m in verdict.measures if m.differs), key=lambda m: m.place.order)
    if wrong:
        rows = table("in the order of execution", "difference", "where", right=("difference",))
        for measure in wrong[:ROWS]:
            rows.add_row(escape(str(measure.place)), measure.reason or f"{measure.largest:.1e}",
                         _where(measure, named=False))
        out.print(rows)
        if len(wrong) > ROWS:
            out.print(f"(and {len(wrong) - ROWS} more)", highlight=False)
    for text in verdict.notes:
        note(text)
    if verdict.proved:
        out.print(verdict.message, markup=False, highlight=False, soft_wrap=True)


def _where(measure: Measure, named: bool = True) -> str:
    array = measure.place
    words = [word for word in (array.name, array.detail) if word] if named else []
    return escape(", ".join([*words, f"trainer {array.trainer}", *(
        [measure.where] if measure.where else [])]))


def to_json(verdict: Verdict) -> Mapping[str, Any]:
    """As `--json` prints it; a difference that is infinite is null."""
    return {"status": verdict.status, "message": verdict.message, "notes": list(verdict.notes),
            "arrays": [{
                **{key: getattr(m.place, key) for key in (
                    "kind", "name", "detail", "step", "trainer")},
                "difference": m.largest if m.largest < float("inf") else None,
                "tolerance": m.tolerance, "rows": m.rows, "where": m.where, "reason": m.reason,
                "differs": m.differs} for m in verdict.measures]}
