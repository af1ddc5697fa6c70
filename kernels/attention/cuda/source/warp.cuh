// What one warp does with a tile of keys: scores, softmax, product with V. There are no barriers and no copies here.
#pragma once
#include "tile.cuh"

// O is rescaled only when a row's maximum has grown by more than this power of two since the last time. Until then the
// exponentials are relative to the older maximum: they stay below 2^8, are exact in relative terms, and most tiles skip the
// multiplication of all of O.
#define RESCALE_THRESHOLD 8.0f

#if HAS_FLOAT8
template <class T>
DEVICE u32 widen_two(u32 two);
SPECIALISED u32 widen_two<Half>(u32 two) { return half_of_float8(two); }
SPECIALISED u32 widen_two<BFloat16>(u32 two) {
  const u32 half = half_of_float8(two);
  return pack<BFloat16>(unpack<Half>((u16)half), unpack<Half>((u16)(half >> 16)));
}
#else
// The bits of e4m3 are those of a float with 2^-120 of its value; all but those of NaN, which has no exponent of its own.
DEVICE float float_of_float8(u32 bits) {
  const float x = __int_as_float((int)((bits & 0x80) << 24 | (bits & 0x7f) << 20)) * 1.329227995784916e36f;
  return (bits & 0x7f) == 0x7f ? __int_as_float(0x7fffffff) : x;
}
template <class T>
DEVICE u32 widen_two(u32 two) {
  return pack<T>(float_of_float8(two & 0xff), float_of_float8(two >> 8 & 0xff));
}
#endif

// Four elements of float8 e4m3 as two pairs of 16-bit ones.
template <class T>
DEVICE void widen(u32 four, u32& low, u32& high) {
  low = widen_two<T>(four & 0xffff), high = widen_two<T>(four >> 16);
}

// A warp owns MI * 16 rows. In each 16-row fragment a lane holds rows lane / 4 and lane / 4 + 8, and of every eight columns
// the two from 2 * (lane % 4) on; index [i][r] below is fragment i, row r of the two.
template <class C>
struct Warp {
  typedef typename C::T T;
  // Whether scaling and subtracting is one operation, except in rows with a large maximum. It is one where scores take so many
  // registers that the compiler finds none for scaled scores.
  static constexpr bool FUSES = C::MI > 1 && C::D <= 64;
  float o[C::MI][C::NO][4];
  float s[C::MI][C::NS][4];
  float top[C::MI][2];  // the maximum subtracted from the scores, times scale_log2
  float sum[C::MI][2];  // this lane's part of the sum of exponentials
  u32 q[C::Q_IN_REGISTERS ? C::MI : 1][C::Q_IN_REGISTERS ? C::KQ : 1][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < C::MI; i++) {
#pragma unroll
      for (int j = 0; j < C::NO; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[i][j][e] = 0.0f;
#pragma unroll
      for (int r = 0; r < 2; r++) top[i][r] = MINUS_INFINITY, sum[i][r] = 0.0f;
    }
  }

  __device__ __forceinline__ void keep_q(u32 q_lane) {
    if constexpr (C::Q_IN_REGISTERS) {
#pragma unroll
      for (int i = 0; i < C::MI; i++)
#pragma unroll
        for (int kk = 0; kk < C::KQ; kk++) load_matrices(q[i][kk], along<C>(q_lane, 2 * kk) + i * 16 * C::Q_ROW_BYTES);
    }
  }

