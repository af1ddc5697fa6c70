// The second rung: the same arithmetic, but 64 rows of Q share every tile of 32 keys through shared memory.
//
// K and V are read from global memory 64 times less often, and each value in shared memory serves four rows at once. All
// multiplications are still single-precision FMAs: no tensor cores.
#ifndef RUNG_TILED  // kernels of several widths may stand in one text
#define RUNG_TILED
#include "params.cuh"

// 128 threads: thread t owns rows 4 (t / 8) .. + 3, of the scores columns t % 8 + 8 j, of the output columns t % 8 + 8 j.
template <class T, int D, bool CAUSAL>
DEVICE void attention_tiled(const AttentionParams& p) {
  constexpr int ROWS = 64, KEYS = 32, PITCH = D + 1;  // one word of padding, so that a column of a tile uses every bank
  SHARED_MEMORY(memory);
  float* q_tile = (float*)memory;           // [ROWS][PITCH]
  float* kv_tile = q_tile + ROWS * PITCH;   // [KEYS][PITCH]: K, then V
  float* weights = kv_tile + KEYS * PITCH;  // [ROWS][KEYS + 1]

  const int tiles = (p.seq_q + ROWS - 1) / ROWS;
  const int all = (int)blockIdx.x / tiles, row0 = ((int)blockIdx.x - all * tiles) * ROWS;
  const int batch = divide(all, p.heads), head = all - batch * (int)p.heads.divisor, kv_head = divide(head, p.group);
  const char* q = p.q + batch * p.q_batch + head * p.q_head;
  const char* k = p.k + batch * p.k_batch + kv_head * p.k_head;
  const char* v = p.v + batch * p.v_batch + kv_head * p.v_head;
  const int thread = (int)threadIdx.x, mine = thread / 8 * 4, column = thread % 8;

  auto load = [&](float* tile, const char* from, i64 stride, int first, int count, int rows) {
    for (int i = thread; i < count * D; i += 128) {
      const int r = i / D, c = i % D;
      const bool inside = first + r < rows && c < p.head_dim;
      tile[r * PITCH + c] = inside ? unpack<T>(((const u16*)(from + (first + r) * stride))[c]) : 0.0f;
    }
  };

  float out[4][D / 8], top[4], sum[4];
#pragma unroll
  for (int r = 0; r < 4; r++) {
    top[r] = MINUS_INFINITY, sum[r] = 0.0f;
#pragma unroll
    for (int j = 0; j < D / 8; j++) out[r][j] = 0.0f;
  }
  load(q_tile, q, p.q_row, row0, ROWS, p.seq_q);
  int end = p.seq_k;
  if (CAUSAL && row0 + ROWS + p.causal_offset < end) end = row0 + ROWS + p.causal_offset;
  for (int key0 = 0; key0 < end; key0 += KEYS) {
    load(kv_tile, k, p.k_row, key0, KEYS, p.seq_k);
    sync_block();  // K is there, and Q
    float s[4][4];
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
      for (int j = 0; j < 4; j++) s[r][j] = 0.0f;
#pragma unroll 8
    for (int d = 0; d < D; d++)
#pragma unroll
      for (int r = 0; r < 4; r++)
#pragma unroll
        for (int j = 0; j < 4; j++) s[r][j] += q_tile[(mine + r) * PITCH + d] * kv_tile[(column + 8 * j) * PITCH + d];
    sync_block();  // every thread has left K
    load(kv_tile, v, p.v_row, key0, KEYS, p.seq_k);
#pragma unroll
    for (int r = 0; r < 4; r++) {
      float most = top[r];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int key = key0 + column + 8 * j;
        const bool hidden = key >= p.seq_k || (CAUSAL && key > row0 + mine + r + p.causal_offset);
        s[r][j] = hidden ? MINUS_INFINITY : rounded_product(s[r][j], p.scale_log2);
        most = fmaxf(most, s[r][j]);
      }
#pragma unroll
      for (int step = 1; step < 8; step *= 2) most = fmaxf(most, shuffle_xor(most, step));
      const float subtrahend = most == MINUS_INFINITY ? 0.0f : most, correction = exp2_approx(top[r] - subtrahend);
      top[r] = most;
      sum[r] *= correction;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float weight = exp2_approx(s[r][j] - subtrahend);
        weights[(mine + r) * (KEYS + 1) + column + 8 * j] = weight;
        sum[r] += weight;
      }
#pragma unroll
      for (int j = 0; j < D / 8; j++) out[r][j] *= correction;
    }
    sync_block();  // V and the weights are there
#pragma unroll 4
    for (int key = 0; key < KEYS; key++)
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const float weight = weights[(mine + r) * (KEYS + 1) + key];
#pragma unroll
        for (int j = 0; j < D / 8; j++) out[r][j] += weight * kv_tile[key * PITCH + column + 8 * j];
      }
    sync_block();  // every thread has left V and the weights
  }
  char* result = output_head(p, all);
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const int row = row0 + mine + r;
#pragma unroll
    for (int step = 1; step < 8; step *= 2) sum[r] += shuffle_xor(sum[r], step);
    const float inverse = sum[r] == 0.0f ? 0.0f : 1.0f / sum[r];
    if (row >= p.seq_q) continue;
#pragma unroll
    for (int j = 0; j < D / 8; j++)
      if (column + 8 * j < p.head_dim)
        ((u16*)(result + row * p.out_row))[column + 8 * j] = (u16)pack<T>(out[r][j] * inverse, 0.0f);
    if (p.lse && column == 0)
      p.lse[(i64)all * p.seq_q + row] = sum[r] == 0.0f ? MINUS_INFINITY : (top[r] + log2_approx(sum[r])) * LN_2;
  }
}
#endif  // RUNG_TILED
