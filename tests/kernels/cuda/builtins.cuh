// What kernels use of the headers that nvcc reads before every text, 1.4 MB of them: declarations as they are there. It stands in
// for cuda_runtime.h where tests ask only whether kernels compile and to what.
#pragma once

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __grid_constant__ __attribute__((grid_constant))
#define __cluster_dims__(...) __attribute__((cluster_dims(__VA_ARGS__)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define BUILTIN __device__ __attribute__((device_builtin))
#define INLINE static __device__ __forceinline__

struct __attribute__((device_builtin)) uint3 {
  unsigned x, y, z;
};
struct __attribute__((device_builtin)) dim3 {
  unsigned x, y, z;
};

extern "C" {
uint3 __attribute__((device_builtin)) extern const threadIdx;
uint3 __attribute__((device_builtin)) extern const blockIdx;
dim3 __attribute__((device_builtin)) extern const blockDim;
dim3 __attribute__((device_builtin)) extern const gridDim;

BUILTIN float fabsf(float) noexcept;
BUILTIN float fmaxf(float, float) noexcept;
BUILTIN float fminf(float, float) noexcept;
BUILTIN int max(int, int) noexcept;
BUILTIN int min(int, int) noexcept;
BUILTIN float __fmaf_rn(float, float, float);
BUILTIN float __fmul_rn(float, float);
BUILTIN unsigned __umulhi(unsigned, unsigned);
BUILTIN float __int_as_float(int);
BUILTIN int __float_as_int(float);
BUILTIN void __syncthreads();
BUILTIN void __threadfence();
BUILTIN int __iAtomicAdd(int*, int);
BUILTIN unsigned __nvvm_shfl_idx_sync(unsigned, unsigned, unsigned, unsigned);
BUILTIN unsigned __nvvm_shfl_bfly_sync(unsigned, unsigned, unsigned, unsigned);
BUILTIN int __nvvm_vote_any_sync(unsigned, int);
BUILTIN void __nvvm_bar_warp_sync(unsigned);
}

INLINE int atomicAdd(int* to, int more) { return __iAtomicAdd(to, more); }
INLINE void __syncwarp() { __nvvm_bar_warp_sync(~0u); }
INLINE int __any_sync(unsigned lanes, int is) { return __nvvm_vote_any_sync(lanes, is); }
INLINE int __shfl_sync(unsigned lanes, int x, int from) { return __nvvm_shfl_idx_sync(lanes, x, from, 31); }
INLINE unsigned __shfl_xor_sync(unsigned lanes, unsigned x, int mask) { return __nvvm_shfl_bfly_sync(lanes, x, mask, 31); }
INLINE float __shfl_xor_sync(unsigned lanes, float x, int mask) {
  return __int_as_float(__nvvm_shfl_bfly_sync(lanes, __float_as_int(x), mask, 31));
}
