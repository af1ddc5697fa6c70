// One warp's scores and the only pass of softmax over them: all keys that the warp sees are there at once.
#pragma once
#include "small/problem.cuh"

// MI fragments of 16 rows by NS fragments of 8 keys. In a fragment a lane holds rows lane / 4 and lane / 4 + 8, and of the
// keys the two from 2 * (lane % 4) on; index [i][r] is fragment i, row r of the two.
template <class T, int MI, int NS>
struct Scores {
  float s[MI][NS][4];
  float top[MI][2];  // the maximum subtracted from the scores, times scale_log2; -inf for a row that sees no key
  float sum[MI][2];  // of the exponentials, over all lanes of the row

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
      for (int j = 0; j < NS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[i][j][e] = 0.0f;
  }

  // Sets scores to -inf from the first key that does not exist or that a row may not see. Both limits count from this lane's
  // first key; each row sees one key more than the row above it.
  template <bool CAUSAL>
  __device__ __forceinline__ void mask(int keys_left, int first_row_limit) {
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int limit = keys_left;
        if (CAUSAL) {
          const int own = first_row_limit + i * 16 + r * 8;
          limit = own < limit ? own : limit;
        }
#pragma unroll
        for (int j = 0; j < NS; j++) {
          if (j * 8 >= limit) s[i][j][2 * r] = MINUS_INFINITY;
          if (j * 8 + 1 >= limit) s[i][j][2 * r + 1] = MINUS_INFINITY;
        }
      }
  }

  __device__ __forceinline__ void softmax(float scale_log2) {
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float even = s[i][0][2 * r], odd = s[i][0][2 * r + 1];
#pragma unroll
        for (int j = 1; j < NS; j++) even = fmaxf(even, s[i][j][2 * r]), odd = fmaxf(odd, s[i][j][2 * r + 1]);
        float most = fmaxf(even, odd);
        most = fmaxf(most, shuffle_xor(most, 1));
        most = fmaxf(most, shuffle_xor(most, 2));
        top[i][r] = rounded_product(most, scale_log2);
        if (any_lane(is_large(top[i][r])))
          exponentials<true>(i, r, scale_log2);
        else
          exponentials<false>(i, r, scale_log2);
      }
  }

  template <bool SOME_LARGE>
  __device__ __forceinline__ void exponentials(int i, int r, float scale_log2) {
    const float subtrahend = top[i][r] == MINUS_INFINITY ? 0.0f : top[i][r];  // inf - inf would be NaN
    const bool large = SOME_LARGE && is_large(subtrahend);
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int j = 0; j < NS; j++) {
      s[i][j][2 * r] = exp2_approx(exponent(s[i][j][2 * r], scale_log2, subtrahend, large));
      s[i][j][2 * r + 1] = exp2_approx(exponent(s[i][j][2 * r + 1], scale_log2, subtrahend, large));
      even += s[i][j][2 * r], odd += s[i][j][2 * r + 1];
    }
    sum[i][r] = even + odd;
  }

  // Sums the lanes' parts of the sums for each row. This is separate from `softmax`, so that it can wait until after P V.
  __device__ __forceinline__ void add_up() {
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        sum[i][r] += shuffle_xor(sum[i][r], 1);
        sum[i][r] += shuffle_xor(sum[i][r], 2);
      }
  }

  // The operand of P V for keys 16 kk .. 16 kk + 15: the accumulators' own layout, packed to 16 bits.
  __device__ __forceinline__ void operand(u32 (&a)[4], int i, int kk) const {
    a[0] = pack<T>(s[i][2 * kk][0], s[i][2 * kk][1]);
    a[1] = pack<T>(s[i][2 * kk][2], s[i][2 * kk][3]);
    a[2] = pack<T>(s[i][2 * kk + 1][0], s[i][2 * kk + 1][1]);
    a[3] = pack<T>(s[i][2 * kk + 1][2], s[i][2 * kk + 1][3]);
  }
};
