// The parameters of the kernels for few keys: those of params.cuh without what only long sequences need.
#pragma once
#include "params.cuh"
#include "small/instructions.cuh"

struct SmallParams {
  const char* q;
  const char* k;
  const char* v;
  char* out;
  float* lse;                  // [batch, heads, seq_q], natural logarithm; or null
  i64 q_batch, q_head, q_row;  // strides in bytes; the last dimension is contiguous
  i64 k_batch, k_head;
  i64 v_batch, v_head;
  i64 out_batch, out_head, out_row;
  u32 k_row, v_row;            // all keys of a head span less than 2 GB
  Divisor group;               // heads of Q that share a head of K and V
  int heads, row_tiles;
  int seq_q, seq_k, head_dim;
  int causal_offset;           // row r sees keys 0 .. r + causal_offset
  float scale_log2;            // scale * log2(e)
};

// Grid: (row_tiles, heads, batch). Everything about a block that does not depend on the thread.
struct SmallBlock {
  const char *q, *k, *v;  // the first row of Q that this block computes; the first key
  int head, batch, row0;
  int keys;               // the number of keys that the block's last row sees
};

template <bool CAUSAL, int ROWS>
DEVICE SmallBlock small_block(const SmallParams& p) {
  SmallBlock b;
  // If rows differ in length, the longest tiles start first, so that the short ones fill the gaps at the end.
  const int tile = CAUSAL ? p.row_tiles - 1 - (int)blockIdx.x : (int)blockIdx.x;
  b.head = (int)blockIdx.y, b.batch = (int)blockIdx.z;
  b.row0 = tile * ROWS;
  const int kv_head = divide(b.head, p.group);
  b.q = p.q + b.batch * p.q_batch + b.head * p.q_head + b.row0 * p.q_row;
  b.k = p.k + b.batch * p.k_batch + kv_head * p.k_head;
  b.v = p.v + b.batch * p.v_batch + kv_head * p.v_head;
  b.keys = p.seq_k;
  if (CAUSAL) {
    const int visible = (b.row0 + ROWS < p.seq_q ? b.row0 + ROWS : p.seq_q) + p.causal_offset;
    b.keys = visible < p.seq_k ? visible : p.seq_k;
  }
  return b;
}
