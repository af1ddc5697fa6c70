// The products of the backward pass by mma.sync, for kernels that keep rows of the scores. C has the names of tile.cuh.
#pragma once
#include "backward/problem.cuh"

// Computes x y^T for 16 rows of x from `warp_row` on and C::NS * 8 rows of y.
template <class C>
DEVICE void multiply_turned(float (&c)[C::NS][4], u32 x_tile, u32 y_tile, int warp_row, int lane) {
  const u32 x = x_tile + swizzled<C>(warp_row + (lane & 15), lane >> 4);
  const u32 y = y_tile + swizzled<C>((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
#pragma unroll
  for (int j = 0; j < C::NS; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) c[j][i] = 0.0f;
  constexpr int AT_ONCE = C::KQ > 16 ? 4 : C::KQ;  // of the widest rows, whose addresses would take too many registers
#pragma unroll AT_ONCE
  for (int kk = 0; kk < C::KQ; kk++) {
    u32 a[4];
    load_matrices(a, along<C>(x, 2 * kk));
#pragma unroll
    for (int j = 0; j < C::NS; j += 2) {
      u32 b[4];
      load_matrices(b, along<C>(y, 2 * kk) + j * 8 * C::ROW_BYTES);
      mma<typename C::T>(c[j], a, b[0], b[1]);
      mma<typename C::T>(c[j + 1], a, b[2], b[3]);
    }
  }
}

// Computes out += x y, for x in registers. The sum runs over the rows of y; C::NOUT * 8 columns from `column` on are used.
template <class C>
DEVICE void accumulate(float (&out)[C::NOUT][4], const float (&x)[C::NS][4], u32 y_tile, int column, int lane) {
  typedef typename C::T T;
  const u32 y = y_tile + swizzled<C>(lane & 15, lane >> 4);
#pragma unroll
  for (int kk = 0; kk < C::KV; kk++) {
    u32 a[4];
#pragma unroll
    for (int part = 0; part < 4; part++)
      a[part] = pack<T>(x[2 * kk + part / 2][part % 2 * 2], x[2 * kk + part / 2][part % 2 * 2 + 1]);
#pragma unroll
    for (int j = 0; j < C::NOUT; j += 2) {
      u32 b[4];
      load_matrices_transposed(b, (y ^ ((j + column / 8) << 4)) + kk * 16 * C::ROW_BYTES);
      mma<T>(out[j], a, b[0], b[1]);
      mma<T>(out[j + 1], a, b[2], b[3]);
    }
  }
}
