"""The names of attention's implementations and axes, and the words in which messages show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from orchestrator.core.bounds import StrictModel

# Which pass of attention a case computes, and what it has beside plain attention. Only the case's id names these.


Pass = Literal["forward", "backward", "both"]
FORWARD: Final[Pass] = "forward"
AXIS: Final = "pass"
PRODUCTS: Final = {"forward": (1, 1), "backward": (3, 2), "both": (4, 3)}
"""How many matrix products as wide as K, and as V, each pass computes."""
MOVED: Final = {"forward": 1, "backward": 2, "both": 2}
"""How often a call reads or writes a tensor like Q, K, V or the output at least."""
NAMED: Final = re.compile(
    r"b\d+-h\d+-kv\d+-q\d+-k\d+-d\d+(?:-v(?P<value_dim>\d+))?-(?:causal|full)(?:-w(?P<window>\d+))?"
    rf"(?:-(?P<sinks>sinks))?(?:-p(?P<dropout>0\.\d+))?-[a-z0-9]+(?:-(?P<{AXIS}>backward|both))?"
)


def with_named_axes(case_id: str, axes: Mapping[str, str]) -> dict[str, str]:
    """The axes of a case from its file, with those added that only its id names (its pass unless that is forward)."""
    match = NAMED.fullmatch(case_id)
    return {**axes, **({name: value for name, value in match.groupdict().items() if value} if match else {})}


WORKLOAD: Final = "attention"
KERNEL: Final = "bench"
"""The bundled kernel."""
IMPLEMENTATIONS: Final = ("bench", "sdpa:default", "sdpa:flash", "sdpa:efficient", "sdpa:cudnn", "sdpa:math")
"""The implementations that a run measures by default, in the order in which tables show them."""
VARIANTS: Final = {
    KERNEL: r"(@sm_[0-9]{2,3})?(:lse)?", "sdpa": ":(default|flash|efficient|cudnn|math)", "fa4": "(:split)?",
    "fa3": "", "flex": "", "cudnn-frontend": "", "flashinfer": "",
}  # fmt: skip
"""Each implementation that the harness knows, and a pattern of what may follow its name. It repeats the harness's
registry for the client."""
OTHERS_INSTALLED: Final = ("fa4", "fa4:split", "fa3", "flex", "cudnn-frontend", "flashinfer")
"""Attention of others, which is measured if a configuration names it and the machine has it installed."""
CHOICES: Final = (*IMPLEMENTATIONS, "bench:lse", "bench@sm_80", *OTHERS_INSTALLED)
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
    `pass` says what is computed: the output, its gradients, or both. V may be `value_dim` wide instead; with a `window`
    a row of a causal shape sees its last so many keys; `sinks` are scores of heads; `dropout` is a probability."""

    batch: Positive
    heads: Positive
    kv_heads: Positive
    seq_q: Positive
    seq_k: Positive
    head_dim: Positive
    causal: bool = False
    direction: Pass = Field(FORWARD, alias=AXIS)
    value_dim: Positive | None = None
    window: Positive | None = None
    sinks: bool = False
    dropout: Annotated[float, Field(ge=0.0001, le=0.9999)] | None = None

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
        if full.get("value_dim") == full.get("head_dim"):
            full.pop("value_dim", None)
        return full

    @model_validator(mode="after")
    def heads_are_shared_evenly(self) -> Shape:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is not a multiple of kv_heads ({self.kv_heads})")
        if self.window is not None and not self.causal:
            raise ValueError("window is the last keys that a row sees of a causal shape: set causal to true")
        return self

    def case_id(self, dtype: str) -> str:
        """Such as `b2-h8-kv8-q512-k512-d64-full-float16`; followed by `-backward` or `-both` if that is the pass."""
        mask = "causal" if self.causal else "full"
        sizes = f"b{self.batch}-h{self.heads}-kv{self.kv_heads}-q{self.seq_q}-k{self.seq_k}-d{self.head_dim}"
        sizes += f"-v{self.value_dim}" if self.value_dim else ""
        mask += (f"-w{self.window}" if self.window else "") + ("-sinks" if self.sinks else "")
        mask += f"-p{self.dropout}" if self.dropout else ""
        return f"{sizes}-{mask}-{dtype}" + ("" if self.direction == FORWARD else f"-{self.direction}")

    @model_serializer(mode="wrap")
    def spell_out(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The shape as a dictionary, without the fields after `causal` that have defaults: older readers know none."""
        fields: dict[str, Any] = serialize(self)
        direction = fields.pop("direction", None) or fields.pop(AXIS)
        unset = {key for key in ("value_dim", "window", "sinks", "dropout") if not fields[key]}
        fields = {key: value for key, value in fields.items() if key not in unset}
        return fields if direction == FORWARD else {**fields, AXIS: direction}


PLACEHOLDER: Final[Mapping[str, int]] = {"batch": 1, "heads": 1, "seq": 1, "head_dim": 1}
"""The shape that replaces one that could not be read."""


# How many operations a call of attention computes, and the fewest bytes that it moves.


BYTES: Final = {"float16": 2, "bfloat16": 2, "float32": 4}
CONVENTION: Final = "4 × batch × heads × seq_q × seq_k × head_dim operations a call, half of that where causal"
OTHERS: Final = {
    AXIS: "; 10 in place of 4 for a backward pass, 14 for both passes",
    "value_dim": "; products with V or its gradient by the width of V",
    "window": "; with a window, of the keys that are seen",
}


def counting_convention(axes: Iterable[Mapping[str, str]]) -> str:
    """The text that explains how the operations of these cases are counted."""
    listed = list(axes)
    if listed and all(of_case(one) is None for one in listed):
        return "the workload's own formula"
    return CONVENTION + "".join(text for axis, text in OTHERS.items() if any(axis in one for one in listed))


def of_case(axes: Mapping[str, str]) -> tuple[float, float] | None:
    """(operations, bytes) of one call, from the axes of its case and its pass; None if an axis is missing or not a
    number. The bytes are the fewest that a call must move: Q, K and V are read once and the output is written once.
    With a backward pass they are the output, Q, K and V, and the gradient of each."""
    try:
        batch, heads, kv_heads, seq_q, seq_k, head_dim = (
            int(axes[name]) for name in ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim")
        )
        size = BYTES[axes["dtype"]]
        value_dim, window = int(axes.get("value_dim", head_dim)), int(axes.get("window", 0))
        causal = axes["causal"] == "true"
        direction = axes.get(AXIS, FORWARD)
        (of_keys, of_values), times = PRODUCTS[direction], MOVED[direction]
    except (KeyError, ValueError):
        return None
    if min(batch, heads, kv_heads, seq_q, seq_k, head_dim, value_dim) < 1:
        return None
    pairs = seq_q * seq_k * (0.5 if causal else 1.0)
    if window > 0:
        pairs = float(pairs_under_mask(seq_q, seq_k) - pairs_under_mask(max(0, seq_q - window), seq_k))
    flop = 2.0 * batch * heads * pairs * (of_keys * head_dim + of_values * value_dim)
    return flop, float(times) * batch * (head_dim + value_dim) * size * (heads * seq_q + kv_heads * seq_k)


def pairs_under_mask(rows: int, keys: int) -> int:
    """The pairs of a query and a key under a causal mask, aligned top-left."""
    square = min(rows, keys)
    return square * (square + 1) // 2 + (rows - square) * keys
