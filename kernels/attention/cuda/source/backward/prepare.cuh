// Runs before the backward pass: computes for every row of Q the sum of dout * out, and the log-sum-exp in base 2.
#pragma once
#include "backward/problem.cuh"
#include "small/instructions.cuh"

// LANES lanes process a row, eight elements each; D <= 8 LANES. If TURNED, the values that a lane of a quad needs of every 16
// rows are next to each other, as Hopper's kernel reads them; `sums` is cleared, and `progress` too where there is any. If
// KEEPS_SUMS, only `progress` is cleared, because all sums will be replaced.
template <class T_, int LANES_, bool VECTOR_, bool TURNED_, bool KEEPS_SUMS_ = false>
struct Prepare {
  typedef T_ T;
  static constexpr int LANES = LANES_, THREADS = 256, ROWS = THREADS / LANES;
  static constexpr bool VECTOR = VECTOR_, TURNED = TURNED_, KEEPS_SUMS = KEEPS_SUMS_;
};

DEVICE int turned(int row) { return (row & ~15) + ((row & 7) >> 1) * 4 + ((row >> 3) & 1) * 2 + (row & 1); }

// Grid: enough blocks for stat_rows rows of every head.
template <class C>
DEVICE void backward_prepare(const BackwardParams& p) {
  if (C::TURNED) let_next_start();
  const int thread = (int)threadIdx.x, lane = thread % C::LANES;
  const i64 row_of_all = (i64)blockIdx.x * C::ROWS + thread / C::LANES;
  const int head_of_all = (int)(row_of_all / (int)p.stat_rows.divisor);
  const int row = (int)(row_of_all - (i64)head_of_all * (int)p.stat_rows.divisor);
  const bool is_head = head_of_all < p.all_heads, is_row = is_head && row < p.seq_q;
  const int batch = is_head ? divide(head_of_all, p.heads) : 0, head = head_of_all - batch * (int)p.heads.divisor;
  float sum = 0.0f;
  if (is_row) {
    int valid = p.head_dim - lane * 8;
    valid = valid < 0 ? 0 : valid > 8 ? 8 : valid;
    const char* out = p.out + batch * p.at_out.batch + head * p.at_out.head + row * p.at_out.row + lane * 16;
    const char* dout = p.dout + batch * p.at_dout.batch + head * p.at_dout.head + row * p.at_dout.row + lane * 16;
    sum = dot<typename C::T>(load_chunk<C>(out, valid), load_chunk<C>(dout, valid));
    if constexpr (C::LANES == 32)  // rows of up to 512 elements
      if (valid = min(max(p.head_dim - 256 - lane * 8, 0), 8))
        sum += dot<typename C::T>(load_chunk<C>(out + 512, valid), load_chunk<C>(dout + 512, valid));
  }
#pragma unroll
  for (int step = C::LANES / 2; step; step /= 2) sum += shuffle_xor(sum, step);
  if (C::TURNED && is_head) {
    float* to = p.sums + (row_of_all * C::LANES + lane) * 8;
    if constexpr (!C::KEEPS_SUMS) {
      *(Chunk*)to = Chunk{0, 0, 0, 0};
      *(Chunk*)(to + 4) = Chunk{0, 0, 0, 0};
    }
  }
  if (C::TURNED && p.progress)
    for (int i = (int)blockIdx.x * C::THREADS + thread; i < count_of_progress(p); i += (int)gridDim.x * C::THREADS) p.progress[i] = 0;
  if (lane == 0 && is_head) {
    const i64 at = (i64)head_of_all * p.seq_q + row;
    const float lse = is_row ? p.lse[at] : MINUS_INFINITY;
    const i64 to = (i64)head_of_all * (int)p.stat_rows.divisor + (C::TURNED ? turned(row) : row);
    p.shift[to] = lse == MINUS_INFINITY ? -MINUS_INFINITY : lse * 1.4426950408889634f;
    p.delta[to] = is_row ? sum - (p.dlse ? p.dlse[at] : 0.0f) : 0.0f;
  }
}

// The gradient of the sinks: a sink's weight has no value, so its slope is what it takes from the row's others. One block for each
// head of Q. LANES lanes process a row, AT_ONCE rows after each other; each adds its rows in their order, and then all add in the
// order of a tree, so every run gives the same bits.
template <class T_, int D_, bool VECTOR_>
struct Sinks {
  typedef T_ T;
  static constexpr bool VECTOR = VECTOR_;
  static constexpr int LANES = D_ / 8 < 32 ? D_ / 8 : 32, COLUMNS = LANES * 8, CHUNKS = (D_ + COLUMNS - 1) / COLUMNS;
  static constexpr int WARPS = 32, ROWS = 32 / LANES, STEP = WARPS * ROWS, AT_ONCE = CHUNKS == 1 ? 4 : 2;
};

template <class C>
DEVICE void backward_sinks(const BackwardParams& p) {
  SHARED_MEMORY(memory);
  const int head = (int)blockIdx.x, lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, heads = (int)p.heads.divisor;
  const int first = p.q_starts ? p.q_starts[0] : 0, end = p.q_starts ? p.q_starts[p.items] : p.seq_q;
  const float sink = p.sinks[head];
  float sum = 0.0f;
  for (int batch = 0; batch < p.all_heads / heads; batch++)
    for (int start = first + warp * C::ROWS; start < end; start += C::STEP * C::AT_ONCE) {
      const int own = start + lane / C::LANES;
      float product[C::AT_ONCE];
#pragma unroll
      for (int i = 0; i < C::AT_ONCE; i++) {
        const int row = own + i * C::STEP;
        const char* out = p.out + batch * p.at_out.batch + head * p.at_out.head + row * p.at_out.row;
        const char* dout = p.dout + batch * p.at_dout.batch + head * p.at_dout.head + row * p.at_dout.row;
        product[i] = 0.0f;
#pragma unroll
        for (int chunk = 0; chunk < C::CHUNKS; chunk++) {
          const int column = chunk * C::COLUMNS + lane % C::LANES * 8, valid = row < end ? min(max(p.value_dim - column, 0), 8) : 0;
          product[i] += dot<typename C::T>(load_chunk<C>(out + column * 2, valid), load_chunk<C>(dout + column * 2, valid));
        }
      }
#pragma unroll
      for (int i = 0; i < C::AT_ONCE; i++) {
#pragma unroll
        for (int step = C::LANES / 2; step; step /= 2) product[i] += shuffle_xor(product[i], step);
        const int row = own + i * C::STEP;
        if (row >= end || lane % C::LANES) continue;
        const i64 at = ((i64)batch * heads + head) * p.seq_q + row;
        const float weight = sink == MINUS_INFINITY ? 0.0f : exp2_approx((sink - p.lse[at]) * 1.4426950408889634f);
        sum -= weight * (product[i] - (p.dlse ? p.dlse[at] : 0.0f));
      }
    }
  float* sums = (float*)memory;
#pragma unroll
  for (int step = 16; step; step /= 2) sum += shuffle_xor(sum, step);
  if (lane == 0) sums[warp] = sum;
  sync_block();
  sum = sums[lane];
#pragma unroll
  for (int step = 16; step; step /= 2) sum += shuffle_xor(sum, step);
  if (warp == 0 && lane == 0) p.dsinks[head] = sum;
}
