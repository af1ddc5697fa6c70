// Attention over few keys that all fit in shared memory at once: one copy, one pass of softmax, no loop over tiles.
//
// ROW_WARPS warps take 16 rows each, and for each of them KEY_WARPS warps take KEYS keys each. The wait for K comes first; V
// arrives while the scores are computed.
#pragma once
#include "small/exchange.cuh"

template <class T_, int D_, int ROW_WARPS_, int KEY_WARPS_, int KEYS_, bool CAUSAL_, bool DEPENDENT_>
struct InShared {
  typedef T_ T;
  static constexpr int D = D_, ROW_WARPS = ROW_WARPS_, KEY_WARPS = KEY_WARPS_, KEYS = KEYS_;
  static constexpr bool CAUSAL = CAUSAL_, DEPENDENT = DEPENDENT_;
  static constexpr int THREADS = ROW_WARPS * KEY_WARPS * 32, ROWS = ROW_WARPS * 16, ALL_KEYS = KEY_WARPS * KEYS;
  static constexpr int ROW_BYTES = D * 2, CHUNKS = D / 8, ROWS_PER_PASS = THREADS / CHUNKS;
  static constexpr int Q_BYTES = ROWS * ROW_BYTES, K_BYTES = ALL_KEYS * ROW_BYTES;
  static constexpr int NS = KEYS / 8, KV = KEYS / 16;
  typedef ::Exchange<D / 16, D / 32, KEY_WARPS, 32> Exchange;  // for each row warp
  static constexpr int EXCHANGE_BYTES = ROW_WARPS * Exchange::BYTES;
  // Separate memory for the exchange saves one barrier, but must not prevent a second block on the SM.
  static constexpr bool OWN_PLACE = Q_BYTES + 2 * K_BYTES + EXCHANGE_BYTES <= 96 * 1024;
  static_assert(KEYS % 16 == 0 && D % 64 == 0 && ROWS_PER_PASS % 8 == 0, "KEYS % 16, D % 64 and ROWS_PER_PASS % 8 must be 0");
};

// Byte offset of a 16-byte chunk in a tile, swizzled as in tile.cuh.
template <class C>
DEVICE u32 chunk_offset(int row, int chunk) {
  return (u32)(row * C::ROW_BYTES + ((chunk ^ (row & 7)) << 4));
}

// Copies a tile. Rows from `rows` on and chunks beyond the head dimension become zero, and are not read.
template <class C, int ROWS>
DEVICE void copy_rows(u32 tile, const char* source, i64 row_stride, int rows, int head_dim) {
  const int row0 = (int)((u32)threadIdx.x / C::CHUNKS), chunk = (int)((u32)threadIdx.x % C::CHUNKS);
  const u32 first = tile + chunk_offset<C>(row0, chunk);
  const bool inside = chunk * 8 < head_dim;
  source += row0 * row_stride + chunk * 16;
#pragma unroll
  for (int row = 0; row < ROWS; row += C::ROWS_PER_PASS) {
    if (ROWS % C::ROWS_PER_PASS != 0 && row0 + row >= ROWS) break;
    copy_async_or_zero(first + row * C::ROW_BYTES, source + row * row_stride, inside && row0 + row < rows);
  }
}

