"""One problem of attention, spelt out in full (docs/contracts.md, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(ge=1)]


class Shape(BaseModel):
    """One attention problem. Q is (batch, heads, seq_q, head_dim); K and V are (batch, kv_heads, seq_k, head_dim)."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")

    batch: Positive
    heads: Positive
    kv_heads: Positive
    seq_q: Positive
    seq_k: Positive
    head_dim: Positive
    causal: bool = False

    @model_validator(mode="before")
    @classmethod
    def fill_in(cls, data: Any) -> Any:
        """`seq` stands for both lengths, and `kv_heads` is `heads` unless it is given."""
        if not isinstance(data, Mapping):
            return data
        full = dict(data)
        if "seq" in full:
            if "seq_q" in full or "seq_k" in full:
                raise ValueError("give either seq, or seq_q and seq_k")
            full["seq_q"] = full["seq_k"] = full.pop("seq")
        if "heads" in full:
            full.setdefault("kv_heads", full["heads"])
        return full

    @model_validator(mode="after")
    def heads_are_shared_evenly(self) -> Shape:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is not a multiple of kv_heads ({self.kv_heads})")
        return self

    def case_id(self, dtype: str) -> str:
        """`b2-h8-kv8-q512-k512-d64-full-float16`."""
        mask = "causal" if self.causal else "full"
        return (
            f"b{self.batch}-h{self.heads}-kv{self.kv_heads}-q{self.seq_q}-k{self.seq_k}-d{self.head_dim}-{mask}-{dtype}"
        )


PLACEHOLDER: Final[Mapping[str, int]] = {"batch": 1, "heads": 1, "seq": 1, "head_dim": 1}
"""A shape that stands where none could be read."""
