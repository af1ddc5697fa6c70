// One warpgroup multiplies A (64x16) by B (16xN) and gets C (64xN). PTX defines, for wgmma.m64nNk16, which thread and
// register hold an element of C. B is in shared memory. A is in shared memory too (`wgmma_shared`), or in registers
// (`wgmma_registers`).
// The rows of K are the columns of B, so K is read as it is stored. The rows of V are the rows of B, so V is read
// transposed.
// Of elements of eight bits A is 64x32 and B 32xN, and the columns of B are read as they are stored in any case.
#pragma once
#include "hopper/instructions.cuh"

// d = a b, or d += a b if `accumulate` is not 0. It is asynchronous: see warpgroup_commit and warpgroup_wait.
template <class T, int N>
DEVICE void wgmma_shared(float (&d)[N / 2], u64 a, u64 b, int accumulate);
template <class T, int N>
DEVICE void wgmma_registers(float (&d)[N / 2], const u32* a, u64 b, int accumulate);

#ifndef SIMT_SHIM  // the tests on a CPU have one definition for all widths

// The instruction lists every register of C: WGMMA_NAMES_32 names the first 32 operands in PTX, and WGMMA_C_32 binds them.
#define WGMMA_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_24 WGMMA_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_NAMES_32 WGMMA_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_36 WGMMA_NAMES_32 ", %32, %33, %34, %35"
#define WGMMA_NAMES_40 WGMMA_NAMES_36 ", %36, %37, %38, %39"
#define WGMMA_NAMES_48 WGMMA_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_NAMES_56 WGMMA_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_NAMES_64 WGMMA_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_NAMES_68 WGMMA_NAMES_64 ", %64, %65, %66, %67"
#define WGMMA_NAMES_80 WGMMA_NAMES_68 ", %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_NAMES_88 WGMMA_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_NAMES_96 WGMMA_NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_NAMES_128 WGMMA_NAMES_96                                                             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define WGMMA_C_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_C_8(i) WGMMA_C_4(i), WGMMA_C_4(i + 4)
#define WGMMA_C_16 WGMMA_C_8(0), WGMMA_C_8(8)
#define WGMMA_C_24 WGMMA_C_16, WGMMA_C_8(16)
#define WGMMA_C_32 WGMMA_C_24, WGMMA_C_8(24)
#define WGMMA_C_36 WGMMA_C_32, WGMMA_C_4(32)
#define WGMMA_C_40 WGMMA_C_36, WGMMA_C_4(36)
#define WGMMA_C_48 WGMMA_C_40, WGMMA_C_8(40)
#define WGMMA_C_56 WGMMA_C_48, WGMMA_C_8(48)
#define WGMMA_C_64 WGMMA_C_56, WGMMA_C_8(56)
#define WGMMA_C_68 WGMMA_C_64, WGMMA_C_4(64)
#define WGMMA_C_80 WGMMA_C_68, WGMMA_C_4(68), WGMMA_C_8(72)
#define WGMMA_C_88 WGMMA_C_80, WGMMA_C_8(80)
#define WGMMA_C_96 WGMMA_C_88, WGMMA_C_8(88)
#define WGMMA_C_128 WGMMA_C_96, WGMMA_C_8(96), WGMMA_C_8(104), WGMMA_C_8(112), WGMMA_C_8(120)

// `count` is the number of registers of C. The operands after them have the numbers that follow: A is %count (and, in
// registers, %a1 to %a3), then come B and `accumulate`. TYPES begins with how deep a product is. The last immediates of LAYOUT
// say whether A and B are stored transposed.
#define WGMMA_SHARED(NAME, T, TYPES, N, count, b_at, accumulate_at, LAYOUT)                 \
  SPECIALISED void NAME<T, N>(float (&d)[count], u64 a, u64 b, int accumulate) {            \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #accumulate_at                          \
                 ", 0; wgmma.mma_async.sync.aligned.m64n" #N TYPES " {" WGMMA_NAMES_##count \
                 "}, %" #count ", %" #b_at ", p, " LAYOUT "; }"                             \
                 : WGMMA_C_##count                                                          \
                 : "l"(a), "l"(b), "r"(accumulate));                                        \
  }
