"""`dgl-heta plan`: how a graph would be partitioned, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from dgl_heta.cli.options import (
    AsJson,
    Input,
    PlanOptions,
    ReadingOptions,
    SettingsOptions,
    at_least_one,
    grouped,
    refuse,
)
from dgl_heta.errors import InputError
from dgl_heta.report.console import err, out, print_json

if TYPE_CHECKING:
    from dgl_heta.graph.schema import Relation
    from dgl_heta.hooks.manager import Plugins
    from dgl_heta.partition.graph_input import GraphInput
    from dgl_heta.planning.cluster_estimate import Cluster, Coefficients
    from dgl_heta.planning.plan import Plan
    from dgl_heta.planning.receptive_field import ReceptiveField
    from dgl_heta.planning.workload import Workload
    from dgl_heta.settings import Settings

app = typer.Typer()
_SIDE_BY_SIDE = "no effect on --compare, which shows methods side by side; leave one of them out"


@dataclass(frozen=True)
class WorkOptions:
    """Options for the workload that a prediction is made for."""

    batch_size: Annotated[int | None, typer.Option(
        help="Seeds per worker, for the prediction. Default: train.batch_size.")] = None
    hidden: Annotated[int | None, typer.Option(
        help="Hidden width, for the prediction. Default: model.hidden.")] = None
    fanouts: Annotated[str | None, typer.Option(
        help="Neighbours per relation and layer, input layer first, for the comparison and the "
        "prediction without replication. Default: train.fanouts.")] = None

    def workload(self, settings: Settings, hops: int, parts: int) -> Workload:
        """The workload of a model with so many layers: that of training, but for what is given."""
        from dgl_heta.planning.workload import Workload
        from dgl_heta.settings import parse_fanouts

        trained = Workload.of(settings, parts=parts)
        fanouts = trained.fanouts if len(trained.fanouts) == hops else ()  # else the default
        return replace(
            trained,
            batch_size=trained.batch_size if self.batch_size is None else self.batch_size,
            hidden=trained.hidden if self.hidden is None else self.hidden,
            fanouts=parse_fanouts(self.fanouts, hops, "--fanouts") if self.fanouts else fanouts)

    def check(self) -> None:
        """Refuse numbers that no training has."""
        for value, option in ((self.batch_size, "--batch-size"), (self.hidden, "--hidden")):
            if value is not None:
                at_least_one(value, option)


@dataclass(frozen=True)
class ClusterOptions:
    """Machines to predict for."""

    cluster: Annotated[Path | None, typer.Option(
        help="Predict time, bytes and memory on the machines of this file (TOML or JSON), beside "
        "DistDGL. Keys: machines, trainers (per machine), cores, link_gbit, latency_us, memory_gb, "
        "speed (of a core; 1: as measured), metis_cut, coefficients, gpu (of each trainer: h100, … "
        "or a table).")] = None
    model: Annotated[str | None, typer.Option(
        help="rgcn, rgat or hgt, with --cluster. Default: model.name, if it is one of them, "
        "else rgcn.")] = None
    feature_itemsize: Annotated[int | None, typer.Option(
        help="Bytes of a number of the features, with --cluster: 1, 2, 4 or 8. Default: as they "
        "are stored; of a schema alone 4.")] = None
    train_nodes: Annotated[int | None, typer.Option(
        help="Training nodes, with --cluster. Default: those in train_mask, or all target "
        "nodes.")] = None


@app.command(epilog="Example: dgl-heta plan debian --parts 2 --svg plan.svg. Or: dgl-heta plan "
             "schema.json --target paper --cluster cluster.toml with the lines machines = 8, "
             "cores = 16, link_gbit = 25, memory_gb = 128")
@grouped
def plan(
    graph: Input, options: PlanOptions, work: WorkOptions, machines: ClusterOptions,
    source: SettingsOptions, files: ReadingOptions,
    svg: Annotated[Path | None, typer.Option(help="Write the picture to this file.")] = None,
    compare: Annotated[bool, typer.Option(
        "--compare", help="Compare meta-partitioning with relation-random, random and METIS: bytes "
        "per epoch, memory, balance. Samples some steps, so it needs edges.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show how a graph would be partitioned, with what each partition costs.

    Of a partition, without options that ask for another plan, the plan that it has.
    """
    from dgl_heta.cli.requests import reading, targets_of
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.partition.graph_input import open_input
    from dgl_heta.partition.own_plan import check_plan, own_plan, settings_beside, with_parts

    settings = settings_beside(own_plan(graph), source.config, source.overrides)
    registry = plugins().configured(settings)
    opened = open_input(graph, registry, settings.run.verify, reading(files),
                        schema_only=not compare and machines.cluster is None)
    work.check()
    given = {**options.given(), "--svg": svg}
    if machines.cluster is not None:
        refuse({"--compare": compare or None, **{
            option: given.get(option) for option in ("--metapaths", "--svg")}},
            "no effect on --cluster; leave one of them out")
        _estimate(opened, registry, options, work, machines, settings, as_json)
        return
    refuse({"--model": machines.model, "--train-nodes": machines.train_nodes,
            "--feature-itemsize": machines.feature_itemsize},
           "an effect on --cluster only; give a cluster, or leave it out")
    if compare:
        refuse({option: given.get(option) for option in (
            "--metapaths", "--method", "--svg", "--replication", "--memory-mb", "--cut")},
            _SIDE_BY_SIDE)
        _compare(opened, options, work, settings, as_json)
        return
    if not options.given():
        opened = with_parts(opened, settings, lambda: targets_of(
            replace(opened, plan=None), None, settings))
    if opened.plan is not None and not options.given():
        check_plan(opened.plan, opened, settings, targets_of(opened, None, settings))
        _show_shared(opened.plan, opened, registry, work, settings, None, svg, as_json)
    else:
        _plan_anew(opened, registry, options, work, settings, svg, as_json)


