// The first rung: the definition of attention, one warp for each row of the output, everything read from global memory.
//
// A lane holds every 32nd element of the row of Q and of the output. Scores are summed over the warp by shuffles. The softmax
// is updated key by key, and the output is rescaled when the maximum grows, so no score is ever stored.
#ifndef RUNG_NAIVE  // kernels of several widths may stand in one text
#define RUNG_NAIVE
#include "params.cuh"

template <class T, int D, bool CAUSAL>
DEVICE void attention_naive(const AttentionParams& p) {
  constexpr int N = D / 32;
  const int lane = (int)threadIdx.x & 31;
  const i64 index = (i64)blockIdx.x * 4 + ((int)threadIdx.x >> 5);
  if (index >= (i64)p.all_heads * p.seq_q) return;
  const int all = (int)(index / p.seq_q), row = (int)(index - (i64)all * p.seq_q);
  const int batch = divide(all, p.heads), head = all - batch * (int)p.heads.divisor, kv_head = divide(head, p.group);
  const u16* q = (const u16*)(p.q + batch * p.q_batch + head * p.q_head + row * p.q_row);
  const char* k = p.k + batch * p.k_batch + kv_head * p.k_head;
  const char* v = p.v + batch * p.v_batch + kv_head * p.v_head;

  float query[N], out[N], top = MINUS_INFINITY, sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; i++) {
    query[i] = lane + 32 * i < p.head_dim ? unpack<T>(q[lane + 32 * i]) : 0.0f;
    out[i] = 0.0f;
  }
  int keys = p.seq_k;
  if (CAUSAL && row + p.causal_offset + 1 < keys) keys = row + p.causal_offset + 1;
  for (int key = 0; key < keys; key++) {
    const u16 *k_row = (const u16*)(k + key * (i64)p.k_row), *v_row = (const u16*)(v + key * (i64)p.v_row);
    float score = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++)
      if (lane + 32 * i < p.head_dim) score += query[i] * unpack<T>(k_row[lane + 32 * i]);
#pragma unroll
    for (int step = 16; step; step /= 2) score += shuffle_xor(score, step);
    score = rounded_product(score, p.scale_log2);
    const float most = fmaxf(top, score), correction = exp2_approx(top - most), weight = exp2_approx(score - most);
    top = most;
    sum = sum * correction + weight;
#pragma unroll
    for (int i = 0; i < N; i++)
      if (lane + 32 * i < p.head_dim) out[i] = out[i] * correction + weight * unpack<T>(v_row[lane + 32 * i]);
  }
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  u16* result = (u16*)(output_head(p, all) + row * p.out_row);
#pragma unroll
  for (int i = 0; i < N; i++)
    if (lane + 32 * i < p.head_dim) result[lane + 32 * i] = (u16)pack<T>(out[i] * inverse, 0.0f);
  if (p.lse && lane == 0) p.lse[index] = sum == 0.0f ? MINUS_INFINITY : (top + log2_approx(sum)) * LN_2;
}
#endif  // RUNG_NAIVE
