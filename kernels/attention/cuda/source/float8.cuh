// What is made of Q and V of eight bits before another kernel reads them: a transposed V, or a Q of 16 bits.
#pragma once
#include "warp.cuh"

// Byte `c` of each of four words, as one word.
DEVICE u32 bytes_of(u32 c, u32 w0, u32 w1, u32 w2, u32 w3) {
  const u32 shift = 8 * c;
  return (w0 >> shift & 0xff) | (w1 >> shift & 0xff) << 8 | (w2 >> shift & 0xff) << 16 | (w3 >> shift & 0xff) << 24;
}

// The number of this thread among those of its head.
template <int THREADS>
DEVICE int thread_of_head(const AttentionParams& p, int head) {
  return ((int)blockIdx.x - head * (int)p.row_tiles.divisor) * THREADS + (int)threadIdx.x;
}

// V as wgmma reads elements of eight bits: [batch, head, column, key], the keys' number rounded up to 16 with zeros. Of every 16
// keys, four that follow each other here are those of which one thread has the weights of a row: 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
//
// A thread takes four columns of 16 keys. Grid: batch * heads, and p.row_tiles blocks for each.
template <int THREADS>
DEVICE void attention_transpose_values(const AttentionParams& p) {
  const int head = divide((int)blockIdx.x, p.row_tiles), batch = divide(head, p.packs), words = p.value_dim / 4;
  const int at = thread_of_head<THREADS>(p, head), sixteen = at / words, word = at - sixteen * words, keys = (p.seq_k + 15) / 16 * 16;
  if (sixteen * 16 >= keys) return;
  const char* from = p.v + batch * p.v_batch + (head - batch * (int)p.packs.divisor) * p.v_head + word * 4;
  u32 w[16];
#pragma unroll
  for (int i = 0; i < 16; i++) w[i] = sixteen * 16 + i < p.seq_k ? *(const u32*)(from + (i64)(sixteen * 16 + i) * p.v_row) : 0;
  char* to = (char*)p.partial_out + ((i64)head * p.value_dim + word * 4) * keys + sixteen * 16;
#pragma unroll
  for (int c = 0; c < 4; c++)
    *(Chunk*)(to + (i64)c * keys) = {bytes_of(c, w[0], w[1], w[8], w[9]), bytes_of(c, w[2], w[3], w[10], w[11]),
                                     bytes_of(c, w[4], w[5], w[12], w[13]), bytes_of(c, w[6], w[7], w[14], w[15])};
}

// Q in 16 bits, contiguous [batch, head, row, column], every element exact; and the products of its scale and K's, by head of K.
//
// A thread takes four elements. Grid: as above.
template <int THREADS, class T>
DEVICE void attention_widen_queries(const AttentionParams& p) {
  const int head = divide((int)blockIdx.x, p.row_tiles), batch = divide(head, p.heads), words = p.head_dim / 4;
  const int at = thread_of_head<THREADS>(p, head), row = at / words, word = at - row * words;
  if (head == 0 && at < (int)p.packs.divisor) p.partial_lse[at] = p.q_scale[at] * p.k_scale[at];
  if (row >= p.seq_q) return;
  const char* from = p.q + batch * p.q_batch + (head - batch * (int)p.heads.divisor) * p.q_head + row * p.q_row;
  u32* to = (u32*)p.partial_out + (((i64)head * p.seq_q + row) * words + word) * 2;
  widen<T>(((const u32*)from)[word], to[0], to[1]);
}