#define WGMMA_REGISTERS(T, TYPES, N, count, a1, a2, a3, b_at, accumulate_at, LAYOUT)               \
  SPECIALISED void wgmma_registers<T, N>(float (&d)[count], const u32* a, u64 b, int accumulate) { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #accumulate_at                                 \
                 ", 0; wgmma.mma_async.sync.aligned.m64n" #N TYPES " {" WGMMA_NAMES_##count        \
                 "}, {%" #count ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", p, " LAYOUT "; }"    \
                 : WGMMA_C_##count                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));           \
  }

#define WGMMA_WIDTHS(T, TYPES)                                        \
  WGMMA_SHARED(wgmma_shared, T, TYPES, 48, 24, 25, 26, "1, 1, 0, 0")  \
  WGMMA_SHARED(wgmma_shared, T, TYPES, 64, 32, 33, 34, "1, 1, 0, 0")  \
  WGMMA_SHARED(wgmma_shared, T, TYPES, 80, 40, 41, 42, "1, 1, 0, 0")  \
  WGMMA_SHARED(wgmma_shared, T, TYPES, 96, 48, 49, 50, "1, 1, 0, 0")  \
  WGMMA_SHARED(wgmma_shared, T, TYPES, 112, 56, 57, 58, "1, 1, 0, 0") \
  WGMMA_SHARED(wgmma_shared, T, TYPES, 128, 64, 65, 66, "1, 1, 0, 0") \
  WGMMA_SHARED(wgmma_shared, T, TYPES, 176, 88, 89, 90, "1, 1, 0, 0") \
  WGMMA_REGISTERS(T, TYPES, 32, 16, 17, 18, 19, 20, 21, "1, 1, 1")    \
  WGMMA_REGISTERS(T, TYPES, 64, 32, 33, 34, 35, 36, 37, "1, 1, 1")    \
  WGMMA_REGISTERS(T, TYPES, 96, 48, 49, 50, 51, 52, 53, "1, 1, 1")    \
  WGMMA_REGISTERS(T, TYPES, 128, 64, 65, 66, 67, 68, 69, "1, 1, 1")   \
  WGMMA_REGISTERS(T, TYPES, 160, 80, 81, 82, 83, 84, 85, "1, 1, 1")   \
  WGMMA_REGISTERS(T, TYPES, 192, 96, 97, 98, 99, 100, 101, "1, 1, 1") \
  WGMMA_REGISTERS(T, TYPES, 256, 128, 129, 130, 131, 132, 133, "1, 1, 1")
WGMMA_WIDTHS(Half, "k16.f32.f16.f16")
WGMMA_WIDTHS(BFloat16, "k16.f32.bf16.bf16")
#undef WGMMA_WIDTHS
#define WGMMA_FLOAT8 "k32.f32.e4m3.e4m3"
WGMMA_SHARED(wgmma_shared, Float8, WGMMA_FLOAT8, 96, 48, 49, 50, "1, 1")
WGMMA_SHARED(wgmma_shared, Float8, WGMMA_FLOAT8, 128, 64, 65, 66, "1, 1")
WGMMA_SHARED(wgmma_shared, Float8, WGMMA_FLOAT8, 192, 96, 97, 98, "1, 1")
WGMMA_REGISTERS(Float8, WGMMA_FLOAT8, 64, 32, 33, 34, 35, 36, 37, "1, 1")
WGMMA_REGISTERS(Float8, WGMMA_FLOAT8, 72, 36, 37, 38, 39, 40, 41, "1, 1")
WGMMA_REGISTERS(Float8, WGMMA_FLOAT8, 128, 64, 65, 66, 67, 68, 69, "1, 1")
WGMMA_REGISTERS(Float8, WGMMA_FLOAT8, 136, 68, 69, 70, 71, 72, 73, "1, 1")

#endif  // SIMT_SHIM
