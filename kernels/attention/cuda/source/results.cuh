// From the accumulators of a warp to the output: to the output itself, or to one of several parts that a second kernel joins.
#pragma once
#include "block.cuh"

template <class C>
struct Results {
  const AttentionParams& p;
  int head, row0;  // row0: this lane's first row; where heads are packed, its row in the tile
  int lane;
  u32 q_tile;      // the warp's own rows of Q's tile, which is no longer needed
  typename ScopeIf<C::GENERAL>::Type scope;

  __device__ __forceinline__ bool has(int row) const {
    if constexpr (C::GENERAL)
      return row < scope.rows;
    else
      return row < p.seq_q;
  }
  // The row's index among the rows of all heads.
  __device__ __forceinline__ i64 index(int row) const {
    if constexpr (C::GENERAL)
      return index_of_place(p, scope, place_of_row(p, scope, row));
    else
      return (i64)head * p.seq_q + row;
  }
  // The address of a row. `out` is the address of the head's first row where heads are not packed.
  __device__ __forceinline__ char* address(char* out, int row) const {
    if constexpr (C::GENERAL)
      return ::out_row(p, scope, place_of_row(p, scope, row));
    else
      return out + row * p.out_row;
  }

  // The width of the output, and this block's first column.
  __device__ __forceinline__ int width() const { return C::SHAPED ? p.value_dim : p.head_dim; }
  __device__ __forceinline__ int column0() const { return C::SHAPED ? (int)blockIdx.z * C::NO * 8 : 0; }

  // Normalises O and computes each row's log-sum-exp in base 2: -inf for a row that saw no key, whose output is zero.
  __device__ __forceinline__ void normalise(Warp<C>& warp, float (&lse)[C::MI][2]) const {
#pragma unroll
    for (int i = 0; i < C::MI; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float sum = warp.sum[i][r];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
        if constexpr (C::DROPS) inverse *= dropout_of(p).keep_scale;
        lse[i][r] = sum == 0.0f ? MINUS_INFINITY : warp.top[i][r] + log2_approx(sum);
#pragma unroll
        for (int j = 0; j < C::NO; j++) warp.o[i][j][2 * r] *= inverse, warp.o[i][j][2 * r + 1] *= inverse;
      }
  }

  __device__ __forceinline__ void write_partial(const Warp<C>& warp, const float (&lse)[C::MI][2]) const {
    const i64 all_rows = C::GENERAL ? p.all_rows : (i64)p.all_heads * p.seq_q;
    const i64 base = (i64)blockIdx.y * all_rows + (C::GENERAL ? 0 : (i64)head * p.seq_q);
#pragma unroll
    for (int i = 0; i < C::MI; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int row = row0 + i * 16 + r * 8;
        if (!has(row)) continue;
        const i64 place = base + (C::GENERAL ? index(row) : row);
        float* out = p.partial_out + place * width();
#pragma unroll
        for (int j = 0; j < C::NO; j++) {
          int column = column0() + j * 8 + (lane & 3) * 2;
          if (C::VECTOR) {
            if (column < width()) *(Pair*)(out + column) = Pair{warp.o[i][j][2 * r], warp.o[i][j][2 * r + 1]};
          } else {
            if (column < width()) out[column] = warp.o[i][j][2 * r];
            if (column + 1 < width()) out[column + 1] = warp.o[i][j][2 * r + 1];
          }
        }
        if ((lane & 3) == 0 && column0() == 0) p.partial_lse[place] = lse[i][r];
      }
  }

  __device__ __forceinline__ void write(const Warp<C>& warp, const float (&lse)[C::MI][2]) const {
    char* out = C::GENERAL ? nullptr : output_head(p, head);
#pragma unroll
    for (int i = 0; i < C::MI; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int local = (lane >> 2) + i * 16 + r * 8, row = row0 + i * 16 + r * 8;
        if (p.lse && (lane & 3) == 0 && column0() == 0 && has(row))
          p.lse[index(row)] = lse[i][r] * LN_2;
#pragma unroll
        for (int j = 0; j < C::NO; j++) {
          u32 pair = pack<typename C::T>(warp.o[i][j][2 * r], warp.o[i][j][2 * r + 1]);
          if (C::VECTOR) {
            store_shared(q_tile + swizzled<C>(local, j) + (lane & 3) * 4, pair);
          } else if (has(row)) {
            int column = column0() + j * 8 + (lane & 3) * 2;
            u16* element = (u16*)address(out, row) + column;
            if (column < width()) element[0] = (u16)pair;
            if (column + 1 < width()) element[1] = (u16)(pair >> 16);
          }
        }
      }
    if (C::VECTOR) {
      // Goes through shared memory, so that each lane stores 16 bytes and neighbouring lanes fill whole sectors.
      sync_warp();
      int warp_row0 = row0 - (lane >> 2);
#pragma unroll
      for (int index = lane; index < C::MI * 16 * C::NO; index += 32) {
        int local = index / C::NO, chunk = index % C::NO, row = warp_row0 + local;
        if (has(row) && column0() + chunk * 8 < width())
          *(Chunk*)(address(out, row) + column0() * 2 + chunk * 16) = load_shared(q_tile + swizzled<C>(local, chunk));
      }
    }
  }
};

