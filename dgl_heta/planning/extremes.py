"""Maxima and minima over relations: what they need that sums and means do not.

A row that no relation reaches has no extreme. While rows are merged it stands at the infinity that
every number beats (:data:`EXTREMES`); the result is 0, as in DGL.

Of equal numbers one alone gets the gradient: that of the relation that is first in the schema. So
workers also tell each other which relation attained the extreme
(:meth:`dgl_heta.raf.exchange.GroupExchange.reduce_extreme`), and these bytes are counted
(:mod:`dgl_heta.planning.traffic`).

That exchange does not serve rows that one worker aggregates for another. There every relation's
rows are sent, side by side, and the receiver takes the extreme
(:func:`dgl_heta.nn.cross.extreme_of`). This may be more than the learnable rows themselves, so
"auto" does not offload (:func:`dgl_heta.planning.owner_choice.worth_choosing`).
"""

EXTREMES = {"max": float("-inf"), "min": float("inf")}
"""The reducers that take an extreme → where a row stands that nothing reaches."""
