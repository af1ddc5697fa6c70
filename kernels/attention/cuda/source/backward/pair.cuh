// The backward pass for every chip from Turing on, as two kernels with one template: one keeps a tile of keys and processes all
// queries that see it (dK, dV); the other keeps a tile of queries and processes all keys that they see (dQ). Each computes the
// weights again, which takes seven products instead of five. In return nothing is added up in memory: every element is written
// once, by one block, in a fixed order. So the result has the same bits in every run, and no float32 copy of anything is
// needed.
//
// The block keeps the rows of the scores, and their columns come in tiles. Weights never leave registers: the accumulators of
// the scores, packed to 16 bits, are the operands of the next product.
#pragma once
#include "backward/products.cuh"
#include "scope.cuh"

// A block keeps ROWS rows, 16 for each warp, and processes COLUMNS at a time. It computes OUT columns of the results; the
// grid's y says which. If KEYS, the kept rows are keys.
// If BIAS, it computes the gradient of a mask that is added: the slopes of the scores before they are capped.
template <class T_, int D_, int ROWS, int COLUMNS, int OUT_, bool VECTOR_, class MASK, bool KEYS_, bool SHAPED_ = false, bool BIAS_ = false,
          bool DROPS_ = false>
struct BackwardPair : Config<T_, D_, ROWS, COLUMNS, ROWS / 16, 1, false, true, VECTOR_, MASK, D_, SHAPED_, DROPS_> {
  static constexpr int OUT = OUT_, NOUT = OUT_ / 8;
  static constexpr bool KEYS = KEYS_, BIAS = BIAS_;
};

// The lengths and offsets of one sequence, and the limits of what its rows see.
struct Extent {
  int batch, head, kv_head;     // of Q; of K and V
  int q_start, k_start, seq_q, seq_k, below, above, level;
};

struct DroppingBackwardParams : BackwardParams {
  Dropout dropout;
};
DEVICE const Dropout& dropout_of(const BackwardParams& p) { return static_cast<const DroppingBackwardParams&>(p).dropout; }

template <class C>
struct PairBlock {
  typedef typename C::T T;
  const BackwardParams& p;
  Extent e;
  u32 kept, passing;            // shared memory: two tiles each
  int thread, lane, warp_row;   // the first of the warp's rows within the tile

  float score[C::NS][4], slope[C::NS][4];
  float first[C::NOUT][4];                    // dK, or dQ
  float second[C::KEYS ? C::NOUT : 1][4];     // dV
  float shift[2], delta[2];                   // of this lane's rows, where those are queries
  DropoutKey key;                             // if C::DROPS

  __device__ __forceinline__ i64 batch_of_tensor() const { return p.q_starts ? 0 : e.batch; }
  __device__ __forceinline__ const char* q_rows(const char* base, const Strides& at, int head) const {
    return base + batch_of_tensor() * at.batch + head * at.head + e.q_start * at.row;
  }
  __device__ __forceinline__ const char* k_rows(const char* base, const Strides& at) const {
    return base + batch_of_tensor() * at.batch + e.kv_head * at.head + e.k_start * at.row;
  }
  __device__ __forceinline__ i64 stat_row(int head) const {
    return (batch_of_tensor() * (int)p.heads.divisor + head) * (int)p.stat_rows.divisor + e.q_start;
  }

  __device__ __forceinline__ bool is_seen(int query, int key) const {
    return key < e.seq_k && query < e.seq_q && key <= query + e.above && key >= query + e.below;
  }

  __device__ __forceinline__ float bias(int head, int query, int key) const {
    if constexpr (C::HAS_MASK) {
    const char* at = p.mask + e.batch * p.at_mask.batch + head * p.at_mask.head + query * p.at_mask.row + key * p.mask_key;
    const float given = mask_value<typename C::Mask>(at), scaled = given * LOG2_E;
    return scaled < LOWEST && given > MINUS_INFINITY ? LOWEST : scaled;
    }
    return 0.0f;
  }

  // Makes a score what the forward pass made of it, times log2(e), and returns how fast it grows with the product of Q and K.
  __device__ __forceinline__ float shape(float& score, float slope, int query, int key) const {
    float growth = 1.0f;
    score *= p.scale_log2;
    if (p.cap > 0.0f) {
      const float share = hyperbolic_tangent(score * (1.0f / (p.cap * LOG2_E)));
      score = p.cap * LOG2_E * share, growth = fused(-share, share, 1.0f);
    }
    if (p.slopes) score -= slope * fabsf((float)(query + e.level - key));
    return growth;
  }

