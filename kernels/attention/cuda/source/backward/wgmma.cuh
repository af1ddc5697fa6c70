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

#define TURNED_64(TYPE, NAME)                                                                                              \
  SPECIALISED void wgmma_turned<TYPE, 64>(float (&d)[32], u64 a, u64 b, int accumulate) {                                  \
    asm volatile(                                                                                                          \
        "{ .reg .pred p; setp.ne.b32 p, %34, 0; "                                                                          \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " {"                                                   \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                           \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"                                   \
        "}, %32, %33, p, 1, 1, 1, 1; }"                                                                                    \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),      \
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),           \
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),          \
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                        \
        : "l"(a), "l"(b), "r"(accumulate));                                                                                \
  }
TURNED_64(Half, "f16")
TURNED_64(BFloat16, "bf16")
#undef TURNED_64

#define ACROSS_64(TYPE, NAME)                                                                                              \
  SPECIALISED void wgmma_across<TYPE, 64>(float (&d)[32], const u32* a, u64 b) {                                           \
    asm volatile(                                                                                                          \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " {"                                                   \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                           \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"                                   \
        "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"                                                                        \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),                  \
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),            \
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),          \
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])           \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                             \
  }
ACROSS_64(Half, "f16")
ACROSS_64(BFloat16, "bf16")
#undef ACROSS_64

#endif  // SIMT_SHIM
