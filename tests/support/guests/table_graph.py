"""A data set whose options are a path, texts, numbers and a switch: people in a file of words."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

from dgl_heta import Dataset, EdgeArrays, GraphSource, InputError, Relation, Task, hookimpl


class Options(BaseModel):
    path: Path = Field(Path("words.txt"), description="a file with a person and words per line")
    separator: str = Field(" ", min_length=1, description="what stands between the words")
    least: int = Field(1, ge=1, description="lines that a word is in at least")
    label: Literal["length", "parity"] = "parity"
    reverse: bool = True


class Words(Dataset):
    name, description = "words", "who says what"
    options = Options()

    def load(self, path, separator, least, label, reverse):
        if not path.is_file():
            raise InputError(f"words: there is no file {path}")
        lines = [line.split(separator) for line in path.read_text().splitlines()]
        said = [w for _, *words in lines for w in words]
        words = [w for w in dict.fromkeys(said) if said.count(w) >= least]
        pairs = np.array([(i, words.index(w)) for i, (_, *own) in enumerate(lines)
                          for w in own if w in words])
        edges = {Relation("word", "said-by", "person"): EdgeArrays(pairs[:, 1], pairs[:, 0])}
        if reverse:
            edges[Relation("person", "says", "word")] = EdgeArrays(pairs[:, 0], pairs[:, 1])
        people = np.arange(len(lines))
        labels = people % 2 if label == "parity" else np.array([len(line) > 2 for line in lines])
        return GraphSource("words", {"person": len(lines), "word": len(words)}, edges, {"person": {
            "label": labels.astype(np.int64), "train_mask": people % 4 < 3,
            "val_mask": people % 4 == 3}}, Task("person", 2))


@hookimpl
def dgl_heta_datasets():
    return [Words()]