  // Drops the products with dout of the weights that the forward pass dropped, and scales those of the others. Returns a bit for
  // each weight that was kept.
  __device__ __forceinline__ u32 drop(int head, int row0, int column0) {
    static_assert(!C::DROPS || C::NS * 4 <= 32, "a word has a bit for each weight of a lane");
    const u32 least = dropout_of(p).least;
    const int head_of_all = e.batch * (int)p.heads.divisor + head;
    u32 kept_bits = 0, words[4];
    if constexpr (C::KEYS) {
      // Rows are keys. Of the four keys of a call a lane has two, of either column; the lane four further has the others. So each
      // computes a call for one column, and they exchange bits. Word 2 r + x is in the place of row r and column x.
      const int odd = lane >> 2 & 1;
#pragma unroll
      for (int j = 0; j < C::NS; j++) {
        dropout_words(words, key, row0 + warp_row + (lane >> 3) * 2, column0 + j * 8 + 2 * (lane & 3) + odd, head_of_all);
#pragma unroll
        for (int i = 0; i < 4; i++) kept_bits |= (u32)(words[i] >= least) << (j * 4 + i);
      }
      constexpr u32 FIRST = 0x55555555u;
      const u32 of_other = odd ? (kept_bits & FIRST) << 1 : kept_bits >> 1 & FIRST;
      kept_bits = (kept_bits & (odd ? ~FIRST : FIRST)) | (u32)shuffle((int)of_other, lane ^ 4);
    } else {
#pragma unroll
      for (int j = 0; j < C::NS; j += 2)
#pragma unroll
        for (int x = 0; x < 2; x++) {  // a row, whose four keys of a call a lane has
          dropout_words(words, key, column0 + j * 8 + 2 * (lane & 3), row0 + warp_row + x * 8 + (lane >> 2), head_of_all);
#pragma unroll
          for (int i = 0; i < 4; i++) kept_bits |= (u32)(words[i] >= least) << ((j + i / 2) * 4 + 2 * x + i % 2);
        }
    }
#pragma unroll
    for (int i = 0; i < C::NS * 4; i++) slope[i / 4][i % 4] = kept_bits >> i & 1 ? slope[i / 4][i % 4] * dropout_of(p).keep_scale : 0.0f;
    return kept_bits;
  }

