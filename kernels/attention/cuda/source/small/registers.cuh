// Attention over few keys, from global memory straight to registers: no tile in shared memory, no barrier before the end.
//
// Every lane loads 16 bytes at a time, and exactly the elements of its own fragments. This is possible because both products
// may take their dimensions in any order, if both operands have the same order:
//
//   S = Q K^T sums over the head dimension. Lane 4 g + p loads 16-byte chunks p, p + 4, ... of row g of Q and of key g of K;
//   half a chunk is what the lane holds of a 16-deep fragment, so each chunk feeds two products.
//   O = P V has the head dimension as its columns. Lane 4 g + p loads chunk g of the keys that belong to its place p; of
//   eight products, each takes one element of the chunk. In return a lane ends up with 16 neighbouring columns of a row of O.
//
// Each warp has its own KEYS keys; all warps of a block have the same ROWS rows.
#pragma once
#include "small/exchange.cuh"

template <class T_, int D_, int ROWS_, int WARPS_, int KEYS_, bool CAUSAL_, bool DEPENDENT_>
struct InRegisters {
  typedef T_ T;
  static constexpr int D = D_, ROWS = ROWS_, WARPS = WARPS_, KEYS = KEYS_;
  static constexpr bool CAUSAL = CAUSAL_, DEPENDENT = DEPENDENT_;
  static constexpr int THREADS = WARPS * 32;
  static constexpr int MI = ROWS / 16, NS = KEYS / 8, KV = KEYS / 16;
  static constexpr int QUADS = D / 32;   // chunks of a row of Q or K that one lane loads
  static constexpr int OCTETS = D / 64;  // chunks of a row of V that one lane loads
  typedef ::Exchange<MI * 4 * OCTETS, 2 * OCTETS, WARPS, 32> Exchange;
  static_assert(ROWS % 16 == 0 && KEYS % 16 == 0 && D % 64 == 0, "ROWS and KEYS must be multiples of 16, D of 64");
};

// Combines the lower, or the upper, halves of two words into one word.
DEVICE u32 halves(u32 first, u32 second, bool upper) {
  return upper ? (first >> 16) | (second & 0xffff0000u) : (first & 0xffffu) | (second << 16);
}

DEVICE u32 word_of(const Chunk& c, int i) { return i == 0 ? c.x : i == 1 ? c.y : i == 2 ? c.z : c.w; }

// Grid: (row_tiles, heads, batch). Shared memory: Exchange::BYTES, none with one warp.
template <class C>
DEVICE void attention_in_registers(const SmallParams& p) {
  typedef typename C::T T;
  if (C::DEPENDENT) wait_for_previous();
  const SmallBlock b = small_block<C::CAUSAL, C::ROWS>(p);
  const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31, group = lane >> 2, place = lane & 3;
  const int first_key = warp * C::KEYS, keys = b.keys - first_key;  // keys <= 0: this warp sees no key

  // All loads come first, so that they are in flight together.
  Chunk q[C::MI][2][C::QUADS], k[C::NS][C::QUADS], v[C::KV][4][C::OCTETS];
#pragma unroll
  for (int i = 0; i < C::MI; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = i * 16 + r * 8 + group;
#pragma unroll
      for (int c = 0; c < C::QUADS; c++)
        q[i][r][c] = load_or_zero(b.q + row * p.q_row + (c * 4 + place) * 16,
                                  b.row0 + row < p.seq_q && (c * 4 + place) * 8 < p.head_dim);
    }
  {
    const char* const mine = b.k + (i64)((u32)(first_key + group) * p.k_row) + place * 16;
#pragma unroll
    for (int j = 0; j < C::NS; j++)
#pragma unroll
      for (int c = 0; c < C::QUADS; c++)
        k[j][c] = load_or_zero(mine + (u32)(j * 8) * p.k_row + c * 64,
                               j * 8 + group < keys && (c * 4 + place) * 8 < p.head_dim);
  }
  {
    const char* const mine = b.v + (i64)((u32)(first_key + 2 * place) * p.v_row) + group * 16;
#pragma unroll
    for (int kk = 0; kk < C::KV; kk++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int key = kk * 16 + (e >> 1) * 8 + (e & 1);
#pragma unroll
        for (int c = 0; c < C::OCTETS; c++)
          v[kk][e][c] = load_or_zero(mine + (u32)key * p.v_row + c * 128,
                                     key + 2 * place < keys && (c * 8 + group) * 8 < p.head_dim);
      }
  }
  if (C::DEPENDENT) let_next_start();

  Scores<T, C::MI, C::NS> scores;
  scores.clear();
#pragma unroll
  for (int c = 0; c < C::QUADS; c++)
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int i = 0; i < C::MI; i++) {
        const u32 a[4] = {word_of(q[i][0][c], 2 * half), word_of(q[i][1][c], 2 * half),
                          word_of(q[i][0][c], 2 * half + 1), word_of(q[i][1][c], 2 * half + 1)};
#pragma unroll
        for (int j = 0; j < C::NS; j++)
          mma<T>(scores.s[i][j], a, word_of(k[j][c], 2 * half), word_of(k[j][c], 2 * half + 1));
      }
  const int column = first_key + 2 * place;
  const int first_limit = b.row0 + p.causal_offset + 1;  // the number of keys that the block's first row sees
  if (keys < C::KEYS || (C::CAUSAL && first_limit < first_key + C::KEYS))
    scores.template mask<C::CAUSAL>(p.seq_k - column, first_limit + group - column);
  scores.softmax(p.scale_log2);

  float o[C::MI][C::D / 8][4];  // [i][8 c + j][2 r + e]: row 8 r, column 64 c + 8 (2 place + e) + j
