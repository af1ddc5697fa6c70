// The instructions that only the kernels for few keys use, each behind one function.
#pragma once
#include "device.cuh"

struct alignas(16) Quad {
  float x, y, z, w;
};

#if !defined(SIMT_SHIM) && __CUDA_ARCH__ >= 900
// A kernel launched as a dependent one starts while the previous launch on the stream is still running: what that launch wrote
// may be read only after the wait. `let_next_start` lets the next launch start in turn; it does not mean that this launch's
// results are written.
DEVICE void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
DEVICE void wait_for_previous() {}
DEVICE void let_next_start() {}
#endif

#ifdef SIMT_SHIM
#define DEVICE_MEMBER inline
DEVICE u32 shuffle_word(u32 x, int mask) {
  float carrier;
  std::memcpy(&carrier, &x, 4);
  carrier = shuffle_xor(carrier, mask);
  std::memcpy(&x, &carrier, 4);
  return x;
}
DEVICE Chunk load_or_zero(const char* from, bool load) { return load ? *(const Chunk*)from : Chunk{0, 0, 0, 0}; }
#else
#define DEVICE_MEMBER __device__ __forceinline__
DEVICE u32 shuffle_word(u32 x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
// Loads 16 bytes, or returns zeros without reading. Volatile, so that loads stay in front of the arithmetic during which they
// arrive.
DEVICE Chunk load_or_zero(const char* from, bool load) {
  Chunk c;
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
      "@p ld.global.v4.b32 {%0,%1,%2,%3}, [%4]; }"
      : "=&r"(c.x), "=&r"(c.y), "=&r"(c.z), "=&r"(c.w)
      : "l"(from), "r"((u32)load)
      : "memory");
  return c;
}
#endif
