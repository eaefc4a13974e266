"""Tables and figures of CATGNN and HiFuse; see figures.py."""

from __future__ import annotations

from dataclasses import replace

from paper_sources import (
    ACCURACY,
    GPU_SCRIPT,
    Call,
    Column,
    Figure,
    gpu_layers,
    gpu_steps,
    relational_counts,
)

NSIGHT = "it needs NVIDIA's Nsight Compute on a GPU"
BY_HAND = " On an H200, by an earlier command: [gpu-step](../gpu-step.md)."
NOT_HERE = "the paper's 16 graphs are not on disk: dgl.data and ogb download them"

CATGNN = (
    Figure("catgnn-table1", "Memory of METIS and of SPRING",
           (Call("writing.py", "--metis", "--edges 10 50 --limit 18", "--edges 0.5", table=True),),
           ("edges",), (Column("METIS, MB", "METIS, MB", digits=0),
                        Column("SPRING, assigning, MB", "assigning, MB", digits=0),
                        Column("SPRING, writing, MB", "writing part, MB", digits=0)),
           says="METIS takes 0.81 to 48.64 GB for graphs of 0.03 to 3.59 GB, and more than 96 for "
                "OGB-Papers (Table 1); an order of magnitude more than CATGNN (Fig. 8).",
           missing=(NOT_HERE,)),
    Figure("catgnn-table2", "Clusters of SPRING before and after merging (Table 2, Fig. 4)",
           (Call("replication.py", "", "--graphs communities,rmat,grid,debian,git:.",
                 "--graphs communities,grid"),), ("graph", "parts"),
           (Column("clusters", "clusters", digits=0), Column("merged", "merged", digits=0)),
           says="904 → 411 (Citeseer) to 33,256 → 6,345 (Yelp); 24,544 → 250 on OGB-Arxiv.",
           missing=(NOT_HERE,)),
    Figure("catgnn-table3", "Data sets", missing=(
        f"{NOT_HERE}. Factors are of made graphs, debian and git, accuracy of two of them",)),
    Figure("catgnn-fig6", "Replication factors beside four streams and METIS",
           (Call("replication.py", "", "--graphs communities,rmat,grid,debian,git:.",
                 "--graphs communities,grid"),), ("graph", "parts"),
           tuple(Column(n, f"factors/{n}", digits=3)
                 for n in ("spring", "hdrf", "dbh", "powergraph", "2ps-l", "metis")),
           says="SPRING has the least of the streams everywhere, by 50 % on average.",
           missing=(NOT_HERE,)),
    *(Figure(f"catgnn-{name}", title,
             (Call("averaging.py", f"--tables {table}", "--graphs communities:nodes=4000 debian",
                   ""),), by, columns, says=says, missing=(NOT_HERE,),
             note=f"Here {60 if table == 'sync' else 30} epochs, "
             + ("256 nodes a step." if table == "curves" else "full-batch."))
      for name, title, table, by, columns, says in (
          ("fig2", "Torn neighbour lists and hops of neighbours (Fig. 2, 12)", "hops",
           ("graph", "parts", "hops"),
           (Column("on the whole graph", "whole", digits=4),
            Column("on the parts", "own", digits=4)),
           "torn lists cost accuracy, two and three hops add none."),
          ("fig7", "Accuracy on parts, and in one process", "models", ("graph", "model", "parts"),
           (ACCURACY,), "the same level for all models and graphs."),
          ("fig9", "Accuracy of averages, beside gradients averaged at each step", "curves",
           ("graph", "model", "way", "parts"),
           (Column("test accuracy, last epoch", "test_acc", digits=4),),
           "the same after 50 epochs, slower at first."),
          ("fig11", "Epochs between averages", "sync", ("graph", "parts", "sync_every"),
           (ACCURACY,), "unchanged to 10 or 20 epochs, then less."))),
    Figure("catgnn-fig10", "OGB-Papers on 32 parts", missing=(
        "OGB-Papers (111 M nodes, 3.2 G edges, 57 GB: ogb's ogbn-papers100M) is not on disk, and "
        "would take more than this machine's memory",)),
)

