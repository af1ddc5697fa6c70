"""The names of attention's implementations and axes, and the words in which messages show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from orchestrator.core.bounds import StrictModel

# Which pass of attention a case computes: the output, the gradients, or both. Only the case's id says which.


Pass = Literal["forward", "backward", "both"]
FORWARD: Final[Pass] = "forward"
AXIS: Final = "pass"
PRODUCTS: Final = {"forward": 2, "backward": 5, "both": 7}
"""How many matrix products each pass computes."""
MOVED: Final = {"forward": 2, "backward": 4, "both": 4}
"""How many tensors like Q, and how many like K, a call reads or writes at least once."""
NAMED: Final = re.compile(r"b\d+-h\d+-kv\d+-q\d+-k\d+-d\d+-(?:causal|full)-[a-z0-9]+-(backward|both)")


def with_pass(case_id: str, axes: Mapping[str, str]) -> dict[str, str]:
    """The axes of a case from its file, with its pass added unless that is forward."""
    named = NAMED.fullmatch(case_id)
    return {**axes, AXIS: named[1]} if named else dict(axes)


WORKLOAD: Final = "attention"
KERNEL: Final = "bench"
"""The bundled kernel."""
IMPLEMENTATIONS: Final = ("bench", "sdpa:default", "sdpa:flash", "sdpa:efficient", "sdpa:cudnn", "sdpa:math")
"""The implementations that a run measures by default, in the order in which tables show them."""
VARIANTS: Final = {
    KERNEL: r"(@sm_[0-9]{2,3})?(:lse)?", "sdpa": ":(default|flash|efficient|cudnn|math)", "fa4": "", "flex": "",
}  # fmt: skip
"""Each implementation that the harness knows, and a pattern of what may follow its name. It repeats the harness's
registry for the client."""
CHOICES: Final = (*IMPLEMENTATIONS, "bench:lse", "bench@sm_80", "fa4", "flex")
"""Full names for messages. A name that contains a number has one example here."""
DEFAULT: Final = "sdpa:default"
"""The default baseline of speed-ups."""
SLOWEST: Final = ("sdpa:math",)
"""Implementations that figures leave out if they have any other to show."""
FAMILY: Final = "sdpa:"
"""The prefix that figures remove from a name."""
AXES: Final = ("dtype", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal")
"""The axis columns of attention's result files. In files of older runs they may be all that identifies a case."""
WORDS: Final = (("causal true", "causal"), ("causal false", "full"))
"""`axis value` in a result, and the word that messages use for it."""


def is_implementation(name: str) -> bool:
    """Whether the harness knows an implementation of this name."""
    return any(re.fullmatch(f"{first}{rest}", name, re.ASCII) for first, rest in VARIANTS.items())


def is_kernel(name: str) -> bool:
    """Whether `name` is the bundled kernel or a variant of it."""
    return re.fullmatch(f"{KERNEL}{VARIANTS[KERNEL]}", name, re.ASCII) is not None


def is_of(axes: Iterable[Mapping[str, str]]) -> bool:
    """Whether these cases, given by their axes, belong to attention."""
    return any("head_dim" in one for one in axes)


def in_words(text: str) -> str:
    """`text` with each `axis value` of `WORDS` replaced by its word."""
    for plain, word in WORDS:
        text = text.replace(plain, word)
    return text


# One problem of attention, spelt out in full (docs/contracts.md, section 4).


Positive = Annotated[int, Field(ge=1)]


class Shape(StrictModel):
    """One attention problem. Q is (batch, heads, seq_q, head_dim); K and V are (batch, kv_heads, seq_k, head_dim).
    `pass` says what is computed: the output, its gradients for Q, K and V, or both."""

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
        return f"{sizes}-{mask}-{dtype}" + ("" if self.direction == FORWARD else f"-{self.direction}")

    @model_serializer(mode="wrap")
    def spelt_out(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The shape as a dictionary. `pass` is left out if it is forward, because older readers do not know the key."""
        fields: dict[str, Any] = serialize(self)
        direction = fields.pop("direction", None) or fields.pop(AXIS)
        return fields if direction == FORWARD else {**fields, AXIS: direction}


PLACEHOLDER: Final[Mapping[str, int]] = {"batch": 1, "heads": 1, "seq": 1, "head_dim": 1}
"""The shape that replaces one that could not be read."""


# How many operations a call of attention computes, and the fewest bytes that it moves.


BYTES: Final = {"float16": 2, "bfloat16": 2, "float32": 4}
CONVENTION: Final = "4 × batch × heads × seq_q × seq_k × head_dim operations a call, half of that where causal"
OTHERS: Final = "; 10 in place of 4 for a backward pass, 14 for both passes"


def counting_convention(axes: Iterable[Mapping[str, str]]) -> str:
    """The text that explains how the operations of these cases are counted."""
    listed = list(axes)
    if listed and all(of_case(one) is None for one in listed):
        return "the workload's own formula"
    return CONVENTION + (OTHERS if any(AXIS in one for one in listed) else "")


def of_case(axes: Mapping[str, str]) -> tuple[float, float] | None:
    """(operations, bytes) of one call, from the axes of its case and its pass; None if an axis is missing or not a
    number. The bytes are the fewest that a call must move: Q, K and V are read once and the output is written once.
    With a backward pass they are the output, Q, K and V, and the gradient of each."""
    try:
        batch, heads, kv_heads, seq_q, seq_k, head_dim = (
            int(axes[name]) for name in ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim")
        )
        size = BYTES[axes["dtype"]]
        causal = axes["causal"] == "true"
        products, tensors = (of[axes.get(AXIS, FORWARD)] for of in (PRODUCTS, MOVED))
    except (KeyError, ValueError):
        return None
    if min(batch, heads, kv_heads, seq_q, seq_k, head_dim) < 1:
        return None
    flop = 2.0 * products * batch * heads * seq_q * seq_k * head_dim * (0.5 if causal else 1.0)
    return flop, float(tensors) * batch * head_dim * size * (heads * seq_q + kv_heads * seq_k)
