// The chip's own instructions, each behind one function, and nothing else.
//
// No CUDA header is included, so the same text compiles with NVRTC, with nvcc and, with SIMT_SHIM defined, with a C++ compiler
// that runs a fiber for each thread. All other files are ordinary C++ without PTX.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct Half {};      // IEEE binary16
struct BFloat16 {};  // the upper half of IEEE binary32
struct Float8 {};    // e4m3: four bits of exponent, three of mantissa, no infinity

struct alignas(16) Chunk {  // eight 16-bit elements, which is what one copy moves
  u32 x, y, z, w;
};

struct alignas(8) Pair {
  float x, y;
};

struct alignas(8) Words {  // four 16-bit elements
  u32 x, y;
};

#define MINUS_INFINITY (-__int_as_float(0x7f800000))

#ifdef SIMT_SHIM
#include "simt_device.h"
#else

#define DEVICE static __device__ __forceinline__
#define SPECIALISED template <> __device__ __forceinline__  // a specialisation may not be static in device code
#define SHARED_MEMORY(name) extern __shared__ __align__(1024) char name[]

// Turing has neither cp.async nor the k16 shape of mma nor bf16.
#if __CUDA_ARCH__ >= 800
#define HAS_ASYNC_COPY 1
#else
#define HAS_ASYNC_COPY 0
#endif
// Ada and Hopper convert float8.
#if __CUDA_ARCH__ >= 890
#define HAS_FLOAT8 1
#else
#define HAS_FLOAT8 0
#endif

// Not volatile: the compiler may move these freely.
DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Computes a b + c rounded once, and a b rounded separately, however the compiler would combine an expression.
DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float rounded_product(float a, float b) { return __fmul_rn(a, b); }

DEVICE u32 multiply_high(u32 x, u32 y) { return __umulhi(x, y); }
DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
DEVICE int shuffle(int x, int lane) { return __shfl_sync(~0u, x, lane); }
DEVICE bool any_lane(bool x) { return __any_sync(~0u, x) != 0; }
DEVICE void sync_warp() { __syncwarp(); }
DEVICE void sync_block() { __syncthreads(); }

// Returns the same value, but hides it from the compiler, so that what is computed from it inside a loop stays inside.
DEVICE u32 opaque(u32 x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Reads that the compiler must repeat, so that what is computed from them after the main loop takes no registers in the loop.
DEVICE int thread_again() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}
DEVICE int block_again() {
  int x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}
DEVICE int blocks_again() {
  int x;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(x));
  return x;
}

// Rounds two floats to nearest even; `low` goes to the lower 16 bits.
template <class T>
DEVICE u32 pack(float low, float high);

SPECIALISED u32 pack<Half>(float low, float high) {
  u32 packed;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#else
  asm("{ .reg .b16 lo, hi; cvt.rn.f16.f32 lo, %1; cvt.rn.f16.f32 hi, %2; mov.b32 %0, {lo, hi}; }"
      : "=r"(packed)
      : "f"(low), "f"(high));
#endif
  return packed;
}

// Returns a 16-bit element as a float.
template <class T>
DEVICE float unpack(u16 bits);

SPECIALISED float unpack<Half>(u16 bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
SPECIALISED float unpack<BFloat16>(u16 bits) { return __int_as_float((int)((u32)bits << 16)); }

#if HAS_FLOAT8
// Two elements of float8 e4m3 in the lower 16 bits of `two` as float16. Every one is exact.
DEVICE u32 half_of_float8(u32 two) {
  u32 packed;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(packed) : "h"((u16)two));
  return packed;
}
#endif

// c += a b for a 16x16 A, a 16x8 B and a 16x8 C spread over the warp as PTX lays out mma.m16n8k16.
template <class T>
DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);

#if __CUDA_ARCH__ >= 800
SPECIALISED u32 pack<BFloat16>(float low, float high) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

SPECIALISED void mma<Half>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

SPECIALISED void mma<BFloat16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
// Turing multiplies half the depth at a time; registers (a0, a1) hold columns 0-7 of A and (a2, a3) columns 8-15, so the
// fragments of the deeper shape serve unchanged.
SPECIALISED void mma<Half>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[2]), "r"(a[3]), "r"(b1));
}
#endif

// Shared memory is addressed by 32-bit addresses, which take half the registers of a generic pointer.
DEVICE u32 shared_address(const void* pointer) {
  u32 address;
  asm("{ .reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a; }" : "=r"(address) : "l"(pointer));
  return address;
}

DEVICE void store_shared(u32 address, const Chunk& c) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(c.x), "r"(c.y), "r"(c.z), "r"(c.w) : "memory");
}

DEVICE void store_shared(u32 address, u32 word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

DEVICE Chunk load_shared(u32 address) {
  Chunk c;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(c.x), "=r"(c.y), "=r"(c.z), "=r"(c.w)
               : "r"(address)
               : "memory");
  return c;
}

DEVICE u32 load_shared_word(u32 address) {
  u32 word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

DEVICE u32 load_shared_half(u32 address) {
  u16 half;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(half) : "r"(address) : "memory");
  return half;
}

DEVICE void store_shared(u32 address, const Pair& pair) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(address), "f"(pair.x), "f"(pair.y) : "memory");
}

DEVICE Pair load_shared_pair(u32 address) {
  Pair pair;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}

// Reads what another block has written during this launch, from the L2 cache, where blocks meet; unless `wanted`, gives zeros
// or `otherwise` without reading.
DEVICE Chunk load_fresh(const Chunk* global, bool wanted) {
  Chunk c = {0, 0, 0, 0};
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; @p ld.global.cg.v4.b32 {%0,%1,%2,%3}, [%4]; }"
               : "+r"(c.x), "+r"(c.y), "+r"(c.z), "+r"(c.w)
               : "l"(global), "r"((int)wanted)
               : "memory");
  return c;
}
DEVICE float load_fresh(const float* global, bool wanted, float otherwise) {
  float x = otherwise;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.cg.f32 %0, [%1]; }" : "+f"(x) : "l"(global), "r"((int)wanted) : "memory");
  return x;
}

// Counts up to `last` and starts again from zero; returns the count before. What the block's threads wrote before a barrier is
// visible to every thread that takes a later ticket, and after another barrier to all of that thread's block.
DEVICE u32 take_ticket(u32* counter, u32 last) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
  return before;
}

// Four 8x8 matrices of 16-bit elements; lanes 8i..8i+7 give the row addresses of matrix i.
DEVICE void load_matrices(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

DEVICE void load_matrices_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

#if HAS_ASYNC_COPY
// Copies 16 bytes from global to shared memory.
DEVICE void copy_async(u32 shared, const char* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// The same, or writes 16 zero bytes without reading.
DEVICE void copy_async_or_zero(u32 shared, const char* global, bool copy) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(copy ? 16 : 0) : "memory");
}
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the latest `pending` groups of this thread have landed. This holds for this thread only: a barrier must
// follow.
template <int pending>
DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
#endif

#endif  // SIMT_SHIM