def _plan_anew(opened: GraphInput, registry: Plugins, options: PlanOptions, work: WorkOptions,
               settings: Settings, svg: Path | None, as_json: bool) -> None:
    """Show the plan that the options and the settings ask for."""
    from dgl_heta.cli.requests import cutter_of, filled, partition_request
    from dgl_heta.planning.metatree import check_hops
    from dgl_heta.planning.shared_rows import way_of

    options = filled(options, settings)
    backend = registry.get("partition backend", options.method or "meta")
    request = partition_request(backend, opened, options, settings,
                                cutter=cutter_of(options, registry), shared=way_of(settings))
    request = replace(request, workload=work.workload(
        settings, check_hops(request.hops, request.metapaths or None), request.parts))
    _show_shared(backend.plan(opened.schema, request), opened, registry, work, settings,
                 request.memory_limit, svg, as_json)


def _show_shared(plan: Plan, opened: GraphInput, registry: Plugins, work: WorkOptions,
                 settings: Settings, limit: int | None, svg: Path | None, as_json: bool) -> None:
    """Show a plan, and what training makes of it by partition.shared or a module wrapper, and
    why."""
    from dgl_heta.partition.own_plan import check_memory, followed
    from dgl_heta.planning.shared_rows import share_rows_in_training

    workload, store = work.workload(settings, plan.hops, plan.num_parts), opened.store
    trained, choices = share_rows_in_training(
        plan, settings, store.directory if store and store.staged else None, workload, limit)
    if opened.plan is plan:  # a new one fits the limit, or was refused
        check_memory(trained, settings, workload)
    if settings.origin("train.wrapper").asked:
        other = followed(trained, settings, registry, workload, limit)
        if other is not trained:
            show(other, workload, svg, as_json, opened.beside())
            return
    asked = settings.origin("partition.shared").asked
    # A partition is staged as it was written, whatever training makes of it.
    show(trained if asked else plan, workload, svg, as_json, opened.beside(), trained,
         staged=plan if opened.plan is plan else trained)
    if choices and not as_json:
        if not asked:
            out.print("The prediction is of what `dgl-heta train` does (partition.shared = auto):",
                      highlight=False)
        for choice in choices:
            out.print(str(choice), highlight=False, markup=False)


def show(plan: Plan, work: Workload, svg: Path | None = None, as_json: bool = False,
         beside: Mapping[str | Relation, int] | None = None, trained: Plan | None = None,
         staged: Plan | None = None) -> None:
    """Print a plan with its costs, and draw it into a file.

    Parameters
    ----------
    beside : as for :func:`~dgl_heta.planning.cost.predict`.
    trained : the plan with what training delegates, whose costs are shown; default: the same.
    staged : the one of which parts are staged; default: `trained`.
    """
    from dgl_heta.planning.cost import predict, to_json

    trained = trained or plan
    costs = [replace(cost, disk_bytes=on_disk.disk_bytes) for cost, on_disk in zip(
        predict(trained, work, beside), predict(staged or trained, work, beside))]
    if svg:
        from dgl_heta.report.plan_picture import save_svg

        save_svg(trained, costs, svg)
    if as_json:
        shared = {"shared": trained.shared.to_json()} if trained.shared else {}
        print_json({**plan.to_json(), **shared, "prediction": to_json(work, costs)})
        return
    from dgl_heta.report.plan_terminal import terminal

    terminal(plan, costs, out)
    if svg:
        out.print(f"Picture: {escape(str(svg))}", highlight=False, soft_wrap=True)


