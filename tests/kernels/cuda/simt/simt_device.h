// The other side of device.cuh: the same functions on a CPU, with one fiber for each thread of a block.
//
// What the chip does across the lanes of a warp (mma, ldmatrix, shuffles, votes) is computed once all 32 lanes have asked
// for it; lanes that ask for different things are an error. A copy is carried out at the last moment the program allows
// (when it is waited for) or at the first (when it is issued): a missing wait shows in one, a buffer that is overwritten
// too early in the other. Shared memory starts as NaN and every access to it is checked.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifndef SIMT_ARCH
#error "define SIMT_ARCH as 750, 800 or 900: it selects the code path"
#endif
#define __CUDA_ARCH__ SIMT_ARCH
#define HAS_ASYNC_COPY (SIMT_ARCH >= 800)
#define HAS_FLOAT8 0

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define DEVICE static inline
#define SPECIALISED template <> inline
#define SHARED_MEMORY(name) char* name = simt::shared

#include "simt_fibers.h"
#include "simt_numbers.h"

#define threadIdx simt::thread_index
#define blockIdx simt::block_index
#define gridDim simt::grid_size

static inline float __int_as_float(int x) {
  float value;
  std::memcpy(&value, &x, 4);
  return value;
}

static inline int __float_as_int(float x) {
  int value;
  std::memcpy(&value, &x, 4);
  return value;
}

DEVICE float exp2_approx(float x) { return exp2f(x); }
DEVICE float log2_approx(float x) { return log2f(x); }
DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE float rounded_product(float a, float b) {
  volatile float product = a * b;  // or the compiler may fuse it with what follows
  return product;
}
DEVICE u32 multiply_high(u32 x, u32 y) { return (u32)(((u64)x * y) >> 32); }

DEVICE u32 shuffle_xor(u32 x, int mask) { return simt::shuffle_xor(x, mask); }
DEVICE float shuffle_xor(float x, int mask) { return __int_as_float((int)shuffle_xor((u32)__float_as_int(x), mask)); }
DEVICE int shuffle(int x, int lane) { return (int)simt::shuffle_from((u32)x, lane); }
DEVICE bool any_lane(bool x) { return simt::any_lane(x); }
DEVICE void sync_warp() { simt::sync_warp(); }
DEVICE void sync_block() { simt::sync_block(); }
DEVICE u32 opaque(u32 x) { return x; }
DEVICE int thread_again() { return (int)threadIdx.x; }
DEVICE int block_again() { return (int)blockIdx.x; }
DEVICE int blocks_again() { return (int)gridDim.x; }

using std::fmaxf;
using std::max;
using std::min;

template <class T>
DEVICE u32 pack(float low, float high);
SPECIALISED u32 pack<Half>(float low, float high) {
  return (u32)simt::float_to_half(low) | (u32)simt::float_to_half(high) << 16;
}
SPECIALISED u32 pack<BFloat16>(float low, float high) {
  return (u32)simt::float_to_bfloat(low) | (u32)simt::float_to_bfloat(high) << 16;
}

template <class T>
DEVICE float unpack(u16 bits);
SPECIALISED float unpack<Half>(u16 bits) { return simt::half_to_float(bits); }
SPECIALISED float unpack<BFloat16>(u16 bits) { return simt::bfloat_to_float(bits); }

template <class T>
DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);
SPECIALISED void mma<Half>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { simt::mma(false, c, a, b0, b1); }
SPECIALISED void mma<BFloat16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { simt::mma(true, c, a, b0, b1); }

DEVICE u32 shared_address(const void* pointer) { return simt::address_of(pointer); }
DEVICE void store_shared(u32 address, const Chunk& chunk) { simt::store(address, &chunk, 16); }
DEVICE void store_shared(u32 address, const Pair& pair) { simt::store(address, &pair, 8); }
DEVICE void store_shared(u32 address, u32 word) { simt::store(address, &word, 4); }
DEVICE Chunk load_shared(u32 address) {
  Chunk chunk;
  simt::load(&chunk, address, 16);
  return chunk;
}
DEVICE Pair load_shared_pair(u32 address) {
  Pair pair;
  simt::load(&pair, address, 8);
  return pair;
}
DEVICE u32 load_shared_half(u32 address) {
  u16 half;
  simt::load(&half, address, 2);
  return half;
}
DEVICE u32 load_shared_word(u32 address) {
  u32 word;
  simt::load(&word, address, 4);
  return word;
}
DEVICE Chunk load_fresh(const Chunk* global, bool wanted) {
  if (wanted && (uintptr_t)global % 16 != 0) simt::fail("misaligned load");
  return wanted ? *global : Chunk{0, 0, 0, 0};
}
DEVICE float load_fresh(const float* global, bool wanted, float otherwise) {
  if (wanted && *(const u32*)global == 0xffffffff) simt::fail("a part is read that no block has written");  // memory was all ones
  return wanted ? *global : otherwise;
}
// Blocks run one after the other. Every thread must be done with the block's memory, and so with its part, before a ticket.
DEVICE u32 take_ticket(u32* counter, u32 last) {
  simt::release_block();
  const u32 before = *counter;
  *counter = before >= last ? 0 : before + 1;
  return before;
}

DEVICE void load_matrices(u32 (&r)[4], u32 address) { simt::load_matrices(r, address, false); }
DEVICE void load_matrices_transposed(u32 (&r)[4], u32 address) { simt::load_matrices(r, address, true); }

#if HAS_ASYNC_COPY
DEVICE void copy_async_or_zero(u32 shared, const char* global, bool copy) { simt::copy(shared, global, copy); }
DEVICE void copy_async(u32 shared, const char* global) { copy_async_or_zero(shared, global, true); }
DEVICE void copy_async_commit() { simt::commit_copies(); }
template <int pending>
DEVICE void copy_async_wait() {
  simt::await_copies(pending);
}
#endif
