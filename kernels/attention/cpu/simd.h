// Vectors as wide as the target has them, in GCC's portable vector extension; conversions; exp2.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
constexpr int VL = 16;
#elif defined(__AVX__)
constexpr int VL = 8;
#else
constexpr int VL = 4;
#endif

typedef float vf __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef float vf_unaligned __attribute__((vector_size(VL * 4), aligned(4), may_alias));

static inline vf load(const float* p) { return *reinterpret_cast<const vf_unaligned*>(p); }
static inline void store(float* p, vf x) { *reinterpret_cast<vf_unaligned*>(p) = x; }
// x - 0 is x for every x, so only a broadcast is left; 0 + x is not (-0 becomes 0) and would cost an addition.
static inline vf splat(float x) { return x - vf{}; }
static inline vf maximum(vf a, vf b) { return a > b ? a : b; }

static inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

static inline float horizontal_max(vf x) {
  float m = x[0];
  for (int i = 1; i < VL; ++i) m = std::max(m, x[i]);
  return m;
}
static inline float horizontal_sum(vf x) {
  float parts[VL];
  store(parts, x);
  for (int width = VL / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
  return parts[0];
}

// 2^x for x <= 0, to about 1 ulp of fp32 where the result is normal; exactly 0 below 2^-126; NaN stays NaN.
// The polynomial is a minimax fit to 2^f on [-1/2, 1/2] by Lawson's iteration; its relative error before rounding is 1.9e-9.
static inline vf exp2_nonpositive(vf x) {
  const vf lowest = splat(-126.0f);
  const vf clamped = x < lowest ? lowest : x;  // a NaN compares false and goes through
  const vf magic = splat(12582912.0f);         // 1.5 * 2^23: adding it rounds to the nearest integer
  const vf shifted = clamped + magic;
  const vf f = clamped - (shifted - magic);
  vf p = splat(1.534581200e-4f);
  p = p * f + splat(1.339993139e-3f);
  p = p * f + splat(9.618488959e-3f);
  p = p * f + splat(5.550328777e-2f);
  p = p * f + splat(2.402264689e-1f);
  p = p * f + splat(6.931472057e-1f);
  p = p * f + splat(1.0f);
  const vu exponent = ((vu)shifted << 23) + 0x3f800000u;  // a cast between vectors keeps the bits
  const vf result = p * (vf)exponent;
  return x < lowest ? vf{} : result;
}

// VL x VL transpose in log2(VL) rounds; round k exchanges the off-diagonal blocks of size k.
static inline void transpose(vf (&m)[VL]) {
#pragma GCC unroll 4
  for (int half = 1; half < VL; half *= 2) {
    vi low{}, high{};
#pragma GCC unroll 16
    for (int i = 0; i < VL; ++i) {
      low[i] = (i & half) ? VL + i - half : i;
      high[i] = (i & half) ? VL + i : i + half;
    }
#pragma GCC unroll 16
    for (int i = 0; i < VL; ++i) {
      if (i & half) continue;
      const vf a = m[i], b = m[i + half];
      m[i] = __builtin_shuffle(a, b, low);
      m[i + half] = __builtin_shuffle(a, b, high);
    }
  }
}

static inline float bits_to_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
static inline uint32_t float_to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

static inline float from_bfloat16(uint16_t h) { return bits_to_float(uint32_t{h} << 16); }

// Round to nearest, ties to even; any NaN becomes a quiet NaN.
static inline uint16_t to_bfloat16(float x) {
  const uint32_t bits = float_to_bits(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

// The exponent is rebiased by a multiplication, which also makes subnormals right.
static inline float from_float16(uint16_t h) {
  const uint32_t magnitude = uint32_t{h} & 0x7fff;
  const float finite = bits_to_float(magnitude << 13) * 0x1p112f;
  const uint32_t special = (magnitude << 13) | 0x7f800000;
  const uint32_t bits = magnitude >= 0x7c00 ? special : float_to_bits(finite);
  return bits_to_float(bits | (uint32_t{h} & 0x8000) << 16);
}

// Round to nearest, ties to even, with subnormals, overflow to infinity, and NaN kept.
static inline uint16_t to_float16(float x) {
  const uint32_t bits = float_to_bits(x);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  // Normal results: rebias, then round off 13 bits. Subnormal results: adding 1/2 makes the hardware align and round.
  const uint32_t normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t subnormal = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000;
  uint32_t half = magnitude < 0x38800000 ? subnormal : normal;
  half = magnitude >= 0x477ff000 ? 0x7c00 : half;
  half = magnitude > 0x7f800000 ? 0x7e00 : half;
  return static_cast<uint16_t>(half | sign);
}
