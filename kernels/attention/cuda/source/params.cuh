// The parameters of all kernels here: one problem, described once on the host.
#pragma once
#include "device.cuh"

// Division by a number known on the host, for dividends below 2^31: a multiplication and a shift, which the compiler can leave
// to the uniform datapath where the dividend is the same in all threads.
struct Divisor {
  u32 divisor, multiplier, shift;
};

DEVICE int divide(int x, const Divisor& d) {
  return d.divisor == 1 ? x : (int)(multiply_high((u32)x, d.multiplier) >> d.shift);
}

struct AttentionParams {
  const char* q;
  const char* k;
  const char* v;
  char* out;
  float* lse;             // [batch, heads, seq_q], natural logarithm; or null
  float* partial_out;     // [splits, batch * heads * seq_q, head_dim]; used when splits > 1
  float* partial_lse;     // [splits, batch * heads * seq_q], base 2
  i64 q_batch, q_head, q_row;  // strides in bytes; the last dimension is contiguous
  i64 k_batch, k_head;
  i64 v_batch, v_head;
  i64 out_batch, out_head, out_row;
  u32 k_row, v_row;       // a tile of keys spans less than 2 GB
  Divisor heads;          // of Q
  Divisor group;          // heads of Q that share a head of K and V
  int all_heads;          // batch * heads
  int seq_q, seq_k, head_dim;
  int causal_offset;      // row r sees keys 0 .. r + causal_offset
  Divisor row_tiles;      // ceil(seq_q / BM)
  Divisor section;        // heads whose K and V are meant to share the L2 cache
  Divisor section_tiles;  // section * row_tiles
  int splits, tiles_per_split;
  float scale_log2;       // scale * log2(e): exp(scale x) = exp2(scale_log2 x)

  // Read only by the kernels with features. The fields above keep their places, so the code of the plain kernels does not
  // change. Here `all_heads` counts packs of all batches, and `seq_q` is the length of a packed tensor.
  u32* tickets;           // one count for each item, zero between launches: it says which block joins the parts
  const int* q_starts;    // sequence b is rows q_starts[b] .. q_starts[b + 1] - 1 of a packed tensor; or null
  const int* k_starts;
  const char* mask;       // what is added to the scaled scores, or which keys are seen
  i64 mask_batch, mask_head, mask_row;  // strides in bytes, 0 where the mask is broadcast
  i64 all_rows;           // rows of the output over all heads
  u32 mask_key;           // stride in bytes
  int window_offset;      // row r sees no key before r + window_offset
  int align_ends;         // both offsets count from the last key of a sequence for its last row
  Divisor pack;           // heads of Q that share a head of K and V and are computed as rows of one tile: 1 or group
  Divisor packs;          // packs in a batch
  int least_tiles;        // of a split's share, unless the keys end; up to twice as many are one share
  u32 q_keep, q_flip;     // Q's bits are masked and then flipped with these, for a scale <= 0; scale_log2 is positive

  // Read only by the kernels for keys in pages. There k_batch and v_batch are strides of pages, and seq_k is the number of keys
  // for which a row of the table has room.
  const int* block_table;  // [batch, table_row]: the pages of a sequence, in the order of its keys
  const int* k_lengths;    // keys of a sequence
  i64 table_row;           // stride in entries
  Divisor page;            // keys of a page

  // Read only by the kernels that shape scores, and by the one that adds sinks.
  const float* slopes;     // how much a score falls with each key of distance, by head of Q; or null
  const float* sinks;      // by head of Q: a score that takes its share of the weights and has no value; or null
  i64 slopes_batch;        // stride in floats
  float cap;               // scores, scaled, approach +-cap; 0: they are not capped
  int value_dim;           // of V and the output
  int level;               // key i + level is the one nearest to query i, before the ends are aligned

  // Read only by the kernels for keys and values of eight bits.
  const float* k_scale;    // by head of K: what an element is multiplied by
  const float* v_scale;
  const float* q_scale;    // of a Q that has eight bits, too
};

// "No limit" for causal_offset; its negative for window_offset. Adding two lengths below 2^30 to it does not overflow.
constexpr int UNLIMITED = (1 << 30) - 1;

// The address of row 0 of a head of the output; `head` counts over all batches.
DEVICE char* output_head(const AttentionParams& p, int head) {
  const int batch = divide(head, p.heads);
  return p.out + batch * p.out_batch + (head - batch * (int)p.heads.divisor) * p.out_head;
}

constexpr float LN_2 = 0.69314718055994531f, LOG2_E = 1.4426950408889634f;

// What a sink leaves of a row: the share of its other weights, and the log-sum-exp of all scores.
struct BesideSink {
  float share, log_of_sum;
};

// `before`: the log-sum-exp of the row's scores in base 2, -inf if it sees no key.
DEVICE BesideSink beside_sink(float before, float sink) {
  const float top = fmaxf(before, sink * LOG2_E);
  const float share = top == MINUS_INFINITY ? 0.0f : exp2_approx(before - top);
  const float total = top == MINUS_INFINITY ? 1.0f : share + exp2_approx(sink * LOG2_E - top);
  return {share / total, (top + log2_approx(total)) * LN_2};
}

// Where an exponent scale s - top is one fused operation, it contains the rounding error of top = scale s of the largest score:
// up to half a unit in the last place. For a large top this error matters, and for a huge one the exponential overflows. There
// the product is rounded like top. Each row decides separately, so its result never depends on its neighbours.
constexpr float LARGE = 65536.0f, LARGEST = 3.4e38f;
DEVICE bool is_large(float top) { return fabsf(top) > LARGE && fabsf(top) < LARGEST; }
DEVICE float exponent(float score, float scale, float top, bool large) {
  return large ? rounded_product(score, scale) - top : fused(score, scale, -top);
}

// The scale of a row whose largest score is `most`, for exponents as one fused operation each. The rounding error of scale most
// is up to 8 below 2^28, and shifts all exponents of the row equally, so it changes no weight. From 2^28 on, scores that differ
// at all differ by 16 or more: the largest scores have all the weight, with any larger scale too, and with a power of two the
// product is exact.
constexpr float HUGE_TOP = 268435456.0f;
DEVICE float power_of_two_from(float x) { return __int_as_float((__float_as_int(x) + 0x7fffff) & 0x7f800000); }
DEVICE float scale_for(float most, float scale) {
  const float top = fabsf(most * scale);
  return top > HUGE_TOP && top < LARGEST ? power_of_two_from(scale) : scale;
}
