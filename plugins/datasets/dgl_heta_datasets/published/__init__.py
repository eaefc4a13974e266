"""Large published graphs in the form in which they are downloaded, read where they lie.

Nothing is downloaded, unpickled or copied: edges and features stay in their files until a store is
written, in the type that they have there (MAG240M's features are float16, and so are the store's).
Relations are those of the files; `dgl-heta partition --reverse` adds their reverses.
"""

from __future__ import annotations

from dgl_heta_datasets.published.hgb import Hgb
from dgl_heta_datasets.published.igb import Igb
from dgl_heta_datasets.published.mag240m import Mag240m

__all__ = ["Hgb", "Igb", "Mag240m"]
