// The rows and keys of a block of the kernels with features: packed heads, windows, masks, sequences of different lengths.
#pragma once
#include "dropout.cuh"
#include "warp.cuh"

// The rows of a tile are those of a pack of query heads: packed row r is query r / pack of the pack's head r % pack. So several
// heads fill a tile where one head has few queries, and each key is read once for all of them.
struct Scope {
  int batch, first_head, kv_head;
  int row0, rows;          // first packed row of the tile; number of packed rows in the tile
  int q_start, k_start;    // where the sequence starts in packed tensors
  int seq_q, seq_k;
  int below, above;        // query i sees keys i + below .. i + above
  int first, last;         // tiles first .. last - 1 of keys: this split's share of the tiles that any row sees
  int parts;               // splits that have a share
  int open_from, open_to;  // keys that every row of the tile sees
};

// `pack` counts over all batches.
template <class C>
DEVICE Scope scope_of(const AttentionParams& p, int pack, int row_tile) {
  Scope s;
  s.batch = divide(pack, p.packs);
  s.first_head = (pack - s.batch * (int)p.packs.divisor) * (int)p.pack.divisor;
  s.kv_head = divide(s.first_head, p.group);
  s.q_start = p.q_starts ? p.q_starts[s.batch] : 0, s.k_start = !C::PAGED && p.k_starts ? p.k_starts[s.batch] : 0;
  s.seq_q = p.q_starts ? p.q_starts[s.batch + 1] - s.q_start : p.seq_q;
  if constexpr (C::PAGED)
    s.seq_k = p.k_lengths[s.batch] < p.seq_k ? p.k_lengths[s.batch] : p.seq_k;
  else
    s.seq_k = p.k_starts ? p.k_starts[s.batch + 1] - s.k_start : p.seq_k;
  const int shift = p.align_ends ? s.seq_k - s.seq_q : 0;
  s.below = p.window_offset + shift, s.above = p.causal_offset + shift;

  const int all_rows = s.seq_q * (int)p.pack.divisor;
  s.row0 = row_tile * C::BM;
  s.rows = all_rows - s.row0 < C::BM ? all_rows - s.row0 : C::BM;
  const int first_query = divide(s.row0, p.pack), last_query = s.rows > 0 ? divide(s.row0 + s.rows - 1, p.pack) : 0;
  const int from = first_query + s.below, to = last_query + s.above + 1;
  const int visible_from = from > 0 ? from : 0, visible_to = to < s.seq_k ? to : s.seq_k;
  s.open_from = last_query + s.below;
  s.open_to = first_query + s.above + 1 < s.seq_k ? first_query + s.above + 1 : s.seq_k;

  const bool sees = s.rows > 0 && visible_to > visible_from;
  const int begin = sees ? visible_from / C::BN : 0, end = sees ? (visible_to + C::BN - 1) / C::BN : 0;
  const int tiles = end - begin, even = (int)((u32)(tiles + p.splits - 1) / (u32)p.splits);
  const int share = tiles <= 2 * p.least_tiles ? tiles : even < p.least_tiles ? p.least_tiles : even;
  s.parts = tiles > 0 ? (int)((u32)(tiles + share - 1) / (u32)share) : 1;
  s.first = begin + (int)blockIdx.y * share;
  s.last = s.first + share < end ? s.first + share : end;
  return s;
}

// Where packed row r of the tile comes from: its query and its head of Q.
struct Place {
  int query, head;
};

DEVICE Place place_of_row(const AttentionParams& p, const Scope& s, int r) {
  const int row = s.row0 + r, query = divide(row, p.pack);
  return Place{query, s.first_head + row - query * (int)p.pack.divisor};
}

// A packed tensor of many sequences is one batch.
DEVICE i64 batch_of_tensor(const AttentionParams& p, const Scope& s) { return p.q_starts ? 0 : s.batch; }

DEVICE const char* q_row(const AttentionParams& p, const Scope& s, const Place& at) {
  return p.q + batch_of_tensor(p, s) * p.q_batch + at.head * p.q_head + (s.q_start + at.query) * p.q_row;
}
DEVICE char* out_row(const AttentionParams& p, const Scope& s, const Place& at) {
  return p.out + batch_of_tensor(p, s) * p.out_batch + at.head * p.out_head + (s.q_start + at.query) * p.out_row;
}
DEVICE const char* first_k_row(const AttentionParams& p, const Scope& s) {
  return p.k + batch_of_tensor(p, s) * p.k_batch + s.kv_head * p.k_head + (i64)s.k_start * p.k_row;
}
DEVICE const char* first_v_row(const AttentionParams& p, const Scope& s) {
  return p.v + batch_of_tensor(p, s) * p.v_batch + s.kv_head * p.v_head + (i64)s.k_start * p.v_row;
}

// The row's index among the rows of all heads: in the log-sum-exp and in the parts.
DEVICE i64 index_of_place(const AttentionParams& p, const Scope& s, const Place& at) {
  const i64 head = batch_of_tensor(p, s) * (int)p.heads.divisor + at.head;
  return head * p.seq_q + s.q_start + at.query;
}

// Whether every row of the tile sees every key of tile n.
template <class C>
DEVICE bool is_open(const Scope& s, int n) {
  return n * C::BN >= s.open_from && (n + 1) * C::BN <= s.open_to;
}

