// Attention over few keys, from global memory straight to registers: no tile in shared memory, no barrier before the end.
//
// Every lane loads 16 bytes at a time and exactly what its own fragments hold. That fits because both products may take their
// dimensions in any order, as long as both operands take the same:
//
//   S = Q K^T sums over the head dimension. Lane 4 g + p loads 16-byte chunks p, p + 4, ... of row g of Q and of key g of K;
//   half a chunk is what the lane holds of a 16-deep fragment, so each chunk feeds two products.
//   O = P V has the head dimension as its columns. Lane 4 g + p loads chunk g of the keys that belong to its place p; of
//   eight products, each takes one element of the chunk. In return a lane ends up with 16 neighbouring columns of a row of O.
//
// Each warp has its own KEYS keys; all warps of a block have the same ROWS rows.
#pragma once
#include "small/join.cuh"

template <class T_, int D_, int ROWS_, int WARPS_, int KEYS_, bool CAUSAL_, bool DEPENDENT_>
struct InRegisters {
  typedef T_ T;
  static constexpr int D = D_, ROWS = ROWS_, WARPS = WARPS_, KEYS = KEYS_;
  static constexpr bool CAUSAL = CAUSAL_, DEPENDENT = DEPENDENT_;
  static constexpr int THREADS = WARPS * 32;
  static constexpr int MI = ROWS / 16, NS = KEYS / 8, KV = KEYS / 16;
  static constexpr int QUADS = D / 32;   // chunks of a row of Q or K that one lane loads
  static constexpr int OCTETS = D / 64;  // chunks of a row of V that one lane loads
  typedef Joining<D, ROWS, WARPS, THREADS> Join;
  static_assert(ROWS % 16 == 0 && KEYS % 16 == 0 && D % 64 == 0, "fragments are 16 by 16, a row of V is shared by eight lanes");
};

// The lower, or the upper, halves of two words in one.
DEVICE u32 halves(u32 first, u32 second, bool upper) {
  return upper ? (first >> 16) | (second & 0xffff0000u) : (first & 0xffffu) | (second << 16);
}

DEVICE u32 word_of(const Chunk& c, int i) { return i == 0 ? c.x : i == 1 ? c.y : i == 2 ? c.z : c.w; }

// Grid: (row_tiles, heads, batch). Shared memory: Join::BYTES, none with one warp.
template <class C>
DEVICE void attention_in_registers(const SmallParams& p) {
  typedef typename C::T T;
  if (C::DEPENDENT) wait_for_previous();
  const SmallBlock b = small_block<C::CAUSAL, C::ROWS>(p);
  const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31, group = lane >> 2, place = lane & 3;
  const int first_key = warp * C::KEYS, keys = b.keys - first_key;  // keys <= 0: nothing for this warp to see

  // All loads first: they are under way together.
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
  const int first_limit = b.row0 + p.causal_offset + 1;  // how many keys the block's first row sees
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

  if constexpr (C::WARPS == 1) {
    char* const out = p.out + b.batch * p.out_batch + b.head * p.out_head + b.row0 * p.out_row;
#pragma unroll
    for (int i = 0; i < C::MI; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int row = i * 16 + r * 8 + group;
        if (b.row0 + row >= p.seq_q) continue;
        const float inverse = inverse_of(scores.sum[i][r]);
#pragma unroll
        for (int c = 0; c < C::OCTETS; c++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const int chunk = c * 8 + 2 * place + e;
            float x[8];
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] = o[i][c * 8 + j][2 * r + e];
            if (chunk * 8 < p.head_dim) *(Chunk*)(out + row * p.out_row + chunk * 16) = packed<T>(x, inverse);
          }
        if (p.lse && place == 0) write_lse(p, b, b.row0 + row, scores.top[i][r], scores.sum[i][r]);
      }
  } else {
    typedef typename C::Join J;
    SHARED_MEMORY(memory);
    float* const parts = (float*)memory;
#pragma unroll
    for (int i = 0; i < C::MI; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int row = i * 16 + r * 8 + group;
        float* const mine = part_row<J>(parts, warp, row);
#pragma unroll
        for (int c = 0; c < C::OCTETS; c++)
#pragma unroll
          for (int e = 0; e < 2; e++)
#pragma unroll
            for (int half = 0; half < 2; half++)
              *(Quad*)(mine + place_of(c * 16 + 4 * place + 2 * e + half) * 4) =
                  Quad{o[i][c * 8 + 4 * half][2 * r + e], o[i][c * 8 + 4 * half + 1][2 * r + e],
                       o[i][c * 8 + 4 * half + 2][2 * r + e], o[i][c * 8 + 4 * half + 3][2 * r + e]};
        if (place == 0) *part_state<J>(parts, warp, row) = Pair{scores.top[i][r], scores.sum[i][r]};
      }
    sync_block();
    join_and_write<T, J>(p, b, parts);
  }
}
