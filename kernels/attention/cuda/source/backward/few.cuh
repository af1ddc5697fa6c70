// The backward pass for Hopper where all blocks run at the same time: one launch, no workspace, the same bits in every run.
//
// As in small.cuh, a block has one of two roles: it keeps a tile of keys and computes dK and dV, or it keeps a tile of queries
// and computes dQ. It keeps the rows of the scores, so the accumulators, packed to 16 bits, are the operands of the next
// products: no scores go through shared memory, and blocks add up nothing in memory. As in hopper.cuh, one warp moves data by
// tensor copies and two warpgroups multiply by wgmma. Two more warps compute the sums of dout * out from tiles that have
// landed.
//
// A block keeps 128 rows, 64 for each warpgroup; or 64 rows, for which the warpgroups take alternate tiles and add their
// results at the end, each element in a fixed order.
#pragma once
#include "backward/instructions.cuh"
#include "backward/prepare.cuh"
#include "hopper/wgmma.cuh"

template <class T_, int D_, int ROWS_, bool CAUSAL_>
struct BackwardFew {
  typedef T_ T;
  static constexpr int D = D_, ROWS = ROWS_, TILE = 64 * 128 / D;
  static constexpr bool CAUSAL = CAUSAL_, IN_TURN = ROWS == 64;
  static constexpr int STAGES = IN_TURN ? 4 : 3, WARPGROUP_THREADS = 128, WARPGROUP_ROWS = 64, HELPERS = 2, BOX = 64;
  static constexpr int CHUNK_COLUMNS = 64, CHUNK_ROW_BYTES = 128, CHUNKS = D / CHUNK_COLUMNS, UNITS = 16;
  static constexpr int KEPT_CHUNK_BYTES = ROWS * CHUNK_ROW_BYTES, KEPT_BYTES = CHUNKS * KEPT_CHUNK_BYTES;
  static constexpr int TILE_CHUNK_BYTES = TILE * CHUNK_ROW_BYTES, TILE_BYTES = CHUNKS * TILE_CHUNK_BYTES;
  static constexpr int STAGE_BYTES = 3 * TILE_BYTES, NUMBERS = ROWS > TILE ? ROWS : TILE, NUMBER_BYTES = NUMBERS * 4;
  // Offsets in shared memory: K and V, or Q and dout; then stages with tiles of Q, dout and out, or of K and V; then shifts and
  // deltas.
  static constexpr int FIRST = 0, SECOND = KEPT_BYTES, PASSING = 2 * KEPT_BYTES, SHIFT = PASSING + STAGES * STAGE_BYTES;
  static constexpr int BARRIERS = 4 + 5 * STAGES, DELTA = SHIFT + STAGES * NUMBER_BYTES, WAITS = DELTA + STAGES * NUMBER_BYTES;
  static constexpr int BYTES = WAITS + BARRIERS * 8;
  static constexpr int READERS = IN_TURN ? 4 : 8, BOTH = 1, PAIR_THREADS = 256;
  static constexpr int MOVER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
  static_assert(2 * KEPT_BYTES <= STAGES * STAGE_BYTES, "the results must fit into the memory of the tiles");
};

template <class C>
struct FewBarriers {
  u32 base;
  __device__ __forceinline__ u32 first() const { return base; }
  __device__ __forceinline__ u32 second() const { return base + 8; }
  __device__ __forceinline__ u32 out() const { return base + 16; }
  __device__ __forceinline__ u32 numbers() const { return base + 24; }
  __device__ __forceinline__ u32 x(int stage) const { return base + 32 + 8 * stage; }
  __device__ __forceinline__ u32 y(int stage) const { return base + 32 + 8 * (C::STAGES + stage); }
  __device__ __forceinline__ u32 out(int stage) const { return base + 32 + 8 * (2 * C::STAGES + stage); }
  __device__ __forceinline__ u32 numbers(int stage) const { return base + 32 + 8 * (3 * C::STAGES + stage); }
  __device__ __forceinline__ u32 empty(int stage) const { return base + 32 + 8 * (4 * C::STAGES + stage); }
  __device__ __forceinline__ void init() const {
    barrier_init(first(), 1);
    barrier_init(second(), 1);
    barrier_init(out(), 1);
    barrier_init(numbers(), C::HELPERS);
    for (int stage = 0; stage < C::STAGES; stage++) {
      barrier_init(x(stage), 1);
      barrier_init(y(stage), 1);
      barrier_init(out(stage), 1);
      barrier_init(numbers(stage), C::HELPERS);
      barrier_init(empty(stage), C::READERS);
    }
    barrier_init_done();
  }
};