STEPS = Call("ablation.py", "", "--rounds 5", "--shapes aifb")
KERNELS = Call("tests.support.pretended.layer_counts", full="",
               quick="--graphs synthetic-mag:scale=0.01 --models rgcn", table=True)
ON_GPU = Call(GPU_SCRIPT, "--out DIR",
              get="a machine that has one, and then --gpu DIR here (docs/gpu.md)")
PRETENDED = "Counted on a GPU that is pretended: each PyTorch operator that is no view is a kernel."
HIFUSE = (
    Figure("hifuse-table1", "Steps on a GPU: host and GPU (Table 1, Fig. 8 and 10)",
           (replace(ON_GPU, read=gpu_steps),), ("graph", "model", "variant"),
           (Column("fused ÷ this", "faster"), Column("ms a step", "ms", digits=1),
            Column("kernels", "kernels", digits=0), Column("ms of the GPU", "busy_ms"),
            Column("step ÷ GPU", "host", digits=1)),
           only=(("variant", ("default", "fused", "CPU")),),
           says="the processor's time is 0.13 (R-GCN on AM) and 0.04 (R-GAT) of the GPU's; HiFuse "
                "has 43.6 to 73.2 % fewer kernels than PyG.",
           note="`default` is the kernel `merged`. The host works all the time of a step; here the "
                "GPU waits for it." + BY_HAND),
    Figure("hifuse-table2", "Shapes", (Call("relational_counts", made=relational_counts),),
           ("graph",), tuple(Column(k, k, digits=0)
                             for k in ("nodes", "edges", "types", "relations")),
           paper={(g,): dict(zip(("nodes", "edges", "types", "relations"), numbers))
                  for g, numbers in {"aifb": (7262, 48810, 7, 104), "bgs": (94806, 672884, 27, 122),
                                     "mutag": (27163, 148100, 5, 50),
                                     "am": (1885136, 5668682, 7, 108)}.items()}),
    Figure("hifuse-fig7", "All of it against relation by relation",
           (STEPS,), ("graph", "model", "configuration"), (Column("× as fast", "faster"),),
           only=(("configuration", ("all",)),),
           says="2.38 × PyG on average, up to 3.04, on a GPU."),
    Figure("hifuse-fig7-gpu", "Forward and backward of two layers on a GPU, beside PyG's layers",
           (replace(ON_GPU, read=gpu_layers),), ("graph", "model", "system"),
           (Column("this ÷ merged", "ms ÷ ours"), Column("ms", "ms"),
            Column("kernels", "kernels", digits=0)),
           says="2.38 × PyG on average, up to 3.04; selecting edges on the CPU saves up to 39.8 % "
                "of kernels, merging up to 46.3 % (Fig. 11).",
           note="PyG's layers are other functions where the formulas differ: RGATConv attends over "
                "all relations together." + BY_HAND),
    Figure("hifuse-fig8", "Kernels of a step", (KERNELS,), ("graph", "model", "kernel"),
           (Column("kernels", "step: kernels", digits=0),),
           says="43.6 to 73.2 % fewer than PyG.", note=PRETENDED),
    Figure("hifuse-fig9", "Each part alone and together",
           (STEPS,), ("graph", "model", "configuration"), (Column("× as fast", "faster"),),
           says="reorganising 1.17, merging with it 1.83, threads 1.7, a pipeline 2.2, at most."),
    Figure("hifuse-fig11", "Kernels of forward and backward, beside PyG's layers", (KERNELS,),
           ("graph", "model", "kernel"), (Column("kernels", "f + b: kernels", digits=0),),
           says="selecting edges on the CPU saves up to 39.8 % of kernels, merging up to 46.3 %.",
           note=PRETENDED),
    Figure("hifuse-table3", "Throughput of the scatter kernel",
           says="compute 0.15 → 14.42 %, memory 2.04 → 23.42 % (R-GCN on AM).", missing=(NSIGHT,)),
)
