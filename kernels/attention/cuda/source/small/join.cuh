// Joins what several warps found for the same rows from different keys, through shared memory, and writes the output.
#pragma once
#include "small/scores.cuh"

// One part a group of keys: ROWS rows of D floats, then a maximum and a sum for each row. Rows are padded by 32 bytes and in
// every other 128 bytes neighbouring 16-byte chunks change places, so that neither the warps that write fragments (8 or 16
// bytes a lane) nor those that read rows (16 bytes a lane) meet a bank conflict.
template <int D_, int ROWS_, int PARTS_, int THREADS_>
struct Joining {
  static constexpr int D = D_, ROWS = ROWS_, PARTS = PARTS_, THREADS = THREADS_;
  static constexpr int ROW_FLOATS = D + 8;
  static constexpr int PART_FLOATS = ROWS * ROW_FLOATS;
  static constexpr int BYTES = PARTS * (PART_FLOATS + 2 * ROWS) * 4;
};

// Of 16-byte chunk `chunk` in a row, where it lies.
DEVICE int place_of(int chunk) { return chunk ^ ((chunk >> 3) & 1); }

template <class J>
DEVICE float* part_row(float* parts, int part, int row) {
  return parts + part * J::PART_FLOATS + row * J::ROW_FLOATS;
}

template <class J>
DEVICE Pair* part_state(float* parts, int part, int row) {
  return (Pair*)(parts + J::PARTS * J::PART_FLOATS) + part * J::ROWS + row;
}

template <class T>
DEVICE Chunk packed(const float (&x)[8], float factor) {
  return Chunk{pack<T>(x[0] * factor, x[1] * factor), pack<T>(x[2] * factor, x[3] * factor),
               pack<T>(x[4] * factor, x[5] * factor), pack<T>(x[6] * factor, x[7] * factor)};
}

DEVICE float inverse_of(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }  // a row that saw no key is zero

// Natural logarithm of a row's sum of exponentials: -inf for a row that saw no key.
DEVICE float log_sum_exp(float top, float sum) { return sum == 0.0f ? MINUS_INFINITY : (top + log2_approx(sum)) * LN_2; }

DEVICE void write_lse(const SmallParams& p, const SmallBlock& b, int row, float top, float sum) {
  p.lse[((i64)b.batch * p.heads + b.head) * p.seq_q + row] = log_sum_exp(top, sum);
}

// Each thread takes 8 columns of a row at a time: out = sum_i 2^(top_i - top) part_i / sum_i 2^(top_i - top) sum_i. All parts
// must be in place (a barrier).
template <class T, class J>
DEVICE void join_and_write(const SmallParams& p, const SmallBlock& b, float* parts) {
  constexpr int CHUNKS = J::D / 8;
  char* const out = p.out + b.batch * p.out_batch + b.head * p.out_head + b.row0 * p.out_row;
#pragma unroll
  for (int first = 0; first < J::ROWS * CHUNKS; first += J::THREADS) {
    const int index = first + (int)threadIdx.x;
    if ((J::ROWS * CHUNKS) % J::THREADS != 0 && index >= J::ROWS * CHUNKS) break;
    const int row = index / CHUNKS, chunk = index % CHUNKS;
    float factor[J::PARTS], top = MINUS_INFINITY, sum = 0.0f, x[8];
#pragma unroll
    for (int i = 0; i < J::PARTS; i++) {
      const Pair state = *part_state<J>(parts, i, row);
      factor[i] = state.x;
      top = fmaxf(top, state.x);
    }
    const float subtrahend = top == MINUS_INFINITY ? 0.0f : top;
#pragma unroll
    for (int i = 0; i < J::PARTS; i++) {
      factor[i] = exp2_approx(factor[i] - subtrahend);
      sum += factor[i] * part_state<J>(parts, i, row)->y;
    }
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] = 0.0f;
#pragma unroll
    for (int i = 0; i < J::PARTS; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const Quad quad = *(const Quad*)(part_row<J>(parts, i, row) + place_of(2 * chunk + half) * 4);
        x[4 * half + 0] += factor[i] * quad.x, x[4 * half + 1] += factor[i] * quad.y;
        x[4 * half + 2] += factor[i] * quad.z, x[4 * half + 3] += factor[i] * quad.w;
      }
    if (b.row0 + row < p.seq_q) {
      if (chunk * 8 < p.head_dim) *(Chunk*)(out + row * p.out_row + chunk * 16) = packed<T>(x, inverse_of(sum));
      if (p.lse && chunk == 0) write_lse(p, b, b.row0 + row, top, sum);
    }
  }
}
