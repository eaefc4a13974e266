"""A model with a setting that decides which parameters it has."""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel, Field

from dgl_heta import BlockModel, hookimpl


class Settings(BaseModel):
    factor: int = Field(1, ge=1, description="times model.hidden")


class Wide(BlockModel):
    settings: Settings = Settings()

    def build(self, spec):
        return super().build(replace(spec, hidden=spec.hidden * self.settings.factor))


@hookimpl
def dgl_heta_models():
    from dgl_heta.models import RGCNLayer

    return [Wide("wide", RGCNLayer)]