  // S = Q K^T. Moving along the head dimension by 16 flips bits 5 and up of a swizzled address: one XOR.
  __device__ __forceinline__ void scores(u32 q_lane, u32 k_lane) {
#pragma unroll
    for (int i = 0; i < C::MI; i++)
#pragma unroll
      for (int j = 0; j < C::NS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[i][j][e] = 0.0f;
    u32 bytes[C::FLOAT8 ? C::NS / 2 : 1][4];  // 32 elements of a row, as many bytes as 16 elements elsewhere
    // Of the widest rows, whose addresses or widened elements would take too many registers.
    constexpr int AT_ONCE = C::KQ > 16 ? 4 : C::FLOAT8 && C::KQ > 8 && HAS_ASYNC_COPY ? (HAS_FLOAT8 ? 4 : 2) : C::KQ;
#pragma unroll AT_ONCE
    for (int kk = 0; kk < C::KQ; kk++) {
      u32 a[C::MI][4];
#pragma unroll
      for (int i = 0; i < C::MI; i++) {
        if constexpr (C::Q_IN_REGISTERS) {
#pragma unroll
          for (int e = 0; e < 4; e++) a[i][e] = q[i][kk][e];
        } else {
          load_matrices(a[i], along<C>(q_lane, 2 * kk) + i * 16 * C::Q_ROW_BYTES);
        }
      }
#pragma unroll
      for (int j = 0; j < C::NS; j += 2) {
        u32 b[4];
        if constexpr (C::FLOAT8) {
          if (kk % 2 == 0) load_matrices(bytes[j / 2], along<C>(k_lane, kk) + j * 8 * C::ROW_BYTES);
          widen<T>(bytes[j / 2][kk % 2], b[0], b[1]);
          widen<T>(bytes[j / 2][2 + kk % 2], b[2], b[3]);
        } else {
          load_matrices(b, along<C>(k_lane, 2 * kk) + j * 8 * C::ROW_BYTES);
        }
        mma_columns<T>(s, a, b, j);
      }
    }
  }

  // Sets scores to -inf from the first key that does not exist or that a row may not see. Both limits count from this lane's
  // first column; each row sees one key more than the row above it.
  __device__ __forceinline__ void mask(int keys_left, int first_row_limit) {
#pragma unroll
    for (int i = 0; i < C::MI; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int limit = keys_left;
        if (C::CAUSAL) {
          int own = first_row_limit + i * 16 + r * 8;
          limit = own < limit ? own : limit;
        }
#pragma unroll
        for (int j = 0; j < C::NS; j++) {
          if (j * 8 >= limit) s[i][j][2 * r] = MINUS_INFINITY;
          if (j * 8 + 1 >= limit) s[i][j][2 * r + 1] = MINUS_INFINITY;
        }
      }
  }

  // Sets the scores of row r of fragment i to -inf before column `first` and from column `limit` on. Both count from this
  // lane's first column.
  __device__ __forceinline__ void mask_row(int i, int r, int first, int limit) {
#pragma unroll
    for (int j = 0; j < C::NS; j++) {
      if (j * 8 < first || j * 8 >= limit) s[i][j][2 * r] = MINUS_INFINITY;
      if (j * 8 + 1 < first || j * 8 + 1 >= limit) s[i][j][2 * r + 1] = MINUS_INFINITY;
    }
  }

  // S becomes exp2(scale_log2 S - top), unnormalised. For scores that are already scaled the scale is 1.
  template <bool MASKED>
  __device__ __forceinline__ void softmax(float scale_log2) {
#pragma unroll
    for (int i = 0; i < C::MI; i++) {
      float correction[2];
      bool grown = false;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        // Scaled before the maximum is subtracted, not in one operation with it. One operation would keep the rounding error of
        // a huge product, which would be a huge exponent.
        if constexpr (!FUSES) {
#pragma unroll
          for (int j = 0; j < C::NS; j++) {
            s[i][j][2 * r] = rounded_product(s[i][j][2 * r], scale_log2);
            s[i][j][2 * r + 1] = rounded_product(s[i][j][2 * r + 1], scale_log2);
          }
        }
        float most = fmaxf(s[i][0][2 * r], s[i][0][2 * r + 1]);
#pragma unroll
        for (int j = 1; j < C::NS; j++) most = fmaxf(most, fmaxf(s[i][j][2 * r], s[i][j][2 * r + 1]));
        most = fmaxf(most, shuffle_xor(most, 1));
        most = fmaxf(most, shuffle_xor(most, 2));
        if constexpr (FUSES) most = rounded_product(most, scale_log2);
        bool grows = most > top[i][r] + RESCALE_THRESHOLD;  // false as long as everything so far is masked
        correction[r] = grows ? exp2_approx(top[i][r] - most) : 1.0f;
        top[i][r] = grows ? most : top[i][r];
        grown |= grows;
      }
      // Rows that did not grow are multiplied by one: a row's result never depends on its neighbours in the warp.
      if (any_lane(grown)) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          sum[i][r] *= correction[r];
#pragma unroll
          for (int j = 0; j < C::NO; j++) o[i][j][2 * r] *= correction[r], o[i][j][2 * r + 1] *= correction[r];
        }
      }
      if (FUSES && any_lane(is_large(top[i][0]) || is_large(top[i][1])))
        exponentials<MASKED, true>(i, scale_log2);
      else
        exponentials<MASKED, false>(i, scale_log2);
    }
  }

  template <bool MASKED, bool SOME_LARGE>
  __device__ __forceinline__ void exponentials(int i, float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float subtrahend = MASKED && top[i][r] == MINUS_INFINITY ? 0.0f : top[i][r];  // inf - inf would be NaN
      const bool large = SOME_LARGE && is_large(top[i][r]);
      float even = 0.0f, odd = 0.0f;
#pragma unroll
      for (int j = 0; j < C::NS; j++) {
        float &a = s[i][j][2 * r], &b = s[i][j][2 * r + 1];
        a = exp2_approx(FUSES ? exponent(a, scale_log2, subtrahend, large) : a - subtrahend);
        b = exp2_approx(FUSES ? exponent(b, scale_log2, subtrahend, large) : b - subtrahend);
        even += a, odd += b;
      }
      sum[i][r] += even + odd;
    }
  }

  // What two floats lost when they were packed, itself packed.
  static __device__ __forceinline__ u32 lost(u32 packed, float low, float high) {
    return pack<T>(low - unpack<T>((u16)packed), high - unpack<T>((u16)(packed >> 16)));
  }

  // Two columns of one key and two of the next, as two keys of one column and two of the next.
  static __device__ __forceinline__ u32 pair_keys(u32 bytes) {
    return (bytes & 0xff0000ffu) | (bytes >> 8 & 0xff00u) | (bytes & 0xff00u) << 8;
  }

  // O += P V. If EXACT, every weight has two parts, the rounded weight and the rounding error: this is as exact as float32, and
  // takes twice as many products, in kernels that wait for memory anyway.
  template <bool EXACT = false>
  __device__ __forceinline__ void accumulate(u32 v_lane) {
#pragma unroll
    for (int kk = 0; kk < C::KV; kk++) {
      u32 a[C::MI][4], rest[C::MI][4];
#pragma unroll
      for (int i = 0; i < C::MI; i++)
#pragma unroll
        for (int part = 0; part < 4; part++) {
          const float low = s[i][2 * kk + part / 2][part % 2 * 2], high = s[i][2 * kk + part / 2][part % 2 * 2 + 1];
          a[i][part] = pack<T>(low, high);
          if constexpr (EXACT) rest[i][part] = lost(a[i][part], low, high);
        }
      u32 bytes[4];  // 32 columns
#pragma unroll
      for (int j = 0; j < C::NO; j += 2) {
        u32 b[4];
        if constexpr (C::FLOAT8) {  // fragment j has the even columns of 16, fragment j + 1 the odd ones
          if (j % 4 == 0) load_matrices_transposed(bytes, along<C>(v_lane, j / 2) + kk * 16 * C::ROW_BYTES);
          widen<T>(pair_keys(bytes[j % 4]), b[0], b[2]);
          widen<T>(pair_keys(bytes[j % 4 + 1]), b[1], b[3]);
        } else {
          load_matrices_transposed(b, along<C>(v_lane, j) + kk * 16 * C::ROW_BYTES);
        }
#pragma unroll
        for (int i = 0; i < C::MI; i++) {
          mma<T>(o[i][j], a[i], b[0], b[1]);
          mma<T>(o[i][j + 1], a[i], b[2], b[3]);
          if constexpr (EXACT) {
            mma<T>(o[i][j], rest[i], b[0], b[1]);
            mma<T>(o[i][j + 1], rest[i], b[2], b[3]);
          }
        }
      }
    }
  }
};