// A place in the ring of stages, and the number of heads of the group still to process, in one register.
template <class C>
struct FewPlace {
  u32 word;
  __device__ __forceinline__ int stage() const { return (int)(word & 3); }
  __device__ __forceinline__ u32 parity() const { return word >> 2 & 1; }
  __device__ __forceinline__ void next() { word = stage() == C::STAGES - 1 ? (word & ~3u) ^ 4 : word + 1; }
  __device__ __forceinline__ void set_heads(int heads) { word = (word & 7) | (u32)heads << 3; }
  __device__ __forceinline__ bool has_heads() const { return word >= 8; }
  __device__ __forceinline__ void next_head() { word -= 8; }
};

// The rows that a block keeps, and the tiles first .. end - 1 that it processes. The tiles on one side of `edge` are masked.
struct FewTile {
  int batch, kv_head, first_head, heads, row0, first, end, edge;
};

template <class C, bool KEYS>
DEVICE FewTile few_tile_of(const BackwardParams& p) {
  FewTile t;
  if constexpr (KEYS) {
    const int item = block_again(), of_all = divide(item, p.tiles);
    t.row0 = (item - of_all * (int)p.tiles.divisor) * C::ROWS;
    t.batch = divide(of_all, p.kv_heads), t.kv_head = of_all - t.batch * (int)p.kv_heads.divisor;
    t.heads = (int)p.group.divisor, t.first_head = t.kv_head * t.heads;
    t.first = 0, t.edge = 0, t.end = (p.seq_q + C::TILE - 1) / C::TILE;
    if (C::CAUSAL) {
      const int seen_from = max(t.row0 - p.above, 0), free_from = max(t.row0 + C::ROWS - 1 - p.above, 0);
      t.first = min(seen_from / C::TILE, t.end), t.edge = min((free_from + C::TILE - 1) / C::TILE, t.end);
    }
  } else {
    const u32 item = (u32)(block_again() - p.items), tiles = (u32)p.query_tiles;
    const int of_all = (int)(item / tiles);
    t.row0 = (int)(item % tiles) * C::ROWS;
    t.batch = divide(of_all, p.heads), t.first_head = of_all - t.batch * (int)p.heads.divisor;
    t.kv_head = divide(t.first_head, p.group), t.heads = 1;
    t.first = 0, t.edge = p.seq_k / C::TILE, t.end = (p.seq_k + C::TILE - 1) / C::TILE;
    if (C::CAUSAL) {
      const int sees_all = max(t.row0 + p.above + 1, 0), sees_any = max(min(t.row0 + C::ROWS, p.seq_q) + p.above, 0);
      t.edge = min(t.edge, sees_all / C::TILE), t.end = min(t.end, (sees_any + C::TILE - 1) / C::TILE);
    }
  }
  return t;
}

// The thread that starts all copies.
template <class C, bool KEYS>
struct FewProducer {
  const BackwardParams& p;
  const TensorMap &q, &k, &v, &out, &dout;
  FewBarriers<C> barriers;
  u32 memory;