  // Turns scores into weights, and the products with dout into slopes of the scores.
  template <bool OPEN>
  __device__ __forceinline__ void weigh(int head, int row0, int column0) {
    u32 kept_bits = ~0u;
    if constexpr (C::DROPS) kept_bits = drop(head, row0, column0);
    const float *shifts = p.shift + stat_row(head), *deltas = p.delta + stat_row(head);
    const float fall = C::SHAPED && p.slopes ? p.slopes[e.batch * p.slopes_batch + head] * LOG2_E : 0.0f;
#pragma unroll
    for (int j = 0; j < C::NS; j++)
#pragma unroll
      for (int x = 0; x < 2; x++) {
        const int column = column0 + j * 8 + 2 * (lane & 3) + x;
        float column_shift = 0.0f, column_delta = 0.0f;
        if (C::KEYS && column < e.seq_q) column_shift = shifts[column], column_delta = deltas[column];
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int row = row0 + warp_row + r * 8 + (lane >> 2);
          const int query = C::KEYS ? column : row, key = C::KEYS ? row : column;
          float &s = score[j][2 * r + x], &d = slope[j][2 * r + x];
          const bool seen = (OPEN && !C::HAS_MASK) || is_seen(query, key);
          const float added = C::HAS_MASK && seen ? bias(head, query, key) : 0.0f;
          const float of = C::KEYS ? column_shift : shift[r];
          // An infinity of the mask hides a key: rows that see nothing else have a shift of +inf, other rows a finite one.
          float growth = 1.0f;
          if constexpr (C::SHAPED) growth = shape(s, fall, query, key);
          const float scale = C::SHAPED ? 1.0f : p.scale_log2;
          float weight = seen ? exp2_approx(C::HAS_MASK ? fused(s, scale, added) - of : fused(s, scale, -of)) : 0.0f;
          s = weight;
          d = weight == 0.0f ? 0.0f : weight * (d - (C::KEYS ? column_delta : delta[r]));
          if constexpr (C::SHAPED && !C::BIAS) d *= growth;
          if (C::DROPS && !(kept_bits >> (j * 4 + 2 * r + x) & 1)) s = 0.0f;
        }
      }
  }

  // Copies the rows of a tile; rows from `rows` on become zero. A pass may be as short as two rows, so each pass computes its
  // place.
  template <int ROWS>
  __device__ __forceinline__ void copy(u32 tile, const char* source, i64 row_bytes, int rows, int width) const {
    const Share share = share_of_thread<C>(thread_again(), width);  // computed again, because registers are full in the main loop
#pragma unroll
    for (int i = 0; i < ROWS / C::ROWS_PER_PASS; i++) {
      const int row = share.row0 + i * C::ROWS_PER_PASS;
      const u32 to = tile + swizzled<C>(row, share.chunk);
      const char* from = source + row * row_bytes + share.chunk * 16;
#if HAS_ASYNC_COPY
      if constexpr (C::ASYNC) {
        if (share.valid) copy_async_or_zero(to, from, row < rows);
        continue;
      }
#endif
      store_shared(to, load_chunk<C>(from, row < rows ? share.valid : 0));
    }
  }
  template <int ROWS>
  __device__ __forceinline__ void clear(u32 tile, const Share& share) const {
#pragma unroll
    for (int i = 0; i < ROWS / C::ROWS_PER_PASS; i++)
      store_shared(tile + swizzled<C>(share.row0 + i * C::ROWS_PER_PASS, share.chunk), Chunk{0, 0, 0, 0});
  }
  // The width of V, of the output and of their gradients.
  __device__ __forceinline__ int value_dim() const { return C::SHAPED ? p.value_dim : p.head_dim; }
  __device__ __forceinline__ void landed() const {
#if HAS_ASYNC_COPY
    if constexpr (C::ASYNC) {
      copy_async_commit();
      copy_async_wait<0>();
    }
#endif
    sync_block();
  }

  // Sets `*from` to the first tile of columns that any kept row needs, and returns the end of these tiles.
  __device__ __forceinline__ int range(int row0, int* from) const {
    const int rows = C::KEYS ? e.seq_k : e.seq_q, columns = C::KEYS ? e.seq_q : e.seq_k;
    const int last_row = (row0 + C::BM < rows ? row0 + C::BM : rows) - 1;
    int begin = C::KEYS ? row0 - e.above : row0 + e.below, end = (C::KEYS ? last_row - e.below : last_row + e.above) + 1;
    begin = begin > 0 ? begin : 0, end = end < columns ? end : columns;
    *from = begin / C::BN;
    return end > begin ? (end + C::BN - 1) / C::BN : *from;
  }

  __device__ __forceinline__ bool is_open(int row0, int column0) const {
    const int q0 = C::KEYS ? column0 : row0, k0 = C::KEYS ? row0 : column0;
    const int queries = C::KEYS ? C::BN : C::BM, keys = C::KEYS ? C::BM : C::BN;
    return q0 + queries <= e.seq_q && k0 + keys <= e.seq_k && k0 + keys - 1 <= q0 + e.above && k0 >= q0 + queries - 1 + e.below;
  }

  __device__ __forceinline__ void write(char* head_rows, i64 row_bytes, int row0, int rows, int column0, float (&c)[C::NOUT][4],
                                        float factor, int width) const {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = row0 + warp_row + r * 8 + (lane >> 2);
      if (row >= rows) continue;
#pragma unroll
      for (int j = 0; j < C::NOUT; j++) {
        const int column = column0 + j * 8 + 2 * (lane & 3);
        const u32 pair = pack<T>(c[j][2 * r] * factor, c[j][2 * r + 1] * factor);
        u16* to = (u16*)(head_rows + row * row_bytes) + column;
        if (C::VECTOR) {
          if (column < width) *(u32*)to = pair;
        } else {
          if (column < width) to[0] = (u16)pair;
          if (column + 1 < width) to[1] = (u16)(pair >> 16);
        }
      }
    }
  }

  __device__ __forceinline__ void pass(int head, int row0, int column) {
    const char* y1 = C::KEYS ? q_rows(p.q, p.at_q, head) : k_rows(p.k, p.at_k);
    const char* y2 = C::KEYS ? q_rows(p.dout, p.at_dout, head) : k_rows(p.v, p.at_v);
    const i64 row1 = C::KEYS ? p.at_q.row : p.at_k.row, row2 = C::KEYS ? p.at_dout.row : p.at_v.row;
    const int columns = C::KEYS ? e.seq_q : e.seq_k;
    int n = 0;
    const int last = range(row0, &n);
    for (; n < last; n++) {
      const int column0 = n * C::BN;
      sync_block();
      copy<C::BN>(passing, y1 + column0 * row1, row1, columns - column0, p.head_dim);
      copy<C::BN>(passing + C::TILE_BYTES, y2 + column0 * row2, row2, columns - column0, value_dim());
      landed();
      multiply_turned<C>(score, kept, passing, warp_row, lane);
      multiply_turned<C>(slope, kept + C::Q_BYTES, passing + C::TILE_BYTES, warp_row, lane);
      if (is_open(row0, column0))
        weigh<true>(head, row0, column0);
      else
        weigh<false>(head, row0, column0);
      if constexpr (C::KEYS) accumulate<C>(second, score, passing + C::TILE_BYTES, column, lane);
      accumulate<C>(first, slope, passing, column, lane);
    }
  }

  // Zeroes chunks beyond the head dimensions, which copies do not write.
  __device__ __forceinline__ void clear_margins(const Share& share) const {
    if (C::ASYNC && !C::SHAPED && share.valid == 0) {
      clear<2 * C::BM>(kept, share);
      clear<2 * C::BN>(passing, share);
    }
    if constexpr (C::ASYNC && C::SHAPED) {
      if (share.valid == 0) clear<C::BM>(kept, share), clear<C::BN>(passing, share);
      if (share_of_thread<C>(thread, p.value_dim).valid == 0)
        clear<C::BM>(kept + C::Q_BYTES, share), clear<C::BN>(passing + C::TILE_BYTES, share);
    }
  }

  __device__ __forceinline__ void load_numbers(int row0) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = row0 + warp_row + r * 8 + (lane >> 2);
      shift[r] = row < e.seq_q ? p.shift[stat_row(e.head) + row] : 0.0f;
      delta[r] = row < e.seq_q ? p.delta[stat_row(e.head) + row] : 0.0f;
    }
  }

  // Computes the slopes of the scores of one tile, of one head.
  __device__ __forceinline__ void slopes_of(int row0, int column0) {
    sync_block();
    copy<C::BM>(kept, q_rows(p.q, p.at_q, e.head) + row0 * p.at_q.row, p.at_q.row, e.seq_q - row0, p.head_dim);
    copy<C::BM>(kept + C::Q_BYTES, q_rows(p.dout, p.at_dout, e.head) + row0 * p.at_dout.row, p.at_dout.row, e.seq_q - row0, value_dim());
    copy<C::BN>(passing, k_rows(p.k, p.at_k) + column0 * p.at_k.row, p.at_k.row, e.seq_k - column0, p.head_dim);
    copy<C::BN>(passing + C::TILE_BYTES, k_rows(p.v, p.at_v) + column0 * p.at_v.row, p.at_v.row, e.seq_k - column0, value_dim());
    landed();
    multiply_turned<C>(score, kept, passing, warp_row, lane);
    multiply_turned<C>(slope, kept + C::Q_BYTES, passing + C::TILE_BYTES, warp_row, lane);
    load_numbers(row0);
    weigh<false>(e.head, row0, column0);
  }

  __device__ __forceinline__ void work(int row0, int column) {
    const int rows = C::KEYS ? e.seq_k : e.seq_q;
    sync_block();
    clear_margins(share_of_thread<C>(thread, p.head_dim));
    const char* x1 = C::KEYS ? k_rows(p.k, p.at_k) : q_rows(p.q, p.at_q, e.head);
    const char* x2 = C::KEYS ? k_rows(p.v, p.at_v) : q_rows(p.dout, p.at_dout, e.head);
    const i64 row1 = C::KEYS ? p.at_k.row : p.at_q.row, row2 = C::KEYS ? p.at_v.row : p.at_dout.row;
    copy<C::BM>(kept, x1 + row0 * row1, row1, rows - row0, p.head_dim);
    copy<C::BM>(kept + C::Q_BYTES, x2 + row0 * row2, row2, rows - row0, value_dim());
#pragma unroll
    for (int j = 0; j < C::NOUT; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        first[j][i] = 0.0f;
        if constexpr (C::KEYS) second[j][i] = 0.0f;
      }
    if constexpr (C::KEYS) {
      for (int head = e.head; head < e.head + (int)p.group.divisor; head++) pass(head, row0, column);
      write((char*)k_rows(p.dk, p.at_dk), p.at_dk.row, row0, rows, column, first, p.scale, p.head_dim);
      float factor = 1.0f;
      if constexpr (C::DROPS) factor = dropout_of(p).keep_scale;
      write((char*)k_rows(p.dv, p.at_dv), p.at_dv.row, row0, rows, column, second, factor, value_dim());
    } else {
      load_numbers(row0);
      pass(e.head, row0, column);
      write((char*)q_rows(p.dq, p.at_dq, e.head), p.at_dq.row, row0, rows, column, first, p.scale, p.head_dim);
    }
  }
};