// Joins the parts of a split computation: out = sum_i 2^(lse_i - max) out_i / sum_i 2^(lse_i - max). One warp computes a row,
// and a block has four. A lane computes the weights of every 32nd part and sums every 32nd group of four columns, with the
// loads of several parts in flight at once: this takes the time of a few accesses to the L2 cache, not of one access per part.
// loads on their way at once: the time is that of a few trips to the L2 cache, not of one a part.
template <class T>
DEVICE void attention_combine(const AttentionParams& p) {
  constexpr int AT_ONCE = 8;
  const int lane = (int)threadIdx.x & 31;
  const i64 rows = (i64)p.all_heads * p.seq_q, row = (i64)blockIdx.x * 4 + ((int)threadIdx.x >> 5);
  if (row >= rows) return;
  const float* lse = p.partial_lse + row;
  float top = MINUS_INFINITY, total = 0.0f;
  for (int i = lane; i < p.splits; i += 32) top = fmaxf(top, lse[i * rows]);
#pragma unroll
  for (int step = 16; step; step /= 2) top = fmaxf(top, shuffle_xor(top, step));
  const float subtrahend = top == MINUS_INFINITY ? 0.0f : top;
  for (int i = lane; i < p.splits; i += 32) total += exp2_approx(lse[i * rows] - subtrahend);
#pragma unroll
  for (int step = 16; step; step /= 2) total += shuffle_xor(total, step);
  const float inverse = total == 0.0f ? 0.0f : 1.0f / total;  // a NaN part, which fmaxf ignores, makes the row NaN here

  const int head = (int)(row / p.seq_q), query = (int)(row - (i64)head * p.seq_q);
  u16* out = (u16*)(output_head(p, head) + query * p.out_row);
  const bool whole = p.head_dim % 4 == 0;
  for (int column = lane * 4; column < p.head_dim; column += 128) {
    const float* part = p.partial_out + row * p.head_dim + column;
    float value[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int first = 0; first < p.splits; first += AT_ONCE) {
      float x[AT_ONCE][4], weight[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        const int split = first + i < p.splits ? first + i : 0;
        const float* at = part + split * rows * p.head_dim;
        weight[i] = lse[split * rows];
        if (whole) {
          const Chunk c = *(const Chunk*)at;
          x[i][0] = __int_as_float((int)c.x), x[i][1] = __int_as_float((int)c.y);
          x[i][2] = __int_as_float((int)c.z), x[i][3] = __int_as_float((int)c.w);
        } else {
#pragma unroll
          for (int e = 0; e < 4; e++) x[i][e] = column + e < p.head_dim ? at[e] : 0.0f;
        }
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++)
        if (first + i < p.splits)
#pragma unroll
          for (int e = 0; e < 4; e++) value[e] += exp2_approx(weight[i] - subtrahend) * x[i][e];
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (column + e < p.head_dim) out[column + e] = (u16)pack<T>(value[e] * inverse, 0.0f);
  }
  if (p.lse && lane == 0) p.lse[row] = total == 0.0f ? MINUS_INFINITY : (top + log2_approx(total)) * LN_2;
}

// Adds each head's sink to the results of any kernel: a score that takes its share of a row's weights and has no value. A warp
// computes a row, and a block has four. Reads and writes the output and the log-sum-exp.
template <class T>
DEVICE void attention_sinks(const AttentionParams& p) {
  const int lane = (int)threadIdx.x & 31;
  const i64 row = (i64)blockIdx.x * 4 + ((int)threadIdx.x >> 5);
  if (row >= (i64)p.all_heads * p.seq_q) return;
  const int head = (int)(row / p.seq_q), query = (int)(row - (i64)head * p.seq_q), batch = divide(head, p.heads);
  const BesideSink beside = beside_sink(p.lse[row] * LOG2_E, p.sinks[head - batch * (int)p.heads.divisor]);
  u16* out = (u16*)(output_head(p, head) + query * p.out_row);
  for (int column = lane; column < p.value_dim; column += 32)
    out[column] = (u16)pack<T>(unpack<T>(out[column]) * beside.share, 0.0f);
  sync_warp();  // all lanes have read the log-sum-exp
  if (lane == 0) p.lse[row] = beside.log_of_sum;
}
