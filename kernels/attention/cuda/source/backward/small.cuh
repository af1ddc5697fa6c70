// The backward pass over few keys, in one launch and without a workspace. A block has one of two roles: it keeps a tile of keys
// and computes dK and dV, or it keeps a tile of queries and computes dQ. Each computes the weights again (seven products
// instead of five), so blocks neither wait for each other nor add up in memory: every element is written once, in a fixed
// order.
//
// A block has ROW_WARPS by GROUPS warps. The columns of the scores come in tiles, and each group processes a different part of
// each tile. At the end the results of the groups are added up in shared memory. The sums of dout * out are computed from tiles
// of both as they arrive.
#pragma once
#include "backward/products.cuh"
#include "small/exchange.cuh"

template <class T_, int D_, int ROW_WARPS_, int GROUPS_, int COLUMNS_, int STAGES_>
struct BackwardSmall {
  typedef T_ T;
  static constexpr int D = D_, ROW_WARPS = ROW_WARPS_, GROUPS = GROUPS_, COLUMNS = COLUMNS_, STAGES = STAGES_;
  static constexpr int ROWS = ROW_WARPS * 16, TILE = COLUMNS * GROUPS, THREADS = ROW_WARPS * GROUPS * 32;
  static constexpr int ROW_BYTES = D * 2, CHUNKS = D / 8, ROWS_PER_PASS = THREADS / CHUNKS;
  static constexpr int KQ = D / 16, NS = COLUMNS / 8, KV = COLUMNS / 16, NOUT = D / 8;
  static constexpr int KEPT_BYTES = ROWS * ROW_BYTES, TILE_BYTES = TILE * ROW_BYTES;
  static_assert(STAGES >= 2 && COLUMNS % 16 == 0 && D % 64 == 0, "two stages at least, COLUMNS a multiple of 16, D of 64");
  static_assert(ROWS % ROWS_PER_PASS == 0 && TILE % ROWS_PER_PASS == 0, "a pass of copies must divide both tiles");
  static_assert(ROWS_PER_PASS % 8 == 0 && CHUNKS <= 32, "a pass must have a multiple of 8 rows, and a row at most 32 chunks");
};

// A block of one of the roles. If KEYS, it keeps K and V, and tiles of Q, dout and out come in; else it keeps Q, dout and out,
// and tiles of K and V come in.
template <class C, bool KEYS>
struct SmallRole {
  typedef typename C::T T;
  static constexpr int KEPT = KEYS ? 2 : 3, PARTS = KEYS ? 3 : 2, STAGE_BYTES = PARTS * C::TILE_BYTES;
  static constexpr int STAT_ROWS = KEYS ? C::TILE : C::ROWS, STATS = STAT_ROWS / C::ROWS_PER_PASS;
  static constexpr int UNITS = C::NOUT * (KEYS ? 2 : 1), EVEN = UNITS / C::GROUPS, OWN = EVEN > 4 ? EVEN : 4;
  static constexpr int LANES = C::ROW_WARPS * 32;
  static constexpr int STAGES_AT = KEPT * C::KEPT_BYTES, STATS_AT = STAGES_AT + C::STAGES * STAGE_BYTES;
  static constexpr int LOOP_BYTES = STATS_AT + (KEYS ? C::STAGES : 1) * STAT_ROWS * 8;
  static constexpr int EXCHANGE_BYTES = C::GROUPS == 1 ? 0 : UNITS * C::GROUPS * LANES * 16;
  static constexpr int BYTES = LOOP_BYTES > EXCHANGE_BYTES ? LOOP_BYTES : EXCHANGE_BYTES;

  const BackwardParams& p;
  u32 memory;
  Share share;
  int lane, group, warp_row;  // the number of the group; the first of the warp's rows within the tile
  int batch, kv_head, first_head, row0;
  int low[2], high[2];        // for each of the lane's rows: the columns that it sees
  int warp_low, warp_high;    // the columns that any of the warp's rows sees
  int first_tile, tiles, heads;
  int loaded_head, loaded_tile;
  float lse[STATS], less[STATS];

  float score[C::NS][4], slope[C::NS][4];
  float first[C::NOUT][4];               // dK, or dQ
  float second[KEYS ? C::NOUT : 1][4];   // dV
  float shift[2], delta[2];              // of this lane's rows, if the block keeps queries

  __device__ __forceinline__ const char* q_rows(const char* base, const Strides& at, int head) const {
    return base + batch * at.batch + (first_head + head) * at.head;
  }
  __device__ __forceinline__ const char* k_rows(const char* base, const Strides& at) const {
    return base + batch * at.batch + kv_head * at.head;
  }
  __device__ __forceinline__ int rows() const { return KEYS ? p.seq_k : p.seq_q; }
  __device__ __forceinline__ int columns() const { return KEYS ? p.seq_q : p.seq_k; }
  __device__ __forceinline__ int lowest(int row) const { return max(KEYS ? row - p.above : row + p.below, 0); }
  __device__ __forceinline__ int highest(int row) const { return min((KEYS ? row - p.below : row + p.above) + 1, columns()); }

