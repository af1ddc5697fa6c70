// Runs after Hopper's backward pass: scales the sums of dQ, which are in the order of the registers, and writes 16-bit rows.
#pragma once
#include "backward/problem.cuh"
#include "small/instructions.cuh"

template <class T_, int D_, int QUERIES_>
struct Convert {
  typedef T_ T;
  static constexpr int D = D_, QUERIES = QUERIES_;
  static constexpr int THREADS = 256;
};

// Grid: query tiles of all heads. The two halves of a block convert the shares of the two warpgroups.
template <class C>
DEVICE void backward_convert(const BackwardParams& p) {
  wait_for_previous();
  const int thread = (int)threadIdx.x, warpgroup = thread / 128, within = thread % 128, warp = within / 32, lane = within % 32;
  const int item = (int)blockIdx.x, head_of_all = divide(item, p.tiles), tile = item - head_of_all * (int)p.tiles.divisor;
  const int batch = divide(head_of_all, p.heads), head = head_of_all - batch * (int)p.heads.divisor;
  const float* from = p.sums + (i64)item * (C::QUERIES * C::D) + warpgroup * 4096 + within * 4;
  const int row0 = tile * C::QUERIES + (C::QUERIES == 128 ? warpgroup * 64 : 0) + warp * 16 + lane / 4;
  const int column0 = (C::QUERIES == 128 ? 0 : warpgroup * 64) + 8 * (lane & 3);
  const bool odd = lane & 1, high = lane & 2;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    Chunk c[4];
#pragma unroll
    for (int i = 0; i < 4; i++) c[i] = *(const Chunk*)(from + (half * 4 + i) * 512);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      u32 x[4];
#pragma unroll
      for (int i = 0; i < 4; i++)
        x[i] = pack<typename C::T>(__int_as_float((int)(r ? c[i].z : c[i].x)) * p.scale, __int_as_float((int)(r ? c[i].w : c[i].y)) * p.scale);
      u32 other = shuffle_word(odd ? x[0] : x[1], 1);
      if (odd) x[0] = other; else x[1] = other;
      other = shuffle_word(odd ? x[2] : x[3], 1);
      if (odd) x[2] = other; else x[3] = other;
      other = shuffle_word(high ? x[0] : x[2], 2);
      if (high) x[0] = other; else x[2] = other;
      other = shuffle_word(high ? x[1] : x[3], 2);
      if (high) x[1] = other; else x[3] = other;
      const int row = row0 + 8 * r, column = column0 + 32 * half;
      char* to = p.dq + batch * p.at_dq.batch + head * p.at_dq.head + row * p.at_dq.row + column * 2;
      if (row < p.seq_q && column < p.head_dim) *(Chunk*)to = Chunk{x[0], x[1], x[2], x[3]};
    }
  }
}