  template <int ROWS>
  __device__ __forceinline__ void copy(u32 to, int chunk_bytes, const TensorMap& map, u32 full, int row, int head, int batch) const {
    barrier_arrive_expecting(full, C::CHUNKS * ROWS * C::CHUNK_ROW_BYTES);
#pragma unroll 1
    for (int chunk = 0; chunk < C::CHUNKS; chunk++)
#pragma unroll 1
      for (int box = 0; box < ROWS / C::BOX; box++)
        copy_box(memory + to + chunk * chunk_bytes + box * (C::BOX * C::CHUNK_ROW_BYTES), map, full, chunk * C::CHUNK_COLUMNS,
                 row + box * C::BOX, head, batch);
  }
  // Copies what the block keeps. The place of the tile is computed again here, so that it takes no registers in the loop.
  __device__ __forceinline__ void copy_kept(u32 to, int chunk_bytes, const TensorMap& map, u32 full) const {
    const FewTile t = few_tile_of<C, KEYS>(p);
    copy<C::ROWS>(to, chunk_bytes, map, full, t.row0, KEYS ? t.kv_head : t.first_head, t.batch);
  }
  __device__ __forceinline__ void run(const FewTile& t) const {
    FewPlace<C> place = {4};  // the phases before the first count as ended
    bool due = true;
    int head = KEYS ? t.first_head : t.kv_head;
    place.set_heads(t.heads);
#pragma unroll 1
    for (; place.has_heads(); place.next_head(), head++)
#pragma unroll 1
      for (int n = t.first; n < t.end; n++) {
        const int stage = place.stage(), to = C::PASSING + stage * C::STAGE_BYTES, row = n * C::TILE;
        if (due) copy_kept(C::FIRST, C::KEPT_CHUNK_BYTES, KEYS ? k : q, barriers.first());
        barrier_wait(barriers.empty(stage), place.parity());
        copy<C::TILE>(to, C::TILE_CHUNK_BYTES, KEYS ? q : k, barriers.x(stage), row, head, t.batch);
        if (due) copy_kept(C::SECOND, C::KEPT_CHUNK_BYTES, KEYS ? v : dout, barriers.second());
        copy<C::TILE>(to + C::TILE_BYTES, C::TILE_CHUNK_BYTES, KEYS ? dout : v, barriers.y(stage), row, head, t.batch);
        if constexpr (KEYS)
          copy<C::TILE>(to + 2 * C::TILE_BYTES, C::TILE_CHUNK_BYTES, out, barriers.out(stage), row, head, t.batch);
        else if (due)  // where the tiles of K and V leave room
          copy_kept(C::PASSING + 2 * C::TILE_BYTES, C::STAGE_BYTES, out, barriers.out());
        due = false;
        place.next();
      }
  }
};

// The warps that compute two numbers for each row of Q: the shift, which is the log-sum-exp in base 2 (+inf where the row sees
// nothing), and delta.
template <class C, bool KEYS>
struct FewHelper {
  typedef typename C::T T;
  const BackwardParams& p;
  FewBarriers<C> barriers;
  u32 memory;
  int helper;  // this thread's number among the threads of these warps

  static constexpr int THREADS = C::HELPERS * 32, ROWS = KEYS ? C::TILE : C::ROWS, OWN = ROWS / THREADS;

  __device__ __forceinline__ void fetch(float (&lse)[OWN], float (&less)[OWN], int head_of_all, int query0) const {
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      const int query = query0 + helper + i * THREADS;
      const int at = head_of_all * p.seq_q + query;
      lse[i] = query < p.seq_q ? p.lse[at] : MINUS_INFINITY;
      less[i] = query < p.seq_q && p.dlse ? p.dlse[at] : 0.0f;
    }
  }
  __device__ __forceinline__ void write(const float (&lse)[OWN], const float (&less)[OWN], int stage, u32 dout, int dout_chunk_bytes,
                                        u32 out, int out_chunk_bytes) const {
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      const int row = helper + i * THREADS;
      float sum = 0.0f;
#pragma unroll 1
      for (int chunk = 0; chunk < C::CHUNKS; chunk++)
#pragma unroll 1
        for (int eight = 0; eight < 8; eight++) {
          const u32 at = row * C::CHUNK_ROW_BYTES + ((eight ^ (row & 7)) << 4);
          sum += dot<T>(load_shared(memory + out + chunk * out_chunk_bytes + at), load_shared(memory + dout + chunk * dout_chunk_bytes + at));
        }
      const u32 to = memory + stage * C::NUMBER_BYTES + turned(row) * 4;
      const float shift = lse[i] == MINUS_INFINITY ? -MINUS_INFINITY : lse[i] * 1.4426950408889634f;
      store_shared(to + C::SHIFT, (u32)__float_as_int(shift));
      store_shared(to + C::DELTA, (u32)__float_as_int(sum - less[i]));
    }
    sync_warp();
  }
  __device__ __forceinline__ void run(const FewTile& t) const {
    float lse[OWN], less[OWN];
      if constexpr (KEYS) {
      FewPlace<C> place = {0};
#pragma unroll 1
      for (place.set_heads((int)p.group.divisor); place.has_heads(); place.next_head())
#pragma unroll 1
        for (int n = t.first; n < t.end; n++) {
          const FewTile again = few_tile_of<C, KEYS>(p);  // computed again, so that it takes no registers in the loop
          const u32 tile = C::PASSING + place.stage() * C::STAGE_BYTES;
          const int next_group = again.batch * (int)p.heads.divisor + again.first_head + (int)p.group.divisor;
          fetch(lse, less, next_group - (int)(place.word >> 3), n * C::TILE);
          barrier_wait(barriers.y(place.stage()), place.parity());
          barrier_wait(barriers.out(place.stage()), place.parity());
          write(lse, less, place.stage(), tile + C::TILE_BYTES, C::TILE_CHUNK_BYTES, tile + 2 * C::TILE_BYTES, C::TILE_CHUNK_BYTES);
          if ((helper & 31) == 0) barrier_arrive(barriers.numbers(place.stage()));
          place.next();
        }
    } else if (t.first < t.end) {
      fetch(lse, less, t.batch * (int)p.heads.divisor + t.first_head, t.row0);
      barrier_wait(barriers.second(), 0);
      barrier_wait(barriers.out(), 0);
      write(lse, less, 0, C::SECOND, C::KEPT_CHUNK_BYTES, C::PASSING + 2 * C::TILE_BYTES, C::STAGE_BYTES);
      if ((helper & 31) == 0) barrier_arrive(barriers.numbers());
    }
  }
};

