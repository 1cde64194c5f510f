"""What every configuration object is: frozen, keyword-only, unknown keys refused."""

from __future__ import annotations

from typing import Annotated, TypeAlias, dataclass_transform

from msgspec import Meta, Struct, field

Positive: TypeAlias = Annotated[int, Meta(ge=1)]
NonNegative: TypeAlias = Annotated[int, Meta(ge=0)]
Port: TypeAlias = Annotated[int, Meta(ge=1, le=65535)]
Processes: TypeAlias = Annotated[int, Meta(ge=1, le=4096)]
"""Of one kind, on one machine: more of them are a slip of the pen."""
Threads: TypeAlias = Annotated[int, Meta(ge=1, le=1024)]
PositiveFloat: TypeAlias = Annotated[float, Meta(gt=0)]
NonNegativeFloat: TypeAlias = Annotated[float, Meta(ge=0)]
PositiveFloat32: TypeAlias = Annotated[float, Meta(ge=1.2e-38, le=3.4e38)]
"""What the trainer computes with: a larger one overflows float32, a smaller one may become 0."""
NonNegativeFloat32: TypeAlias = Annotated[float, Meta(ge=0, le=3.4e38)]
FileName: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=64)]
"""Letters, digits, `_`, `-` and dots: it becomes part of a path."""
Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every table of a topology file. A field's type carries its range."""