def _estimate(opened: GraphInput, registry: Plugins, options: PlanOptions, work: WorkOptions,
              machines: ClusterOptions, settings: Settings, as_json: bool) -> None:
    """Predict a partition's own plan if it is for so many machines, else a new one."""
    from dgl_heta.cli.requests import (
        cutter_of,
        filled,
        hops_of,
        partition_request,
        targets_of,
    )
    from dgl_heta.partition.own_plan import check_memory, check_plan
    from dgl_heta.planning.cluster_estimate import Cluster, Coefficients, estimate
    from dgl_heta.planning.gpu import HOST, REACHED, check
    from dgl_heta.planning.shared_rows import way_of
    from dgl_heta.planning.workload import DEFAULT_HOPS, MODELS, Workload
    from dgl_heta.report.console_tables import show_estimates, show_on_gpus

    own = opened.plan if not options.given().keys() - {"--parts"} else None
    model = machines.model or (
        settings.model.name if settings.model.name in MODELS else Workload.model)
    if model not in MODELS:
        raise InputError(f"--model is '{model}'; it must be one of {', '.join(MODELS)}")
    if machines.feature_itemsize not in (None, 1, 2, 4, 8):
        raise InputError(f"--feature-itemsize is {machines.feature_itemsize}; it must be 1, 2, 4 "
                         "or 8 (int8, float16, float32, float64)")
    assert machines.cluster is not None
    cluster = Cluster.load(machines.cluster)
    if options.parts not in (None, cluster.machines):
        raise InputError(f"--parts is {options.parts}, but {machines.cluster} has "
                         f"{cluster.machines} machines, with a partition each; leave --parts out, "
                         "or say the same")
    settings = _on(cluster, settings, machines.cluster)
    if cluster.gpu is not None:
        registry.get("cache policy", settings.cache.policy_on(gpu=True))
        kernel = registry.kernel(settings.train.kernel, gpu=True).name
        settings = settings.model_copy(
            update={"train": settings.train.model_copy(update={"kernel": kernel})})
        check(cluster.gpu, settings)
    coefficients = Coefficients.load(cluster.coefficients)
    targets = targets_of(opened, options.target, settings)
    if own is not None and own.num_parts == cluster.machines:
        check_plan(own, opened, settings, targets)
    else:
        own, options = None, filled(replace(options, parts=cluster.machines), settings)
    hops = own.hops if own is not None else hops_of(options, settings) or DEFAULT_HOPS
    workload = work.workload(settings, hops, cluster.machines)
    workload = replace(
        workload, model=model, fanouts=workload.fanouts_of(hops),
        seeds=_train_nodes(opened, targets, machines.train_nodes),
        classes=opened.task.num_classes if opened.task else 0,
        feature_itemsize=machines.feature_itemsize or opened.feature_itemsize)
    if own is not None:
        # Rows move, as in plans that are made for it: what delegation saves is not modelled.
        chosen, method = own.without_owners(), own.method
        check_memory(chosen, settings, workload)
    else:
        method = options.method or "meta"
        backend = registry.get("partition backend", method)
        chosen = backend.plan(opened.schema, partition_request(
            backend, opened, options, settings, hops=hops, workload=workload,
            cutter=cutter_of(options, registry), shared=way_of(settings)))
    counted, fields, how = _counted(opened, chosen, workload, cluster, coefficients,
                                    options.seed or 0)
    systems = estimate(chosen, workload, cluster, coefficients, counted, fields, settings)
    gpu = None if cluster.gpu is None else {
        "measured": False, **cluster.gpu.model_dump(), "reached": REACHED, "host_seconds": HOST,
        "kernel": settings.train.kernel, "cache": settings.cache.policy_on(gpu=True)}
    if as_json:
        print_json({
            "cluster": cluster.model_dump(exclude={"gpu"}), **({"gpu": gpu} if gpu else {}),
            "training": asdict(workload), "method": method,
            "coefficients": coefficients.model_dump(), "rows": how,
            "systems": [system.to_json() for system in systems]})
        return
    show_estimates(systems, coefficients, (
        f"plan by {method}: {cluster.machines} × {cluster.trainers} trainers, "
        f"{systems[0].steps:,} steps per epoch, {model}, batch {workload.batch_size} per trainer, "
        f"hidden {workload.hidden}; {how}"), fields is not None, out)
    if gpu:
        show_on_gpus(systems, gpu, out)


