"""The members that every provider has, whatever it provides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pydantic import BaseModel


class Provider(Protocol):
    """The members that all providers have."""

    name: str
    settings: BaseModel | None = None
    """The provider's own settings: an instance of a pydantic model, with the defaults. They are the
    section `[plugins.NAME]`; the provider that is called has the user's values here."""
