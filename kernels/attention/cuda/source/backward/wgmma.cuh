// The products that the forward kernels do not use.
#pragma once
#include "hopper/wgmma.cuh"

// d = a b, or d += a b where `accumulate` is not 0: a 64x16 A whose 16 columns are rows in memory, a 16xN B like V's.
template <class T, int N>
DEVICE void wgmma_turned(float (&d)[N / 2], u64 a, u64 b, int accumulate);

// d += a b: a 64x16 A in registers, a 16xN B like K's.
template <class T, int N>
DEVICE void wgmma_across(float (&d)[N / 2], const u32* a, u64 b);

#ifndef SIMT_SHIM  // they have one definition for all widths

WGMMA_SHARED(wgmma_turned, Half, "k16.f32.f16.f16", 64, 32, 33, 34, "1, 1, 1, 1")
WGMMA_SHARED(wgmma_turned, BFloat16, "k16.f32.bf16.bf16", 64, 32, 33, 34, "1, 1, 1, 1")

#define ACROSS_64(T, TYPE)                                                                       \
  SPECIALISED void wgmma_across<T, 64>(float (&d)[32], const u32* a, u64 b) {                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" WGMMA_NAMES_32 \
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"                                     \
                 : WGMMA_C_32                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                          \
  }
ACROSS_64(Half, "f16")
ACROSS_64(BFloat16, "bf16")
#undef ACROSS_64

#endif  // SIMT_SHIM