  template <int ROWS>
  __device__ __forceinline__ void copy(u32 tile, const char* source, i64 row_bytes, int left) const {
    if (!share.valid) return;
#pragma unroll
    for (int i = 0; i < ROWS / C::ROWS_PER_PASS; i++) {
      const int row = share.row0 + i * C::ROWS_PER_PASS;
      copy_async_or_zero(tile + swizzled<C>(row, share.chunk), source + row * row_bytes + share.chunk * 16, row < left);
    }
  }
  // Zeroes the chunks beyond the head dimension, which copies do not write.
  __device__ __forceinline__ void clear() const {
    if (share.valid) return;
    for (int row = share.row0; row < KEPT * C::ROWS + C::STAGES * PARTS * C::TILE; row += C::ROWS_PER_PASS)
      store_shared(memory + swizzled<C>(row, share.chunk), Chunk{0, 0, 0, 0});
  }
  __device__ __forceinline__ void copy_q(u32 tile, const char* base, const Strides& at, int head, int row) const {
    copy<KEYS ? C::TILE : C::ROWS>(tile, q_rows(base, at, head) + row * at.row, at.row, p.seq_q - row);
  }
  __device__ __forceinline__ void copy_k(u32 tile, const char* base, const Strides& at, int row) const {
    copy<KEYS ? C::ROWS : C::TILE>(tile, k_rows(base, at) + row * at.row, at.row, p.seq_k - row);
  }
  __device__ __forceinline__ void copy_kept() const {
    if constexpr (KEYS) {
      copy_k(memory, p.k, p.at_k, row0);
      copy_k(memory + C::KEPT_BYTES, p.v, p.at_v, row0);
    } else {
      copy_q(memory, p.q, p.at_q, 0, row0);
      copy_q(memory + C::KEPT_BYTES, p.dout, p.at_dout, 0, row0);
      copy_q(memory + 2 * C::KEPT_BYTES, p.out, p.at_out, 0, row0);
    }
  }
  // Copies the next tile of columns, if there is one, over all heads of the group.
  __device__ __forceinline__ void copy_next(int stage) {
    if (loaded_head < heads) {
      const u32 to = memory + STAGES_AT + stage * STAGE_BYTES;
      const int row = loaded_tile * C::TILE;
      if constexpr (KEYS) {
        copy_q(to, p.q, p.at_q, loaded_head, row);
        copy_q(to + C::TILE_BYTES, p.dout, p.at_dout, loaded_head, row);
        copy_q(to + 2 * C::TILE_BYTES, p.out, p.at_out, loaded_head, row);
      } else {
        copy_k(to, p.k, p.at_k, row);
        copy_k(to + C::TILE_BYTES, p.v, p.at_v, row);
      }
      if (++loaded_tile == first_tile + tiles) loaded_tile = first_tile, loaded_head++;
    }
    copy_async_commit();
  }

  // Starts to load the log-sum-exps (and their gradients) of queries from `query` on, which this thread writes later.
  __device__ __forceinline__ void fetch_numbers(int head, int query) {
#pragma unroll
    for (int i = 0; i < STATS; i++) {
      const int row = query + share.row0 + i * C::ROWS_PER_PASS;
      const bool mine = share.chunk == 0 && row < p.seq_q;
      const i64 at = (i64)(batch * (int)p.heads.divisor + first_head + head) * p.seq_q + row;
      lse[i] = mine ? p.lse[at] : MINUS_INFINITY;
      less[i] = mine && p.dlse ? p.dlse[at] : 0.0f;
    }
  }
  // Writes each row's shift (its log-sum-exp in base 2, +inf where it sees nothing) and delta, from chunks that this thread has
  // copied.
  __device__ __forceinline__ void write_numbers(u32 to, u32 dout_tile, u32 out_tile) const {
#pragma unroll
    for (int i = 0; i < STATS; i++) {
      const int row = share.row0 + i * C::ROWS_PER_PASS;
      const u32 at = swizzled<C>(row, share.chunk);
      float sum = dot<T>(load_shared(dout_tile + at), load_shared(out_tile + at));
#pragma unroll
      for (int step = C::CHUNKS / 2; step; step /= 2) sum += shuffle_xor(sum, step);
      if (share.chunk == 0)
        store_shared(to + row * 8, Pair{lse[i] == MINUS_INFINITY ? -MINUS_INFINITY : lse[i] * 1.4426950408889634f, sum - less[i]});
    }
  }

