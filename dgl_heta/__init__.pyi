"""The public names of dgl_heta, and where each is; `lazy_names` loads them."""

from dgl_heta._version import __version__ as __version__
from dgl_heta.distdgl.activate import disable as disable, enable as enable
from dgl_heta.distdgl.loading.all_seeds import all_seeds as all_seeds
from dgl_heta.distdgl.modules.registered_convs import register_hetero_conv as register_hetero_conv
from dgl_heta.errors import HetaError as HetaError, InputError as InputError
from dgl_heta.graph.readers.array_files import open_edges as open_edges
from dgl_heta.graph.readers.torch_file import SavedObject as SavedObject, read_saved as read_saved
from dgl_heta.graph.schema import Relation as Relation, Schema as Schema
from dgl_heta.graph.source import EdgeArrays as EdgeArrays, GraphSource as GraphSource, Task as Task
from dgl_heta.hooks.batch_protocol import BatchSource as BatchSource, Stage as Stage
from dgl_heta.hooks.cutter_protocol import Cutter as Cutter
from dgl_heta.hooks.kernel_protocol import Kernel as Kernel
from dgl_heta.hooks.protocols import (CachePolicy as CachePolicy, Command as Command,
    Dataset as Dataset, InputReader as InputReader, InputsContext as InputsContext,
    Logger as Logger, ModelInputs as ModelInputs, ModelProvider as ModelProvider,
    ModuleWrapper as ModuleWrapper, PartitionBackend as PartitionBackend, Patches as Patches,
    Program as Program, Reader as Reader, RunLog as RunLog, WrapContext as WrapContext,
    WrappedModule as WrappedModule)
from dgl_heta.hooks.provider import Provider as Provider
from dgl_heta.hooks.specs import hookimpl as hookimpl
from dgl_heta.launch.jobs.from_python import open_partition as open_partition, train as train
from dgl_heta.models import (HGNN as HGNN, BlockModel as BlockModel, Edges as Edges,
    HANLayer as HANLayer, HGNNLayer as HGNNLayer, HGTLayer as HGTLayer, ModelSpec as ModelSpec,
    RGATLayer as RGATLayer, RGCNLayer as RGCNLayer, slot as slot)
from dgl_heta.partition.backends.metatree_backend import MetatreeBackend as MetatreeBackend
from dgl_heta.partition.dgl import partition_graph as partition_graph
from dgl_heta.partition.request import (AUTO as AUTO, PartitionRequest as PartitionRequest,
    PartitionResult as PartitionResult)
from dgl_heta.planning.making import make_plan as make_plan
from dgl_heta.planning.plan import Plan as Plan
from dgl_heta.prediction.own_model import predict_all as predict_all
from dgl_heta.store import Store as Store, write_store as write_store
from dgl_heta.store.reader import as_source as as_source
from dgl_heta.training.distributed import distribute as distribute
from dgl_heta.training.own_loop import Partition as Partition
from dgl_heta.training.trained_model import load_model as load_model
