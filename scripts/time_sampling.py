"""Seconds of sampling with times beside sampling without, interleaved."""
import sys, time, tempfile, shutil
from pathlib import Path
import numpy as np
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import EdgeArrays, GraphSource
from dgl_heta.planning.making import make_plan
from dgl_heta.sampling.sampler import NeighborSampler
from dgl_heta.sampling.sampling_scope import SamplingScope
from dgl_heta.store import Store, write_store
users, items, orders = 200_000, 50_000, 3_000_000
rng = np.random.default_rng(0)
user = (rng.random(orders)**2*users).astype(np.int64); item=(rng.random(orders)**2*items).astype(np.int64)
o=np.arange(orders)
edges={Relation("user","places","order"):EdgeArrays(user,o),Relation("order","of","user"):EdgeArrays(o,user),
       Relation("item","in","order"):EdgeArrays(item,o),Relation("order","has","item"):EdgeArrays(o,item)}
times=np.sort(rng.integers(0,10**8,orders))
d=Path("/work/tmp/time/bench")
if not d.exists():
    d.mkdir(parents=True)
    g=GraphSource("shop",{"user":users,"item":items,"order":orders},edges)
    t=time.time(); write_store(g,d/"plain"); t1=time.time()
    write_store(GraphSource("shop",g.node_counts,edges,times={"order":times}),d/"timed"); print("write plain",t1-t,"timed",time.time()-t1)
def sampler(name,hops,threads):
    s=Store(d/name)
    return NeighborSampler(s,SamplingScope.of(make_plan(s.schema,"user",hops,1),0),[15]*(hops-1)+[15],threads=threads)
for hops,threads in ((2,1),(2,2),(3,1)):
    plain,timed=sampler("plain",hops,threads),sampler("timed",hops,threads)
    same, late, sizes=[],[],{}
    tp,tt,tl=[],[],[]
    rp=rt=0
    for step in range(25):
        seeds=rng.permutation(users)[:1024]
        when=rng.integers(5*10**7,10**8,1024)
        a=time.perf_counter(); b1=plain.sample({"user":seeds},step=step); b=time.perf_counter()
        b2=timed.sample({"user":np.stack([seeds,when],1)},step=step); c=time.perf_counter()
        b3=timed.sample({"user":np.stack([seeds,np.full(1024,10**9)],1)},step=step); e=time.perf_counter()
        if step>4:
            tp.append(b-a); tt.append(c-b); tl.append(e-c)
            ed=lambda x: sum(len(k.indices) for bl in x.blocks for k in bl.edges)
            sizes={k:(ed(x),sum(map(len,x.input_nodes.values()))) for k,x in (("plain",b1),("timed",b2),("all at last",b3))}
    m=np.median
    print(hops,threads,"plain %.1f ms timed %.1f ms (%.2f) all seeds at last time %.1f (%.2f)"%(m(tp)*1e3,m(tt)*1e3,m(np.array(tt)/tp),m(tl)*1e3,m(np.array(tl)/tp)),sizes)