  // Turns scores into weights, and the products with dout into slopes of the scores.
  __device__ __forceinline__ void weigh(int column0, u32 stats) {
#pragma unroll
    for (int j = 0; j < C::NS; j++) {
      const int in_group = j * 8 + 2 * (lane & 3);
      float of[2] = {shift[0], shift[1]}, less_of[2] = {delta[0], delta[1]};  // of two columns, or of two rows
      if constexpr (KEYS) {
        const Chunk numbers = load_shared(stats + (group * C::COLUMNS + in_group) * 8);
        of[0] = __int_as_float((int)numbers.x), less_of[0] = __int_as_float((int)numbers.y);
        of[1] = __int_as_float((int)numbers.z), less_of[1] = __int_as_float((int)numbers.w);
      }
#pragma unroll
      for (int r = 0; r < 2; r++)
#pragma unroll
        for (int x = 0; x < 2; x++) {
          const int column = column0 + in_group + x, of_which = KEYS ? x : r;
          float &s = score[j][2 * r + x], &d = slope[j][2 * r + x];
          s = column >= low[r] && column < high[r] ? exp2_approx(fused(s, p.scale_log2, -of[of_which])) : 0.0f;
          d = s == 0.0f ? 0.0f : s * (d - less_of[of_which]);
        }
    }
  }

  __device__ __forceinline__ void compute(int tile, u32 stage, u32 stats) {
    const int column0 = tile * C::TILE + group * C::COLUMNS;
    if (column0 >= warp_high || column0 + C::COLUMNS <= warp_low) return;
    const u32 passing = stage + group * C::COLUMNS * C::ROW_BYTES;
    multiply_turned<C>(score, memory, passing, warp_row, lane);
    multiply_turned<C>(slope, memory + C::KEPT_BYTES, passing + C::TILE_BYTES, warp_row, lane);
    weigh(column0, stats);
    if constexpr (KEYS) accumulate<C>(second, score, passing + C::TILE_BYTES, 0, lane);
    accumulate<C>(first, slope, passing, 0, lane);
  }

