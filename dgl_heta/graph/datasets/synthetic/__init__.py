"""Seeded synthetic graphs with the shapes of the data sets in Table 1 of the Heta paper.

The counts are those of the published data sets; where a data set publishes totals only
(Freebase, Donor) the split over types and relations is noted at the shape. The content is
made up, but not meaningless:

* Every node, of every type, belongs to a hidden community; a class is a group of
  communities. The label of a target node is the class of its community, except that 5 % of
  the labels are drawn at random.
* A relation has a `signal`: the share of its edges that join a community to itself. Another
  `related` share joins it to one confusable community of another class (a different one for
  every relation), and the rest is noise. Relations thus differ in how much they tell, and
  none tells all.
* Features are noisy mixtures of the prototypes of class and community. They are too noisy to
  tell the class alone: accuracy grows with every informative relation that a model uses.
* At one end of a relation (the hub) nodes are picked by a power law of popularity, at the
  other end degrees are log-normal. No edge occurs twice, no node is joined to itself, and a
  reverse relation is the exact transpose, in the same edge order.

Small scales: counts shrink in proportion, but a type keeps at least 8 nodes and a relation at
least one edge (fewer than the proportional number where the ends would be joined to more than
half of each other). At least 5,000 target nodes, or all of them, are labelled, and there are
at most `labelled / 50` classes (at least 2), so that every class can be learned.
"""

from dgl_heta.graph.datasets.synthetic.files import write_files
from dgl_heta.graph.datasets.synthetic.published import SHAPES, shape_schema
from dgl_heta.graph.datasets.synthetic.shape_arrays import generate
from dgl_heta.graph.datasets.synthetic.shapes import NodeShape, RelationShape, Shape

__all__ = ["SHAPES", "NodeShape", "RelationShape", "Shape", "generate", "shape_schema",
           "write_files"]