template <class C, bool KEYS>
struct FewConsumer {
  typedef typename C::T T;
  static constexpr int SCORES = C::TILE / 2, RESULTS = C::D / 2;
  const BackwardParams& p;
  FewBarriers<C> barriers;
  u32 memory;
  int warpgroup;
  float first[RESULTS], second[KEYS ? RESULTS : 1];  // dK and dV, or dQ
  float shift[2], delta[2];                          // of the lane's rows, if the block keeps queries

  // These are computed again where they are needed, so that they take no registers in the loop.
  __device__ __forceinline__ int lane() const { return thread_again() & 31; }
  __device__ __forceinline__ int warp() const { return thread_again() >> 5 & 3; }
  // The first of the lane's two rows, counted from the block's first row.
  __device__ __forceinline__ int row() const { return (C::IN_TURN ? 0 : warpgroup * C::WARPGROUP_ROWS) + warp() * 16 + (lane() >> 2); }

  // Starts x y^T for this warpgroup's 64 kept rows of x and all rows of a tile y.
  __device__ __forceinline__ void start_turned(float (&c)[SCORES], u32 x, u32 y) const {
    const u32 a = matrix(opaque(memory) + x + (C::IN_TURN ? 0 : warpgroup * (C::WARPGROUP_ROWS * C::CHUNK_ROW_BYTES)), 16);
    const u32 b = matrix(memory + y, 16);
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < C::D / 16; step++) {
      const u32 chunk = step / 4, within = step % 4 * 32 / C::UNITS;
      wgmma_shared<T, C::TILE>(c, descriptor(a + chunk * (C::KEPT_CHUNK_BYTES / C::UNITS) + within),
                               descriptor(b + chunk * (C::TILE_CHUNK_BYTES / C::UNITS) + within), step > 0);
    }
    warpgroup_commit();
  }
  // Starts results += x y, for x in registers.
  __device__ __forceinline__ void start_along(float (&results)[RESULTS], const u32 (&x)[SCORES / 2], u32 y) const {
    const u32 b = matrix(memory + y, C::TILE_CHUNK_BYTES);
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < C::TILE / 16; step++)
      wgmma_registers<T, C::D>(results, x + 4 * step, descriptor(b + step * (16 * C::CHUNK_ROW_BYTES / C::UNITS)), 1);
    warpgroup_commit();
  }

  // Computes for each of the lane's two rows the column at which its mask begins or ends: if the block keeps keys, the first
  // column that sees the row; if it keeps queries, the first column that the row does not see. Keys beyond the last one need a
  // mask only where the block keeps queries.
  __device__ __forceinline__ void edges(int (&of)[2], int n) const {
    const int row0 = few_tile_of<C, KEYS>(p).row0 + row(), column0 = n * C::TILE + 2 * (lane() & 3);
    of[0] = row0 + (KEYS ? -p.above : p.above + 1) - column0, of[1] = of[0] + 8;
    if (!KEYS) {
      const int left = p.seq_k - column0;
      of[0] = C::CAUSAL ? min(of[0], left) : left, of[1] = C::CAUSAL ? min(of[1], left) : left;
    }
  }

  template <bool MASKED>
  __device__ __forceinline__ void step(int n, FewPlace<C>& place) {
    float s[SCORES], d[SCORES];
    const int stage = place.stage();
    const u32 tile = C::PASSING + stage * C::STAGE_BYTES;
    barrier_wait(barriers.x(stage), place.parity());
    start_turned(s, C::FIRST, tile);
    barrier_wait(barriers.y(stage), place.parity());
    start_turned(d, C::SECOND, tile + C::TILE_BYTES);
    u32 weights[SCORES / 2], slopes[SCORES / 2];
    if constexpr (KEYS) barrier_wait(barriers.numbers(stage), place.parity());
    warpgroup_wait<1>();
    settled(s);
    int edge[2] = {0, 0};
    if (MASKED) edges(edge, n);
    const u32 numbers = memory + stage * C::NUMBER_BYTES + (lane() & 3) * 16;
#pragma unroll
    for (int i = 0; i < C::TILE / 16; i++) {
      float of[4];
      four_of(of, numbers + C::SHIFT + i * 64, shift);
#pragma unroll
      for (int x = 0; x < 8; x++) {
        float& weight = s[8 * i + x];
        weight = exp2_approx(fused(weight, p.scale_log2, -of[KEYS ? x / 4 * 2 + x % 2 : x / 2 % 2]));
        if (MASKED && !KEYS && 16 * i + x / 4 * 8 + x % 2 >= edge[x / 2 % 2]) weight = 0.0f;
      }
    }
    warpgroup_wait<0>();
    settled(d);
#pragma unroll
    for (int i = 0; i < C::TILE / 16; i++) {
      float of[4];
      four_of(of, numbers + C::DELTA + i * 64, delta);
#pragma unroll
      for (int x = 0; x < 8; x += 2) {
        const int at = 8 * i + x, low = KEYS ? x / 4 * 2 : x / 2 % 2, high = KEYS ? low + 1 : low;
        slopes[at / 2] = pack<T>(s[at] * (d[at] - of[low]), s[at + 1] * (d[at + 1] - of[high]));
        weights[at / 2] = pack<T>(s[at], s[at + 1]);
        if (MASKED && KEYS) {  // here it takes the fewest registers
          const int column = 16 * i + x / 4 * 8 - edge[x / 2 % 2];
          const u32 seen = column >= 0 ? ~0u : column == -1 ? 0xffff0000u : 0;
          weights[at / 2] &= seen, slopes[at / 2] &= seen;
        }
      }
    }
    if constexpr (KEYS) start_along(second, weights, tile + C::TILE_BYTES);
    start_along(first, slopes, tile);
    warpgroup_wait<0>();
    settled(first);
    settled(second);
    sync_warp();  // all lanes have read the tile's numbers
    if (lane() == 0) barrier_arrive(barriers.empty(stage));
    place.next();
  }
  template <bool MASKED>
  __device__ __forceinline__ void steps(int n, int count, FewPlace<C>& place) {
#pragma unroll 1
    for (; count > 0; count--, n++) {
      if (C::IN_TURN && ((place.stage() ^ warpgroup) & 1))
        place.next();
      else
        step<MASKED>(n, place);
    }
  }
  // The numbers of four of sixteen columns, from shared memory, or those of the lane's two rows.
  __device__ __forceinline__ void four_of(float (&of)[4], u32 from, const float (&rows)[2]) const {
    if constexpr (KEYS) {
      const Chunk c = load_shared(from);
      of[0] = __int_as_float((int)c.x), of[1] = __int_as_float((int)c.y), of[2] = __int_as_float((int)c.z), of[3] = __int_as_float((int)c.w);
    } else {
      of[0] = rows[0], of[1] = rows[1];
    }
  }

  // A quad of lanes holds 32 columns of a row in pieces of two columns. After a 4x4 transpose each lane has eight neighbouring
  // columns.
  __device__ __forceinline__ Chunk gathered(int lane, u32 a, u32 b, u32 c, u32 d) const {
    const bool odd = lane & 1, high = lane & 2;
    u32 other = shuffle_xor(odd ? a : b, 1);
    if (odd) a = other; else b = other;
    other = shuffle_xor(odd ? c : d, 1);
    if (odd) c = other; else d = other;
    other = shuffle_xor(high ? a : c, 2);
    if (high) a = other; else c = other;
    other = shuffle_xor(high ? b : d, 2);
    if (high) b = other; else d = other;
    return Chunk{a, b, c, d};
  }
  // Writes columns FROM .. TO - 1 of this warpgroup's rows.
  template <int FROM, int TO>
  __device__ __forceinline__ void write(char* base, const Strides& at, const FewTile& t, const float (&c)[RESULTS], float factor) const {
    const int own_lane = lane(), own_row = row(), rows = KEYS ? p.seq_k : p.seq_q, head = KEYS ? t.kv_head : t.first_head;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int of_all = t.row0 + own_row + 8 * r;
      char* to = base + t.batch * at.batch + head * at.head + of_all * at.row + (own_lane & 3) * 16;
#pragma unroll
      for (int i = FROM / 32; i < TO / 32; i++) {
        u32 pair[4];
#pragma unroll
        for (int j = 0; j < 4; j++) pair[j] = pack<T>(c[16 * i + 4 * j + 2 * r] * factor, c[16 * i + 4 * j + 2 * r + 1] * factor);
        const Chunk chunk = gathered(own_lane, pair[0], pair[1], pair[2], pair[3]);
        if (of_all < rows && 32 * i + 8 * (own_lane & 3) < p.head_dim) store_global(to + 64 * i, chunk);
      }
    }
  }

  // `leave` writes registers FROM .. TO - 1 to shared memory for the other warpgroup; `add` adds what the other has left.
  template <int FROM, int TO>
  __device__ __forceinline__ void leave(const float (&c)[RESULTS], u32 at) const {
#pragma unroll
    for (int i = FROM; i < TO; i += 4)
      store_shared(at + i * (C::WARPGROUP_THREADS * 4), Chunk{(u32)__float_as_int(c[i]), (u32)__float_as_int(c[i + 1]),
                                                             (u32)__float_as_int(c[i + 2]), (u32)__float_as_int(c[i + 3])});
  }
  template <int FROM, int TO>
  __device__ __forceinline__ void add(float (&c)[RESULTS], u32 at) const {
#pragma unroll
    for (int i = FROM; i < TO; i += 4) {
      const Chunk more = load_shared(at + i * (C::WARPGROUP_THREADS * 4));
      c[i] += __int_as_float((int)more.x), c[i + 1] += __int_as_float((int)more.y);
      c[i + 2] += __int_as_float((int)more.z), c[i + 3] += __int_as_float((int)more.w);
    }
  }
  // The first warpgroup finishes dK, or the first half of the columns of dQ; the other finishes dV, or the second half.
  __device__ __forceinline__ void finish_in_turn(const FewTile& t) {
    const u32 at = memory + C::PASSING + (thread_again() & 127) * 16, other = at + RESULTS * (C::WARPGROUP_THREADS * 4);
    constexpr int HALF = RESULTS / 2;
    named_sync(C::BOTH, C::PAIR_THREADS);  // all have done with the tiles that lay here
    if constexpr (KEYS) {
      if (warpgroup == 0) leave<0, RESULTS>(second, at);
      else leave<0, RESULTS>(first, other);
    } else {
      if (warpgroup == 0) leave<HALF, RESULTS>(first, at);
      else leave<0, HALF>(first, at);
    }
    named_sync(C::BOTH, C::PAIR_THREADS);
    if constexpr (KEYS) {
      if (warpgroup == 0) {
        add<0, RESULTS>(first, other);
        write<0, C::D>(p.dk, p.at_dk, t, first, p.scale);
      } else {
        add<0, RESULTS>(second, at);
        write<0, C::D>(p.dv, p.at_dv, t, second, 1.0f);
      }
    } else if (warpgroup == 0) {
      add<0, HALF>(first, at);
      write<0, C::D / 2>(p.dq, p.at_dq, t, first, p.scale);
    } else {
      add<HALF, RESULTS>(first, at);
      write<C::D / 2, C::D>(p.dq, p.at_dq, t, first, p.scale);
    }
  }

  __device__ __forceinline__ void run() {
    const FewTile t = few_tile_of<C, KEYS>(p);
#pragma unroll
    for (int i = 0; i < RESULTS; i++) {
      first[i] = 0.0f;
      if constexpr (KEYS) second[i] = 0.0f;
    }
    FewPlace<C> place = {0};
    if (t.first < t.end) {
      if constexpr (!KEYS) {
        barrier_wait(barriers.numbers(), 0);
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const u32 at = memory + turned(row() + 8 * r) * 4;
          shift[r] = __int_as_float((int)load_shared_word(at + C::SHIFT));
          delta[r] = __int_as_float((int)load_shared_word(at + C::DELTA));
        }
      }
      barrier_wait(barriers.first(), 0);
      barrier_wait(barriers.second(), 0);
    }
