// 16-bit numbers and 32-bit ones.
#pragma once
#include <cmath>
#include <cstring>

namespace simt {

// Without a branch, so that many are converted at once.
inline float half_to_float(u16 bits) {
  const u32 magnitude = bits & 0x7fff, sign = (u32)(bits & 0x8000) << 16;
  u32 wide = magnitude << 13;
  float value;
  std::memcpy(&value, &wide, 4);
  value *= 0x1p112f;  // the difference of the exponents' biases
  std::memcpy(&wide, &value, 4);
  const u32 special = magnitude >= 0x7c00 ? 0x7f800000 : 0;  // infinite, or no number
  wide |= special | sign;
  std::memcpy(&value, &wide, 4);
  return value;
}

inline float bfloat_to_float(u16 bits) {
  u32 wide = (u32)bits << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

// e4m3: no infinity, and one number that is none, of either sign.
inline float float8_to_float(u8 bits) {
  if ((bits & 0x7f) == 0x7f) return __builtin_nanf("");
  u32 wide = (u32)(bits & 0x80) << 24 | (u32)(bits & 0x7f) << 20;
  float value;
  std::memcpy(&value, &wide, 4);
  return value * 0x1p120f;
}

// The nearest, of two the even one; beyond the largest, that.
inline u8 float_to_float8(float x) {
  if (x != x) return 0x7f;
  const u8 sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  u8 below = 0;
  while (below < 0x7e && float8_to_float((u8)(below + 1)) <= magnitude) below++;
  if (below == 0x7e) return sign | below;
  const float down = magnitude - float8_to_float(below), up = float8_to_float((u8)(below + 1)) - magnitude;
  return sign | (u8)(below + (up < down || (up == down && below & 1)));
}

inline u16 float_to_half(float x) {
  _Float16 value = (_Float16)x;
  u16 bits;
  std::memcpy(&bits, &value, 2);
  return bits;
}

inline u16 float_to_bfloat(float x) {
  u32 bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return 0x7fff;
  return (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline void widen(float* to, const u16* from, int count, bool bfloat) {
  if (bfloat)
    for (int i = 0; i < count; i++) to[i] = bfloat_to_float(from[i]);
  else
    for (int i = 0; i < count; i++) to[i] = half_to_float(from[i]);
}

}  // namespace simt
