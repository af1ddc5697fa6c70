// The parameters of the Hopper kernels, beside the three tensor maps.
#pragma once
#include "params.cuh"
#include "hopper/instructions.cuh"

struct HopperParams {
  char* out;
  float* lse;             // [batch, heads, seq_q], natural logarithm; or null
  int* counter;           // [2], zero before and after a launch: row tiles taken beyond each block's first; finished blocks
  i64 out_batch, out_head, out_row;  // strides in bytes
  Divisor heads;          // of Q
  Divisor group;          // heads of Q that share a head of K and V
  Divisor row_tiles;      // ceil(seq_q / ROWS)
  Divisor section;        // heads whose K and V are meant to share the L2 cache
  Divisor section_tiles;  // section * row_tiles
  int all_heads;          // batch * heads
  int tiles;              // in all sections; the last section may have too many heads
  int seq_q, seq_k, value_dim;
  int last_offset;        // row r sees no key after r + last_offset, if the kernel is BOUNDED_RIGHT
  int first_offset;       // row r sees no key before r + first_offset, if the kernel is BOUNDED_LEFT
  float scale_log2;       // scale * log2(e): exp(scale x) = exp2(scale_log2 x)
  const char* mask;       // read only by kernels that HAS_TENSOR: what is added to the scaled scores, or which keys are seen
  i64 mask_batch, mask_head, mask_row;  // strides in bytes, 0 where it is broadcast; its last dimension is contiguous
  const int* q_starts;    // read only by kernels that are PACKED: sequence b has rows q_starts[b] .. q_starts[b + 1] - 1
  const int* k_starts;
  int sequences;          // some may be empty; `tiles` is then an upper bound, and seq_q the number of all rows
  int align_ends;         // both offsets count from the last key of a sequence for its last row
  Divisor batches;        // read only by kernels that HAS_TENSOR: batches that share a head's mask and follow each other; or 0, 1
  float* partial_out;     // read only by kernels that SPLIT: [splits, batch * heads * seq_q, head_dim]
  float* partial_lse;     // [splits, batch * heads * seq_q], base 2
  Divisor part_tiles;     // tiles of one part; `tiles` counts those of all parts
  int splits;
  const int* block_table; // read only by kernels that are PAGED: [sequences, table_row], a sequence's pages in the order of its keys
  const int* k_lengths;   // keys of a sequence; seq_k is the number of keys for which a row of the table has room
  i64 table_row;          // stride in entries
  Divisor page;           // keys of a page
  int pages;              // in the cache
  int piece;              // keys that one copy moves; they are in one page
  int queries;            // of each sequence, where q_starts is null
  i64 mask_key;           // read only by kernels with a KEY_BIAS: bytes from one key's element to the next
  const float* sinks;     // read only by kernels with SINKS, by head of Q
  const float* q_scale;   // read only by kernels of FLOAT8: by head of K, what an element is multiplied by
  const float* k_scale;
  const float* v_scale;
};
