// The parameters of the kernels of the backward pass: one problem, described once on the host, the same for all of them.
#pragma once
#include "params.cuh"
#include "tile.cuh"

struct Strides {  // in bytes; the last dimension is contiguous
  i64 batch, head, row;
};

struct BackwardParams {
  const char *q, *k, *v, *out, *dout;
  char *dq, *dk, *dv;
  const float* lse;   // of the forward pass: [batch, heads, seq_q], natural logarithm
  const float* dlse;  // its gradient, with the same layout; or null
  float* shift;       // lse in base 2, +inf for rows that see no key: their exponentials are zero
  float* delta;       // sums of dout * out over a row, less dlse
  float* sums;        // where blocks add up dq: SUMS_OF_TILE for each tile of queries; or null
  int* progress;      // by which blocks tell each other what has been done, all zero at first: see below; or null
  int* counter;       // [2], zero before and after a launch that takes work from it
  const int* q_starts;  // sequence b has rows q_starts[b] .. q_starts[b + 1] - 1 of a packed tensor; or null
  const int* k_starts;
  const char* mask;
  const float* slopes;  // how much a score falls with each key of distance, by head of Q; or null
  const float* sinks;   // by head of Q, or null; with their gradients
  float* dsinks;
  Strides at_q, at_k, at_v, at_out, at_dout, at_dq, at_dk, at_dv, at_mask;
  i64 mask_key;
  Divisor heads, kv_heads;  // of Q; of K and V
  Divisor group;            // heads of Q that share a head of K and V
  Divisor tiles;            // tiles of kept rows per head
  Divisor section;          // heads whose tiles are taken before the tiles of the next heads
  Divisor section_tiles;
  Divisor stat_rows;        // rows per head in shift and delta
  int all_heads, all_kv_heads;  // over all batches
  int items;                // tiles of work, in all sections
  int seq_q, seq_k, head_dim;
  int query_tiles;          // tiles of Q per head, for kernels that fix their height
  int above, below;         // query i sees keys i + below .. i + above
  int align_ends;           // both count from the last key of a sequence for its last query
  float scale, scale_log2;  // scale_log2 = scale * log2(e)
  i64 slopes_batch;         // stride in floats
  float cap;                // scores, scaled, approach +-cap; 0: they are not capped
  int value_dim;            // of V, out and their gradients
  int level;                // key i + level is the one nearest to query i, before the ends are aligned
  int part_bits;            // group, kv_heads and all_kv_heads count each of 1 << part_bits parts of a group as a group of its own
};

static constexpr int SUMS_OF_TILE = 64 * 128, SHARES_OF_TILE = 2;
// Returns for each tile of keys the number of its shares that have been added to all sums to which they belong.
DEVICE int* finished_of(const BackwardParams& p) { return p.progress; }
// Returns for each share of a tile's sums the number that says which tile of keys is to be added next.
DEVICE int* turns_of(const BackwardParams& p) { return p.progress + p.all_kv_heads * (int)p.tiles.divisor; }
DEVICE int count_of_progress(const BackwardParams& p) {
  return p.all_kv_heads * (int)p.tiles.divisor + p.all_heads * p.query_tiles * SHARES_OF_TILE;
}

// Returns for each warp of each tile of keys how many parts of its group have stored their sums; after all other progress.
DEVICE int* arrivals_of(const BackwardParams& p) { return p.progress + count_of_progress(p); }
// Returns where parts leave their sums of dK and dV: after the sums of dQ.
DEVICE char* parts_of(const BackwardParams& p) { return (char*)(p.sums + (i64)p.all_heads * p.query_tiles * SUMS_OF_TILE); }

// Returns the tile of `keys` keys, or a tile after the last, with which the window of a query begins. The tiles of keys that meet a
// tile of queries are those from the first query's on: these, and no others, are added to its sums.
DEVICE int first_keys(const BackwardParams& p, int query, int keys) { return max(query + p.below, 0) / keys; }

// Returns the sum of the products of eight 16-bit elements with eight others.
template <class T>
DEVICE float dot(const Chunk& a, const Chunk& b) {
  const u32 x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    sum = fused(unpack<T>((u16)x[i]), unpack<T>((u16)y[i]), sum);
    sum = fused(unpack<T>((u16)(x[i] >> 16)), unpack<T>((u16)(y[i] >> 16)), sum);
  }
  return sum;
}
