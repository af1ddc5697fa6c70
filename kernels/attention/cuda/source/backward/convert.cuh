// Runs after Hopper's backward pass: scales the sums of dQ, which are in the order of the registers, and writes 16-bit rows.
//
// It may start while that kernel still runs, on SMs that have no work left. So each tile waits until all keys that its queries
// see have been added, which is when the kernel before has done with it.
#pragma once
#include "backward/instructions.cuh"
#include "backward/problem.cuh"
#include "small/instructions.cuh"

// ORDERED: the sums are made in an order. WINDOW: tiles of keys before the first query's window are not seen.
template <class T_, int D_, int QUERIES_, bool ORDERED_, bool WINDOW_ = false>
struct Convert {
  typedef T_ T;
  static constexpr int D = D_, QUERIES = QUERIES_, KEYS = 128;
  static constexpr bool ORDERED = ORDERED_, WINDOW = WINDOW_;
  static constexpr int THREADS = 256;

  // Returns whether all keys that the queries of a tile see have been added. All lanes of a warp ask together.
  DEVICE_MEMBER static bool is_summed(const BackwardParams& p, int head_of_all, int tile, int lane) {
    const int all = (int)p.tiles.divisor, last = (tile + 1) * QUERIES - 1 + p.above;
    const int seen = last < 0 ? 0 : min(all, last / KEYS + 1), first = WINDOW ? min(first_keys(p, tile * QUERIES, KEYS), seen) : 0;
    bool waits = false;
    if (ORDERED) {
      waits = acquired(turns_of(p) + head_of_all * p.query_tiles + tile) != seen - first;
    } else {
      const int* finished = finished_of(p) + divide(head_of_all, p.group) * all;
      for (int keys = first + lane; keys < seen; keys += 32) waits |= acquired(finished + keys) != SHARES_OF_TILE;
    }
    waits = any_lane(waits);
    order_additions();
    return !waits;
  }

  // Writes the rows of a tile. The two halves of a block convert the shares of the two warpgroups.
  DEVICE_MEMBER static void convert(const BackwardParams& p, int head_of_all, int tile) {
    const int thread = (int)threadIdx.x, warpgroup = thread / 128, within = thread % 128, warp = within / 32, lane = within % 32;
    const int batch = divide(head_of_all, p.heads), head = head_of_all - batch * (int)p.heads.divisor;
    const float* from = p.sums + ((i64)head_of_all * p.query_tiles + tile) * SUMS_OF_TILE + warpgroup * 4096 + within * 4;
    const int row0 = tile * QUERIES + (QUERIES == 128 ? warpgroup * 64 : 0) + warp * 16 + lane / 4;
    const int column0 = (QUERIES == 128 ? 0 : warpgroup * 64) + 8 * (lane & 3);
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
          x[i] = pack<T>(__int_as_float((int)(r ? c[i].z : c[i].x)) * p.scale, __int_as_float((int)(r ? c[i].w : c[i].y)) * p.scale);
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
};

// Grid: the query tiles of all heads of all sections, in the order in which they are completed: all heads of a section have their
// first tiles first. Some are of heads that there are not.
template <class C>
DEVICE void backward_convert(const BackwardParams& p) {
  const int heads = (int)p.section.divisor * (int)p.group.divisor, tiles = heads * p.query_tiles;
  const int section = (int)blockIdx.x / tiles, within = (int)blockIdx.x - section * tiles, tile = within / heads;
  const int head_of_all = section * heads + within - tile * heads;
  if (head_of_all < p.all_heads) {
    while (!C::is_summed(p, head_of_all, tile, (int)threadIdx.x & 31)) rest();
    C::convert(p, head_of_all, tile);
  }
  wait_for_previous();  // what comes after this kernel comes after the one before it too
}