#pragma unroll
  for (int i = 0; i < C::MI; i++)
#pragma unroll
    for (int j = 0; j < C::D / 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) o[i][j][e] = 0.0f;
#pragma unroll
  for (int kk = 0; kk < C::KV; kk++) {
    u32 a[C::MI][4];
#pragma unroll
    for (int i = 0; i < C::MI; i++) scores.operand(a[i], i, kk);
#pragma unroll
    for (int c = 0; c < C::OCTETS; c++)
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const u32 b0 = halves(word_of(v[kk][0][c], j / 2), word_of(v[kk][1][c], j / 2), j & 1);
        const u32 b1 = halves(word_of(v[kk][2][c], j / 2), word_of(v[kk][3][c], j / 2), j & 1);
#pragma unroll
        for (int i = 0; i < C::MI; i++) mma<T>(o[i][c * 8 + j], a[i], b0, b1);
      }
  }
  scores.add_up();

  // Unit (2 i + r) * 2 OCTETS + 2 c + e: columns 64 c + 8 (2 place + e) .. + 7 of row 16 i + 8 r + group.
  typedef typename C::Exchange E;
  float units[E::UNITS][8], top[E::ROWS], sum[E::ROWS];
#pragma unroll
  for (int r = 0; r < E::ROWS; r++) {
    top[r] = scores.top[r / 2][r % 2], sum[r] = scores.sum[r / 2][r % 2];
#pragma unroll
    for (int n = 0; n < E::UNITS_PER_ROW; n++)
#pragma unroll
      for (int j = 0; j < 8; j++) units[r * E::UNITS_PER_ROW + n][j] = o[r / 2][n / 2 * 8 + j][2 * (r % 2) + n % 2];
  }
  float mine[E::OWN][8], own_top[E::OWN_ROWS], own_sum[E::OWN_ROWS];
  SHARED_MEMORY(memory);
  if constexpr (C::WARPS == 1) {
#pragma unroll
    for (int r = 0; r < E::ROWS; r++) {
      own_top[r] = top[r], own_sum[r] = sum[r];
      const float inverse = sum[r] == 0.0f ? 0.0f : 1.0f / sum[r];
#pragma unroll
      for (int n = 0; n < E::UNITS_PER_ROW; n++)
#pragma unroll
        for (int j = 0; j < 8; j++) mine[r * E::UNITS_PER_ROW + n][j] = units[r * E::UNITS_PER_ROW + n][j] * inverse;
    }
  } else {
    E::leave(memory, warp, lane, units, top, sum, mine);
    sync_block();
    if (!E::finishes(warp)) return;
    E::pick_up(memory, warp, lane, mine, own_top, own_sum);
  }
#pragma unroll
  for (int n = 0; n < E::OWN_ROWS; n++) {
    const int r = E::first_row(warp) + n, row = b.row0 + r / 2 * 16 + r % 2 * 8 + group;
    if (row >= p.seq_q) continue;
#pragma unroll
    for (int m = 0; m < E::OWN_PER_ROW; m++) {
      const int in_row = (warp * E::OWN + n * E::OWN_PER_ROW + m) % E::UNITS_PER_ROW;
      const int column = in_row / 2 * 64 + (2 * place + in_row % 2) * 8;
      if (column < p.head_dim) *(Chunk*)(out_row(p, b, row) + column * 2) = packed<T>(mine[n * E::OWN_PER_ROW + m]);
    }
    if (p.lse && place == 0 && (warp * E::OWN) % E::UNITS_PER_ROW == 0) write_lse(p, b, row, own_top[n], own_sum[n]);
  }
}