#pragma unroll 1
    for (place.set_heads(KEYS ? (int)p.group.divisor : 1); place.has_heads(); place.next_head()) {
      const FewTile of = few_tile_of<C, KEYS>(p);
      if constexpr (KEYS) {
        steps<C::CAUSAL>(of.first, of.end - of.first, place);  // there are not enough registers for two loops
      } else {
        steps<false>(0, of.edge, place);
        steps<true>(of.edge, of.end - of.edge, place);
      }
    }
    if constexpr (C::IN_TURN) {
      finish_in_turn(few_tile_of<C, KEYS>(p));
    } else {
      const FewTile again = few_tile_of<C, KEYS>(p);
      if constexpr (KEYS) write<0, C::D>(p.dv, p.at_dv, again, second, 1.0f);
      write<0, C::D>(KEYS ? p.dk : p.dq, KEYS ? p.at_dk : p.at_dq, again, first, p.scale);
    }
  }
};

// Grid: p.items blocks that keep keys, p.tiles for each head of K; after them p.query_tiles blocks for each head of Q.
template <class C>
DEVICE void backward_few(const TensorMap& q, const TensorMap& k, const TensorMap& v, const TensorMap& dout, const TensorMap& out,
                         const BackwardParams& p) {
  SHARED_MEMORY(bytes);
  const u32 memory = shared_address(bytes);
  const FewBarriers<C> barriers = {memory + C::WAITS};
  const int thread = (int)threadIdx.x, warpgroup = uniform(thread / C::WARPGROUP_THREADS);
  const bool keeps_keys = (int)blockIdx.x < p.items;
  if (thread == 0) {
    prefetch_map(k);
    prefetch_map(q);
    prefetch_map(v);
    prefetch_map(dout);
    prefetch_map(out);
    barriers.init();
  }
  sync_block();
  if (warpgroup == 0) {
    fewer_registers<C::MOVER_REGISTERS>();
    const int warp = uniform(thread / 32);
    if (thread == 0) {
      if (keeps_keys) {
        const FewProducer<C, true> producer = {p, q, k, v, out, dout, barriers, memory};
        producer.run(few_tile_of<C, true>(p));
      } else {
        const FewProducer<C, false> producer = {p, q, k, v, out, dout, barriers, memory};
        producer.run(few_tile_of<C, false>(p));
      }
    } else if (warp == 1 || warp == 2) {
      if (keeps_keys) {
        const FewHelper<C, true> helper = {p, barriers, memory, thread - 32};
        helper.run(few_tile_of<C, true>(p));
      } else {
        const FewHelper<C, false> helper = {p, barriers, memory, thread - 32};
        helper.run(few_tile_of<C, false>(p));
      }
    }
  } else {
    more_registers<C::CONSUMER_REGISTERS>();
    if (keeps_keys) {
      FewConsumer<C, true> consumer = {p, barriers, memory, warpgroup - 1};
      consumer.run();
    } else {
      FewConsumer<C, false> consumer = {p, barriers, memory, warpgroup - 1};
      consumer.run();
    }
  }
}
