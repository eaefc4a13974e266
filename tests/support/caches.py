"""What the tests of caches share."""

from __future__ import annotations

import torch

CPU = torch.device("cpu")
