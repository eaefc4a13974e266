"""Names for plugins, beside the protocols and classes of `dgl_heta`; docs/hooks.md has a table.

These names, in `tools.pyi`, and those of `dgl_heta`, `dgl_heta.nn`, `dgl_heta.cache`,
`dgl_heta.graphbolt` and `dgl_heta.store` are public: :data:`PUBLIC`. What lies in other modules may
change at any time. A name is loaded when it is first used.
"""

from dgl_heta.system.lazy_names import lazy_names

PUBLIC = ("dgl_heta", "dgl_heta.tools", "dgl_heta.nn", "dgl_heta.cache", "dgl_heta.graphbolt",
          "dgl_heta.store")
"""Modules whose `__all__` is public."""

__getattr__, __all__ = lazy_names(__name__, __file__)
__all__ += ["PUBLIC"]
