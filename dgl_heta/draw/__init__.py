"""Pictures of a plan: for the terminal and as an SVG (in the manner of Heta, Fig. 6).

Both show the metatree on top of (or left of) the partitions, one colour per partition. A
metatree grows exponentially with its depth, so :func:`outline` decides what is drawn before
anything is; what is left out is counted ("… 12 more").
"""

from dgl_heta.draw.common import PALETTE, human_bytes, printable, write_atomic
from dgl_heta.draw.console import terminal
from dgl_heta.draw.excerpt import Vertex, outline
from dgl_heta.draw.picture import save_svg, svg

__all__ = ["PALETTE", "Vertex", "human_bytes", "outline", "printable", "save_svg", "svg",
           "terminal", "write_atomic"]