def _on(cluster: Cluster, settings: Settings, file: Path) -> Settings:
    """The settings with as many partitions and trainers as the cluster has."""
    trainers = settings.train.trainers
    if settings.origin("train.trainers").asked and trainers != cluster.trainers:
        raise InputError(f"train.trainers is {trainers}, but {file} has trainers = "
                         f"{cluster.trainers} (of each machine); leave the setting out, or say "
                         "the same")
    return settings.model_copy(update={
        "train": settings.train.model_copy(update={"trainers": cluster.trainers}),
        "partition": settings.partition.model_copy(update={"parts": cluster.machines})})


def _counted(opened: GraphInput, plan: Plan, work: Workload, cluster: Cluster,
             coefficients: Coefficients, seed: int
             ) -> tuple[dict[str, dict[str, float]] | None, list[ReceptiveField] | None, str]:
    """Bytes of rows, and rows and edges of steps, as they are counted on a graph with edges; and
    how they were found."""
    from dgl_heta.partition.cluster_counts import count_rows
    from dgl_heta.store import Store, write_store
    from dgl_heta.system.leftovers import scratch_directory

    guess = (f"METIS's cut {cluster.metis_cut:.2f} of random's, as the cluster says"
             if cluster.metis_cut is not None else
             f"METIS's cut {coefficients.metis_cut:.2f} of random's, a guess: that of the graphs "
             "which the model was fitted to; metis_cut in the cluster's file replaces it")
    if opened.store is None and opened.source is None:
        return None, None, f"rows expected from the schema's counts; {guess}"
    with scratch_directory(None, "dgl-heta-plan") as directory:
        if opened.store is None:
            assert opened.source is not None
            write_store(opened.source, directory / "store")
        with err.status("counting rows in sampled steps"):
            count = count_rows(opened.store or Store(directory / "store"), plan, work, seed,
                               trainers=cluster.trainers)
    sent, steps = count.sent, f"rows counted in {count.steps} sampled steps"
    if cluster.metis_cut is not None:
        return ({k: v for k, v in sent.items() if k != "DistDGL METIS"}, count.fields,
                f"{steps}; {guess}")
    if count.metis_cut is None:
        return sent, count.fields, f"{steps}; METIS {count.missing}; {guess}"
    return sent, count.fields, (f"{steps}; METIS run here: it cuts {count.metis_cut:.2f} of what "
                                "random parts cut")


def _train_nodes(opened: GraphInput, targets: tuple[str, ...], given: int | None) -> int:
    if given is None:
        return sum(opened.num_train_nodes(t) for t in targets)
    if at_least_one(given, "--train-nodes") > sum(
            opened.schema.node_counts.get(t, given) for t in targets):
        raise InputError(f"--train-nodes is {given}, more than there are target nodes")
    return given


def _compare(opened: GraphInput, options: PlanOptions, work: WorkOptions, settings: Settings,
             as_json: bool) -> None:
    from dgl_heta.cli.requests import filled, hops_of, partition_request
    from dgl_heta.hooks.manager import plugins
    from dgl_heta.partition.method_comparison import compare
    from dgl_heta.planning.workload import DEFAULT_HOPS, MODELS, Workload
    from dgl_heta.report.console_tables import show_comparison
    from dgl_heta.store import Store, write_store
    from dgl_heta.system.leftovers import scratch_directory

    refuse({f"partition.{name}": settings.asked("partition").get(name) for name in (
        "metapaths", "method", "replication", "memory_mb", "cut")}, _SIDE_BY_SIDE)
    if settings.train.trainers > 1:
        raise InputError(f"train.trainers = {settings.train.trainers} has no effect on --compare, "
                         "which takes a worker for each partition; set it to 1")
    request = partition_request(plugins().get("partition backend", "meta"), opened,
                                replace(filled(options, settings), method=None), settings,
                                hops=hops_of(options, settings))
    workload = work.workload(settings, request.hops or DEFAULT_HOPS, request.parts)
    workload = replace(
        workload, feature_itemsize=opened.feature_itemsize,
        model=workload.model if workload.model in MODELS else Workload.model)  # else not counted
    with scratch_directory(None, "dgl-heta-plan") as directory:
        if opened.store is None:
            if opened.source is None:
                raise InputError("--compare samples the graph, but a schema has no edges; give a "
                                 "store, a partition, a directory of edge files or a data set")
            write_store(opened.source, directory / "store")
        store = opened.store or Store(directory / "store")
        with err.status("comparing") as status:
            comparison = compare(store, request, workload,
                                 progress=lambda what: status.update(what))
    if as_json:
        print_json(comparison.to_json())
        return
    show_comparison(comparison, workload, out)
