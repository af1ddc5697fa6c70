"""One problem of attention, spelt out in full (docs/contracts.md, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from orchestrator.core.bundled.passes import AXIS, FORWARD, Pass, suffix

Positive = Annotated[int, Field(ge=1)]


class Shape(BaseModel):
    """One attention problem. Q is (batch, heads, seq_q, head_dim); K and V are (batch, kv_heads, seq_k, head_dim).
    `pass` says what is computed: the output, its gradients for Q, K and V, or both."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")

    batch: Positive
    heads: Positive
    kv_heads: Positive
    seq_q: Positive
    seq_k: Positive
    head_dim: Positive
    causal: bool = False
    direction: Pass = Field(FORWARD, alias=AXIS)

    @model_validator(mode="before")
    @classmethod
    def fill_in(cls, data: Any) -> Any:
        """Sets both lengths from `seq`, and `kv_heads` to `heads` unless it is given."""
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
        """Such as `b2-h8-kv8-q512-k512-d64-full-float16`; followed by `-backward` or `-both` if that is the pass."""
        mask = "causal" if self.causal else "full"
        sizes = f"b{self.batch}-h{self.heads}-kv{self.kv_heads}-q{self.seq_q}-k{self.seq_k}-d{self.head_dim}"
        return f"{sizes}-{mask}-{dtype}{suffix(self.direction)}"

    @model_serializer(mode="wrap")
    def spelt_out(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The shape as a dictionary. `pass` is left out if it is forward, because older readers do not know the key."""
        fields: dict[str, Any] = serialize(self)
        direction = fields.pop("direction", None) or fields.pop(AXIS)
        return fields if direction == FORWARD else {**fields, AXIS: direction}


PLACEHOLDER: Final[Mapping[str, int]] = {"batch": 1, "heads": 1, "seq": 1, "head_dim": 1}
"""The shape that replaces one that could not be read."""
