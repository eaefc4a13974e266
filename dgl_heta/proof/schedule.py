"""At which steps a run is proved (`run.prove`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dgl_heta.system.hashing import hash_key

_RANDOM = 0x9200F  # a number of its own among the keys of hashes


@dataclass(frozen=True)
class Schedule:
    """The steps of a data loader at which to prove.

    Attributes
    ----------
    auto : the first step, the last step of the first epoch, and one random step per epoch.
    first : that many first steps.
    every : every so many steps, from the first one on; 0 for none.
    """

    auto: bool = False
    first: int = 0
    every: int = 0

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """From the setting: `auto`, `off`, `N` or `every N`.

        Raises
        ------
        ValueError
            It is none of these.
        """
        if text in ("auto", "off"):
            return cls(auto=text == "auto")
        number = re.fullmatch(r"(every\s+)?(\d+)", text.strip())
        if number is None or (number[1] and int(number[2]) < 1):
            raise ValueError("it is auto, off, N (the first N steps) or every N")
        return cls(every=int(number[2])) if number[1] else cls(first=int(number[2]))

    @property
    def off(self) -> bool:
        return not (self.auto or self.first or self.every)

    def due(self, seed: int, epoch: int, step: int, steps: int) -> bool:
        """Return whether to prove a step, the same on all trainers.

        Parameters
        ----------
        seed : of the run; with the epoch it names the random step.
        epoch, step : from 0 on.
        steps : of the epoch.
        """
        number = epoch * steps + step
        if self.auto:
            return (number in (0, steps - 1)
                    or step == hash_key(seed, epoch, _RANDOM) % max(steps, 1))
        return number < self.first or bool(self.every and number % self.every == 0)
