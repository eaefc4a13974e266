"""Feature caches: one tier of memory before a slower one (Heta §6).

`policies` choose rows by numbers alone; `slots` knows which row is where; `rows` and `table` hold
copies of static and of learnable rows; `penalties` measures what a miss costs,
`profile` stores that and visits; `observing` fills itself by what a script reads.
"""

from dgl_heta.cache.policies import CachePolicy, Policy, built_in, by_device, choose

__all__ = ["CachePolicy", "Policy", "built_in", "by_device", "choose"]
