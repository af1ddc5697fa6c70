"""`AttentionParams` of `source/params.cuh`, field for field."""

from __future__ import annotations

import ctypes
from typing import Any

UNLIMITED = (1 << 30) - 1
"""A causal_offset that hides nothing; its negative is a window_offset that hides nothing."""


def fields_of(kind: type[ctypes.Structure]) -> list[tuple[str, type]]:
    """The fields of a structure, those of the structures that it extends first."""
    return [(name, of) for base in reversed(kind.__mro__) for name, of, *_ in vars(base).get("_fields_", ())]


class Divisor(ctypes.Structure):
    """A divisor with the multiplier and shift that replace division for dividends in 0 .. 2^31 - 1.

    x // d == (x * m >> 32) >> s with s = ceil(log2 d) - 1 and m = ceil(2^(32 + s) / d): Granlund and Montgomery,
    "Division by Invariant Integers using Multiplication", 1994. One is its own case: its multiplier has 33 bits.
    """

    _fields_ = [("divisor", ctypes.c_uint32), ("multiplier", ctypes.c_uint32), ("shift", ctypes.c_uint32)]

    @classmethod
    def of(cls, divisor: int) -> Divisor:
        if not 1 <= divisor < 2**31:
            raise ValueError(f"a divisor must be in 1 .. 2^31 - 1, not {divisor}")
        if divisor == 1:
            return cls(1, 0, 0)
        shift = (divisor - 1).bit_length() - 1
        return cls(divisor, -(-(1 << (32 + shift)) // divisor), shift)


class Parameters(ctypes.Structure):
    """What a launch passes by value. Strides are in bytes; pointers are device addresses."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "lse", "partial_out", "partial_lse")),
        *((name, ctypes.c_int64) for name in ("q_batch", "q_head", "q_row", "k_batch", "k_head", "v_batch", "v_head")),
        *((name, ctypes.c_int64) for name in ("out_batch", "out_head", "out_row")),
        *((name, ctypes.c_uint32) for name in ("k_row", "v_row")),
        *((name, Divisor) for name in ("heads", "group")),
        *((name, ctypes.c_int32) for name in ("all_heads", "seq_q", "seq_k", "head_dim", "causal_offset")),
        *((name, Divisor) for name in ("row_tiles", "section", "section_tiles")),
        *((name, ctypes.c_int32) for name in ("splits", "tiles_per_split")),
        ("scale_log2", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("tickets", "q_starts", "k_starts", "mask")),
        *((name, ctypes.c_int64) for name in ("mask_batch", "mask_head", "mask_row", "all_rows")),
        ("mask_key", ctypes.c_uint32),
        *((name, ctypes.c_int32) for name in ("window_offset", "align_ends")),
        *((name, Divisor) for name in ("pack", "packs")),
        ("least_tiles", ctypes.c_int32),
        *((name, ctypes.c_uint32) for name in ("q_keep", "q_flip")),
        *((name, ctypes.c_void_p) for name in ("block_table", "k_lengths")),
        ("table_row", ctypes.c_int64),
        ("page", Divisor),
        *((name, ctypes.c_void_p) for name in ("slopes", "sinks")),
        ("slopes_batch", ctypes.c_int64),
        ("cap", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("value_dim", "level")),
        *((name, ctypes.c_void_p) for name in ("k_scale", "v_scale", "q_scale")),
    ]


DROPOUT_FIELDS: list[Any] = [("seed", ctypes.c_void_p), ("least", ctypes.c_uint32), ("keep_scale", ctypes.c_float)]
"""`Dropout` of `source/dropout.cuh`."""


class DroppingParameters(Parameters):
    """`DroppingParams` of `source/dropout.cuh`."""

    _fields_ = DROPOUT_FIELDS
