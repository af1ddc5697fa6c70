// 16-bit numbers and 32-bit ones.
#pragma once
#include <cstring>

namespace simt {

inline float half_to_float(u16 bits) {
  const u32 magnitude = bits & 0x7fff;
  u32 wide = magnitude << 13;
  float value;
  if (magnitude >= 0x7c00) {  // infinite, or no number
    wide |= 0x7f800000;
    std::memcpy(&value, &wide, 4);
  } else {
    std::memcpy(&value, &wide, 4);
    value *= 0x1p112f;  // the difference of the exponents' biases
  }
  return bits & 0x8000 ? -value : value;
}

inline float bfloat_to_float(u16 bits) {
  u32 wide = (u32)bits << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
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

}  // namespace simt