// The gradient of a mask that is added to the scores, in float32, at `dq`: the slopes of the scores, summed over the batches and
// the heads that share the mask, which are those whose stride is zero, in this order. Grid: (row tiles of every mask, key tiles).
template <class C>
DEVICE void backward_bias(const BackwardParams& p) {
  SHARED_MEMORY(memory);
  const int heads = (int)p.heads.divisor, batches = p.all_heads / heads;
  const int own = divide((int)blockIdx.x, p.tiles), masks_of_batch = p.at_dq.head ? heads : 1;
  const int row0 = ((int)blockIdx.x - own * (int)p.tiles.divisor) * C::BM, column0 = (int)blockIdx.y * C::BN;
  const int batch = own / masks_of_batch, head = own - batch * masks_of_batch;
  PairBlock<C> block = {p};
  Extent& e = block.e;
  e.q_start = e.k_start = 0, e.seq_q = p.seq_q, e.seq_k = p.seq_k, e.below = p.below, e.above = p.above, e.level = p.level;
  block.kept = shared_address(memory), block.passing = block.kept + 2 * C::Q_BYTES;
  block.thread = (int)threadIdx.x, block.lane = block.thread & 31, block.warp_row = (block.thread >> 5) * 16;
  if constexpr (C::DROPS) block.key = key_of_dropout(dropout_of(p));
  block.clear_margins(share_of_thread<C>(block.thread, p.head_dim));
  float sum[C::NS][4] = {};
  int first = 0;
  const int last = block.range(row0, &first);
  if ((int)blockIdx.y >= first && (int)blockIdx.y < last)
    for (e.batch = batch; e.batch < (p.at_dq.batch ? batch + 1 : batches); e.batch++)
      for (e.head = head; e.head < (p.at_dq.head ? head + 1 : heads); e.head++) {
        e.kv_head = divide(e.head, p.group);
        block.slopes_of(row0, column0);
#pragma unroll
        for (int j = 0; j < C::NS; j++)
#pragma unroll
          for (int i = 0; i < 4; i++) sum[j][i] += block.slope[j][i];
      }
  char* to = p.dq + batch * p.at_dq.batch + head * p.at_dq.head;
#pragma unroll
  for (int j = 0; j < C::NS; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int row = row0 + block.warp_row + i / 2 * 8 + (block.lane >> 2), column = column0 + j * 8 + 2 * (block.lane & 3) + i % 2;
      if (row < e.seq_q && column < e.seq_k) ((float*)(to + row * p.at_dq.row))[column] = sum[j][i];
    }
}