// Whether any row of the warp that starts at packed row `warp_row` sees any key of tile n.
template <class C>
DEVICE bool sees(const AttentionParams& p, const Scope& s, int n, int warp_row) {
  const int first = place_of_row(p, s, warp_row).query, last = place_of_row(p, s, warp_row + C::MI * 16 - 1).query;
  return n * C::BN <= last + s.above && (n + 1) * C::BN > first + s.below;
}

// Sets scores of tile n that a row does not see to -inf. The warp's rows start at packed row `warp_row` of the tile.
template <class C>
DEVICE void hide(const AttentionParams& p, const Scope& s, Warp<C>& warp, int n, int warp_row, int lane) {
  const int column = n * C::BN + 2 * (lane & 3);
#pragma unroll
  for (int i = 0; i < C::MI; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int query = place_of_row(p, s, warp_row + i * 16 + r * 8 + (lane >> 2)).query;
      const int limit = query + s.above + 1 < s.seq_k ? query + s.above + 1 : s.seq_k;
      warp.mask_row(i, r, query + s.below - column, limit - column);
    }
}

constexpr float LOWEST = -3.0e38f;

template <class M>
DEVICE float mask_value(const char* at);
SPECIALISED float mask_value<BoolMask>(const char* at) { return *at ? 0.0f : MINUS_INFINITY; }
SPECIALISED float mask_value<HalfMask>(const char* at) { return unpack<Half>(*(const u16*)at); }
SPECIALISED float mask_value<BFloat16Mask>(const char* at) { return unpack<BFloat16>(*(const u16*)at); }
SPECIALISED float mask_value<FloatMask>(const char* at) { return *(const float*)at; }

// tanh(x), with an error of a few units in the last place of a float: by its series near 0, where a difference of exponentials
// would have none of its digits.
DEVICE float hyperbolic_tangent(float x) {
  const float square = x * x, size = fabsf(x);
  const float near = fused(square, fused(square, fused(square, fused(square, 62.0f / 2835, -17.0f / 315), 2.0f / 15), -1.0f / 3), 1.0f) * x;
  const float fall = exp2_approx(-2.0f * LOG2_E * size), far = (1.0f - fall) / (1.0f + fall);
  return size < 0.25f ? near : x < 0.0f ? -far : far;
}

// Makes the scores of tile n scaled, capped, and lower by the distance of the key, all times log2(e).
template <class C>
DEVICE void shape(const AttentionParams& p, const Scope& s, Warp<C>& warp, int n, int warp_row, int lane) {
  const int level = p.level + (p.align_ends ? s.seq_k - s.seq_q : 0), column = n * C::BN + 2 * (lane & 3);
  const float cap = p.cap * LOG2_E, inverse = p.cap > 0.0f ? 1.0f / cap : 0.0f;
#pragma unroll
  for (int i = 0; i < C::MI; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int local = warp_row + i * 16 + r * 8 + (lane >> 2);
      const Place at = place_of_row(p, s, local < s.rows ? local : s.rows - 1);
      const float slope = p.slopes ? p.slopes[s.batch * p.slopes_batch + at.head] * LOG2_E : 0.0f;
#pragma unroll
      for (int j = 0; j < C::NS; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float& x = warp.s[i][j][2 * r + e];
          x *= p.scale_log2;
          if (p.cap > 0.0f) x = cap * hyperbolic_tangent(x * inverse);
          if (p.slopes) x -= slope * fabsf((float)(at.query + level - column - j * 8 - e));
        }
    }
}

// Drops weights of tile n, after their sum was taken.
template <class C>
DEVICE void drop(const AttentionParams& p, const Scope& s, Warp<C>& warp, const DropoutKey& key, int n, int warp_row, int lane) {
  const u32 least = dropout_of(p).least;
#pragma unroll
  for (int i = 0; i < C::MI; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const Place at = place_of_row(p, s, warp_row + i * 16 + r * 8 + (lane >> 2));
#pragma unroll
      for (int j = 0; j < C::NS; j += 2) {
        u32 words[4];
        dropout_words(words, key, n * C::BN + j * 8 + 2 * (lane & 3), at.query, s.batch * (int)p.heads.divisor + at.head);
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (words[e] < least) warp.s[i][j + e / 2][2 * r + e % 2] = 0.0f;
      }
    }
}

// Makes the scores of tile n scaled, plus the mask, all times log2(e). The largest negative numbers of a mask stay finite: if
// all keys of a row have the same one, they all get the same weight.
template <class C>
DEVICE void add_mask(const AttentionParams& p, const Scope& s, Warp<C>& warp, int n, int warp_row, int lane) {
#pragma unroll
  for (int i = 0; i < C::MI; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int local = warp_row + i * 16 + r * 8 + (lane >> 2);
      const Place at = place_of_row(p, s, local < s.rows ? local : s.rows - 1);
      const int column = n * C::BN + 2 * (lane & 3);
      const char* row = p.mask + s.batch * p.mask_batch + at.head * p.mask_head + at.query * p.mask_row;
#pragma unroll
      for (int j = 0; j < C::NS; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int key = column + j * 8 + e;
          const float given = key < s.seq_k ? mask_value<typename C::Mask>(row + (i64)key * p.mask_key) : MINUS_INFINITY;
          const float scaled = given * LOG2_E, bias = scaled < LOWEST && given > MINUS_INFINITY ? LOWEST : scaled;
          warp.s[i][j][2 * r + e] = warp.s[i][j][2 * r + e] * (C::SHAPED ? 1.0f : p.scale_log2) + bias;
        }
    }
}