// Grid: (row_tiles, heads, batch). Shared memory: Q, K, V and, in separate memory or over the rest, EXCHANGE_BYTES.
template <class C>
DEVICE void attention_in_shared(const SmallParams& p) {
  typedef typename C::T T;
  SHARED_MEMORY(memory);
  if (C::DEPENDENT) wait_for_previous();
  const SmallBlock b = small_block<C::CAUSAL, C::ROWS>(p);
  const u32 q_tile = shared_address(memory), k_tile = q_tile + C::Q_BYTES, v_tile = k_tile + C::K_BYTES;
  copy_rows<C, C::ROWS>(q_tile, b.q, p.q_row, p.seq_q - b.row0, p.head_dim);
  copy_rows<C, C::ALL_KEYS>(k_tile, b.k, p.k_row, b.keys, p.head_dim);
  copy_async_commit();
  copy_rows<C, C::ALL_KEYS>(v_tile, b.v, p.v_row, b.keys, p.head_dim);
  copy_async_commit();
  if (C::DEPENDENT) let_next_start();

  const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31, group = lane >> 2, place = lane & 3;
  const int row_warp = warp % C::ROW_WARPS, key_warp = warp / C::ROW_WARPS;
  const int first_key = key_warp * C::KEYS, warp_row = row_warp * 16;
  Scores<T, 1, C::NS> scores;
  scores.clear();
  copy_async_wait<1>();
  sync_block();  // Q and K have landed
  const u32 q_lane = q_tile + chunk_offset<C>(warp_row + (lane & 15), lane >> 4);
  const u32 k_lane = k_tile + chunk_offset<C>(first_key + (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
  // Moving along the head dimension by 16 flips bits 5 and up of a swizzled address: one XOR.
#pragma unroll
  for (int kk = 0; kk < C::D / 16; kk++) {
    u32 a[4];
    load_matrices(a, q_lane ^ (kk << 5));
#pragma unroll
    for (int j = 0; j < C::NS; j += 2) {
      u32 k[4];
      load_matrices(k, (k_lane ^ (kk << 5)) + j * 8 * C::ROW_BYTES);
      mma<T>(scores.s[0][j], a, k[0], k[1]);
      mma<T>(scores.s[0][j + 1], a, k[2], k[3]);
    }
  }
  const int column = first_key + 2 * place;
  const int first_limit = b.row0 + warp_row + p.causal_offset + 1;  // the number of keys that the warp's first row sees
  if (b.keys < first_key + C::KEYS || (C::CAUSAL && first_limit < first_key + C::KEYS))
    scores.template mask<C::CAUSAL>(p.seq_k - column, first_limit + group - column);
  scores.softmax(p.scale_log2);

  float o[C::D / 8][4];
#pragma unroll
  for (int j = 0; j < C::D / 8; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) o[j][e] = 0.0f;
  copy_async_wait<0>();
  sync_block();  // V has landed; every warp has left Q and K
  const u32 v_lane = v_tile + chunk_offset<C>(first_key + (lane & 15), lane >> 4);
#pragma unroll
  for (int kk = 0; kk < C::KV; kk++) {
    u32 a[4];
    scores.operand(a, 0, kk);
#pragma unroll
    for (int j = 0; j < C::D / 8; j += 2) {
      u32 v[4];
      load_matrices_transposed(v, (v_lane ^ (j << 4)) + kk * 16 * C::ROW_BYTES);
      mma<T>(o[j], a, v[0], v[1]);
      mma<T>(o[j + 1], a, v[2], v[3]);
    }
  }
  scores.add_up();

  // Unit r D / 32 + h has row 8 r + group, columns 32 h .. + 31; of every eight columns the lane has two.
  typedef typename C::Exchange E;
  float units[E::UNITS][8], mine[E::OWN][8], own_top[E::OWN_ROWS], own_sum[E::OWN_ROWS];
#pragma unroll
  for (int u = 0; u < E::UNITS; u++)
#pragma unroll
    for (int j = 0; j < 8; j++) units[u][j] = o[u % E::UNITS_PER_ROW * 4 + j / 2][u / E::UNITS_PER_ROW * 2 + j % 2];
  if constexpr (!C::OWN_PLACE) sync_block();  // every warp has left V too
  char* const place_of_rows =
      memory + (C::OWN_PLACE ? C::Q_BYTES + 2 * C::K_BYTES : 0) + row_warp * E::BYTES;
  E::leave(place_of_rows, key_warp, lane, units, scores.top[0], scores.sum[0], mine);
  sync_block();
  if (!E::finishes(key_warp)) return;
  E::pick_up(place_of_rows, key_warp, lane, mine, own_top, own_sum);
#pragma unroll
  for (int n = 0; n < E::OWN_ROWS; n++) {
    const int row = b.row0 + warp_row + (E::first_row(key_warp) + n) * 8 + group;
#pragma unroll
    for (int m = 0; m < E::OWN_PER_ROW; m++) {
      const Chunk chunk = gathered(packed<T>(mine[n * E::OWN_PER_ROW + m]), lane);
      const int column = (key_warp * E::OWN + n * E::OWN_PER_ROW + m) % E::UNITS_PER_ROW * 32 + place * 8;
      if (row < p.seq_q && column < p.head_dim) *(Chunk*)(out_row(p, b, row) + column * 2) = chunk;
    }
    if (p.lse && row < p.seq_q && place == 0 && (key_warp * E::OWN) % E::UNITS_PER_ROW == 0)
      write_lse(p, b, row, own_top[n], own_sum[n]);
  }
}