// Grid: (tiles of every head of every sequence, D / OUT). If a sequence is longer than the host was told, the same blocks
// compute its other tiles.
template <class C>
DEVICE void backward_pair(const BackwardParams& p) {
  SHARED_MEMORY(memory);
  const int item = (int)blockIdx.x, head_of_all = divide(item, p.tiles), tile = item - head_of_all * (int)p.tiles.divisor;
  const Divisor& per_batch = C::KEYS ? p.kv_heads : p.heads;
  PairBlock<C> block = {p};
  Extent& e = block.e;
  e.batch = divide(head_of_all, per_batch);
  const int head = head_of_all - e.batch * (int)per_batch.divisor;
  e.kv_head = C::KEYS ? head : divide(head, p.group);
  e.head = C::KEYS ? head * (int)p.group.divisor : head;
  e.q_start = p.q_starts ? p.q_starts[e.batch] : 0, e.k_start = p.k_starts ? p.k_starts[e.batch] : 0;
  e.seq_q = p.q_starts ? p.q_starts[e.batch + 1] - e.q_start : p.seq_q;
  e.seq_k = p.k_starts ? p.k_starts[e.batch + 1] - e.k_start : p.seq_k;
  const int moved = p.align_ends ? e.seq_k - e.seq_q : 0;
  e.below = p.below + moved, e.above = p.above + moved, e.level = p.level + moved;
  block.kept = shared_address(memory), block.passing = block.kept + 2 * C::Q_BYTES;
  block.thread = (int)threadIdx.x, block.lane = block.thread & 31, block.warp_row = (block.thread >> 5) * 16;
  if constexpr (C::DROPS) block.key = key_of_dropout(dropout_of(p));
  for (int row0 = tile * C::BM; row0 < (C::KEYS ? e.seq_k : e.seq_q); row0 += (int)p.tiles.divisor * C::BM)
    block.work(row0, (int)blockIdx.y * C::OUT);
}