  __device__ __forceinline__ u32 exchanged(int unit, int of_group) const {
    return memory + ((unit * C::GROUPS + of_group) * LANES + (warp_row * 2 + lane)) * 16;
  }
  __device__ __forceinline__ float& result(int unit, int i) {
    if constexpr (KEYS)
      if (unit >= C::NOUT) return second[unit - C::NOUT][i];
    return first[unit][i];
  }
  // Four units are 32 columns; each lane of a quad writes eight of them.
  __device__ __forceinline__ void write(const float (&mine)[OWN][4], int from) {
#pragma unroll
    for (int four = 0; four < OWN; four += 4) {
      const bool is_second = from + four >= C::NOUT;
      const Strides& at = KEYS ? is_second ? p.at_dv : p.at_dk : p.at_dq;
      char* const base = (char*)(KEYS ? k_rows(is_second ? p.dv : p.dk, at) : q_rows(p.dq, at, 0));
      const float factor = is_second ? 1.0f : p.scale;
      const int column = (from + four - (is_second ? C::NOUT : 0) + (lane & 3)) * 8;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int row = row0 + warp_row + r * 8 + (lane >> 2);
        u32 words[4];
#pragma unroll
        for (int j = 0; j < 4; j++) words[j] = pack<T>(mine[four + j][2 * r] * factor, mine[four + j][2 * r + 1] * factor);
        const Chunk chunk = gathered(Chunk{words[0], words[1], words[2], words[3]}, lane);
        if (row < rows() && column < p.head_dim) *(Chunk*)(base + row * at.row + column * 2) = chunk;
      }
    }
  }
  __device__ __forceinline__ void finish() {
    float mine[OWN][4];
    if constexpr (C::GROUPS == 1) {
#pragma unroll
      for (int u = 0; u < OWN; u++)
#pragma unroll
        for (int i = 0; i < 4; i++) mine[u][i] = result(u, i);
    } else {
      sync_block();
#pragma unroll
      for (int u = 0; u < UNITS; u++) {
        if (u / OWN == group) {
#pragma unroll
          for (int i = 0; i < 4; i++) mine[u % OWN][i] = result(u, i);
        } else {
          const u32 words[4] = {(u32)__float_as_int(result(u, 0)), (u32)__float_as_int(result(u, 1)),
                                (u32)__float_as_int(result(u, 2)), (u32)__float_as_int(result(u, 3))};
          store_shared(exchanged(u, group), Chunk{words[0], words[1], words[2], words[3]});
        }
      }
      sync_block();
      if (group * OWN >= UNITS) return;
#pragma unroll
      for (int other = 1; other < C::GROUPS; other++)
#pragma unroll
        for (int u = 0; u < OWN; u++) {
          const Chunk more = load_shared(exchanged(group * OWN + u, (group + other) % C::GROUPS));
          mine[u][0] += __int_as_float((int)more.x), mine[u][1] += __int_as_float((int)more.y);
          mine[u][2] += __int_as_float((int)more.z), mine[u][3] += __int_as_float((int)more.w);
        }
    }
    write(mine, group * OWN);
  }

  __device__ __forceinline__ void loop() {
    const u32 stats = memory + STATS_AT;
    int head = 0, tile = first_tile, stage = 0;
    loaded_head = 0, loaded_tile = first_tile;
    clear();
    copy_kept();
#pragma unroll
    for (int i = 0; i < C::STAGES - 1; i++) copy_next(i);
    fetch_numbers(0, KEYS ? first_tile * C::TILE : row0);
    for (int left = heads * tiles; left > 0; left--) {
      const u32 at = memory + STAGES_AT + stage * STAGE_BYTES, stats_at = KEYS ? stats + stage * STAT_ROWS * 8 : stats;
      const int now = tile;
      copy_async_wait<C::STAGES - 2>();
      if constexpr (KEYS)
        write_numbers(stats_at, at + C::TILE_BYTES, at + 2 * C::TILE_BYTES);
      else if (tile == first_tile)
        write_numbers(stats_at, memory + C::KEPT_BYTES, memory + 2 * C::KEPT_BYTES);
      sync_block();  // the tile is there for all, and all have done with the one before, whose place is the next to be filled
      copy_next(stage == 0 ? C::STAGES - 1 : stage - 1);
      if (++tile == first_tile + tiles) tile = first_tile, head++;
      if constexpr (KEYS) {
        if (left > 1) fetch_numbers(head, tile * C::TILE);
      } else if (now == first_tile) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const Pair numbers = load_shared_pair(stats + (warp_row + r * 8 + (lane >> 2)) * 8);
          shift[r] = numbers.x, delta[r] = numbers.y;
        }
      }
      compute(now, at, stats_at);
      stage = stage == C::STAGES - 1 ? 0 : stage + 1;
    }
  }

  // Computes one tile of kept rows. `head` counts the heads of K, or of Q, over all batches.
  __device__ __forceinline__ void run(int head, int kept_tile) {
    const Divisor& per_batch = KEYS ? p.kv_heads : p.heads;
    const int thread = (int)threadIdx.x, warp = thread >> 5;
    share = share_of_thread<C>(thread, p.head_dim);
    lane = thread & 31, group = warp / C::ROW_WARPS, warp_row = warp % C::ROW_WARPS * 16;
    batch = divide(head, per_batch);
    head -= batch * (int)per_batch.divisor;
    kv_head = KEYS ? head : divide(head, p.group), first_head = KEYS ? head * (int)p.group.divisor : head;
    heads = KEYS ? (int)p.group.divisor : 1;
    row0 = kept_tile * C::ROWS;
    const int last_row = min(row0 + C::ROWS, rows()) - 1, low_of_all = lowest(row0), high_of_all = highest(last_row);
    first_tile = low_of_all / C::TILE;
    tiles = high_of_all > low_of_all ? (high_of_all + C::TILE - 1) / C::TILE - first_tile : 0;
    const int warp_first = row0 + warp_row;
    warp_low = lowest(warp_first), warp_high = warp_first < rows() ? highest(warp_first + 15) : 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = warp_first + r * 8 + (lane >> 2);
      low[r] = lowest(row), high[r] = row < rows() ? highest(row) : 0;
      shift[r] = delta[r] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < C::NOUT; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        first[j][i] = 0.0f;
        if constexpr (KEYS) second[j][i] = 0.0f;
      }
    if (tiles > 0) loop();
    finish();
  }
};

template <class C>
struct SmallBytes {
  static constexpr int KEYS = SmallRole<C, true>::BYTES, QUERIES = SmallRole<C, false>::BYTES;
  static constexpr int value = KEYS > QUERIES ? KEYS : QUERIES;
};

// Grid: p.items blocks that keep keys, p.tiles for each head of K; after them p.query_tiles blocks for each head of Q.
template <class C>
DEVICE void backward_small(const BackwardParams& p) {
  SHARED_MEMORY(memory);
  const int item = (int)blockIdx.x;
  if (item < p.items) {
    SmallRole<C, true> role = {p, shared_address(memory)};
    const int head = divide(item, p.tiles);
    role.run(head, item - head * (int)p.tiles.divisor);
  } else {
    SmallRole<C, false> role = {p, shared_address(memory)};
    const u32 rest = (u32)(item - p.items), tiles = (u32)p.query_tiles;
    role.run((int)(rest / tiles), (int)(rest % tiles));
  }
}
