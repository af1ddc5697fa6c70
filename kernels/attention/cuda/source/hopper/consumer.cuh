// A warpgroup's share of a block: 64 rows, and every key that they see.
//
// Accumulators of a 64xN product: warp w has rows 16 w .. + 15. Of those, a lane has rows lane / 4 and lane / 4 + 8; of every
// eight columns it has two, from 2 (lane % 4) on. Register 4 i + 2 r + e is column 8 i + e of row r. Packed to 16 bits in
// pairs, the same registers are the A operand of the next product.
#pragma once
#include "hopper/mask.cuh"
#include "hopper/producer.cuh"
#include "hopper/wgmma.cuh"

template <class C>
struct Consumer {
  typedef typename C::T T;
  typedef typename Either<C::FLOAT8, Float8, T>::Type Element;  // of Q, K and V
  const HopperParams& p;
  Barriers<C> barriers;
  int warpgroup, warp, lane;
  u32 q_matrix, k_matrix, v_matrix;  // as wgmma addresses them, for stage 0
  u32 v_tiles;                       // address in shared memory

  float out[C::OUT_REGISTERS];
  float score[C::SCORE_REGISTERS];
  u32 weight[C::SCORE_REGISTERS * C::ELEMENT_BYTES / 4];  // exponentials, packed
  float top[2], sum[2], correction[2];
  // Of FLOAT8: p.scale_log2 times the scales of Q and K; the output of the last tile of keys, as products of eight bits add to
  // accumulators with some 13 bits, so that long sums would lose what is added last; and by what the output so far is multiplied
  // when this is added to it.
  float head_scale_log2, part[C::FLOAT8 ? C::OUT_REGISTERS : 1], earlier[2];
  // The mask of the tile whose scores are computed next.
  typedef typename Either<C::STAGED, StagedMask<C>, MaskTile<typename C::Mask, C::KEYS>>::Type Tensor;
  typename Either<C::KEY_BIAS, KeyBias<C>, Tensor>::Type given;

  static constexpr int TILES_AHEAD = 2;
  static constexpr int UNITS = 16;  // wgmma counts shared memory in 16 bytes
  static constexpr int BOTH_TURNS = 2 * C::WARPGROUP_THREADS;

  // ---- products

  __device__ __forceinline__ void start_scores(int stage) {
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < C::D / C::PRODUCT_DEPTH; step++) {
      const u32 chunk = step / 4, within = step % 4 * 32 / UNITS;
      const u64 k = descriptor(k_matrix + stage * (C::K_STAGE_BYTES / UNITS) + chunk * (C::KV_CHUNK_BYTES / UNITS) + within);
      wgmma_shared<Element, C::KEYS>(score, descriptor(q_matrix + chunk * (C::Q_CHUNK_BYTES / UNITS) + within), k, step > 0);
    }
    warpgroup_commit();
  }

  __device__ __forceinline__ void start_output(int stage) {
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < C::KEYS / C::PRODUCT_DEPTH; step++) {
      // Transposed, V is read across its rows, as K is; 128 keys are a chunk.
      constexpr u32 CHUNK = C::V_BYTES / C::KEY_CHUNKS / UNITS;
      const u32 to = C::FLOAT8 ? step / 4 * CHUNK + step % 4 * 32 / UNITS : step * (16 * C::CHUNK_ROW_BYTES / UNITS);
      const u64 v = descriptor(v_matrix + stage * (C::V_STAGE_BYTES / UNITS) + to);
      if constexpr (C::FLOAT8)
        wgmma_registers<Element, C::VALUE_DIM + C::ONES_ROWS>(part, weight + 4 * step, v, step > 0);
      else
        wgmma_registers<Element, C::VALUE_DIM>(out, weight + 4 * step, v, 1);
    }
    warpgroup_commit();
  }

  // ---- softmax

  // The number of this warpgroup among those of its head; the first row of the warpgroup, and of this thread, counted over all
  // of Q.
  __device__ __forceinline__ int place_in_head() const { return C::SHARERS == 1 ? warpgroup : warpgroup % C::WARPGROUPS_OF_HEAD; }
  __device__ __forceinline__ int rows_begin(const Tile& tile) const { return tile.row0 + place_in_head() * C::WARPGROUP_ROWS; }
  __device__ __forceinline__ int first_row(const Tile& tile) const {
    return rows_begin(tile) + warp * 16 + (lane >> 2);
  }

  __device__ __forceinline__ void mask(const Tile& tile, int n) {
    const int column = n * C::KEYS + 2 * (lane & 3), row = first_row(tile);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int end = keys_of<C>(p, tile);  // the first key that this row does not see
      if (C::BOUNDED_RIGHT) end = min(end, row + 8 * r + p.last_offset + shift_of<C>(tile) + 1);
      end -= column;
#pragma unroll
      for (int i = 0; i < C::KEYS / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
          if (8 * i + e >= end) score[4 * i + 2 * r + e] = MINUS_INFINITY;
      if (C::BOUNDED_LEFT) {
        const int begin = row + 8 * r + p.first_offset + shift_of<C>(tile) - column;
#pragma unroll
        for (int i = 0; i < C::KEYS / 8; i++)
#pragma unroll
          for (int e = 0; e < 2; e++)
            if (8 * i + e < begin) score[4 * i + 2 * r + e] = MINUS_INFINITY;
      }
    }
  }

  // Starts to load the mask of tile n, which arrives before the scores do. Rows beyond the end of Q read the mask of the last
  // row.
  __device__ __forceinline__ void fetch_mask(const Tile& tile, int n) {
    if constexpr (C::HAS_TENSOR && C::MASK_STAGES == 0) {
      const char* head = p.mask + tile.batch * p.mask_batch + tile.head * p.mask_head;
      const int row = first_row(tile), last = p.seq_q - 1;
      const char* const rows[2] = {head + min(row, last) * p.mask_row, head + min(row + 8, last) * p.mask_row};
      given.fetch(rows, n * C::KEYS, p.seq_k, lane);
      // Elements of 32 bits are needed faster than memory delivers them, so the mask is brought to the L2 cache two tiles
      // ahead.
      if (C::Mask::BYTES == 4 && n - TILES_AHEAD >= tile.first) given.bring(rows, (n - TILES_AHEAD) * C::KEYS, lane);
    }
  }

  // From here on a kernel with a mask has scaled scores, in units of the natural exponent. The largest negative numbers of a
  // mask stay finite, so if all keys of a row have the same one, they all get the same weight.
  __device__ __forceinline__ void add_mask() {
    const float scale = p.scale_log2 * LN_2;
    if constexpr (C::MASK_STAGES > 0) {
      if (C::STAGED) barrier_wait(barriers.mask_full(given.place.stage()), given.place.parity());  // `sees` waited for a bias
      const u32 read = given.add_to(score, scale);
      pass_mask(read);
    } else if constexpr (C::HAS_TENSOR) {
      given.add_to(score, scale, lane);
    }
  }
  // Releases a tile of the mask: this warp has read its rows, or does not need them. `read` depends on all loads from the tile,
  // if a copy overwrites it.
  __device__ __forceinline__ void pass_mask(u32 read = 0) {
    constexpr bool BY_FENCE = C::BOUNDED_LEFT && !C::BOUNDED_RIGHT;  // no registers are left there for the dependence
    if constexpr (C::STAGED && BY_FENCE) stores_before_products();
    sync_warp();
    const u32 empty = barriers.mask_empty(given.place.stage());
    if constexpr (C::STAGED && !BY_FENCE) {
      if (lane == 0) barrier_arrive_after(empty, read);
    } else {
      release(empty);
    }
    given.place.count++;
  }
  // Whether any key of tile n is seen. A tile whose keys are all hidden by a mask of one row has no K and V, and is released
  // here.
  __device__ __forceinline__ bool sees(const Tile& tile, int n) {
    if constexpr (C::KEY_BIAS) {
      barrier_wait(barriers.mask_full(given.place.stage()), given.place.parity());
      if (given.seen()) return true;
      pass_mask();
      if (n == tile.first) release(barriers.q_empty());
      return false;
    }
    return true;
  }
  __device__ __forceinline__ float scale_log2() const { return C::FLOAT8 ? head_scale_log2 : p.scale_log2; }
  __device__ __forceinline__ float scale_of_row(float most) const {
    if constexpr (!C::HAS_TENSOR) return scale_for(most, scale_log2());
    return fabsf(most) * LOG2_E >= LARGEST ? 0.5f : scale_for(most, LOG2_E);
  }

  // Turns scores into exp2(scale_log2 (score - top)). The sums so far must be multiplied by `correction`.
  __device__ __forceinline__ void softmax() {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float even = top[r], odd = score[2 * r];  // two chains, each half as long
#pragma unroll
      for (int i = 0; i < C::KEYS / 8; i += 2) {
        even = fmaxf(even, fmaxf(score[4 * i + 2 * r], score[4 * i + 2 * r + 1]));
        odd = fmaxf(odd, fmaxf(score[4 * i + 4 + 2 * r], score[4 * i + 5 + 2 * r]));
      }
      float most = fmaxf(even, odd);
      most = fmaxf(most, shuffle_xor(most, 1));
      most = fmaxf(most, shuffle_xor(most, 2));
      const float scale = scale_of_row(most);
      const float subtrahend = most == MINUS_INFINITY ? 0.0f : rounded_product(most, scale);  // inf - inf is NaN
      correction[r] = exp2_approx(rounded_product(top[r], scale) - subtrahend);
      top[r] = most;
      const float zero = subtrahend - C::WEIGHTS_LOG2;  // the exponent of a weight of one
      float first = 0.0f, second = 0.0f;
#pragma unroll
      for (int i = 0; i < C::KEYS / 8; i++) {
        float &a = score[4 * i + 2 * r], &b = score[4 * i + 2 * r + 1];
        a = exp2_approx(fused(a, scale, -zero));
        b = exp2_approx(fused(b, scale, -zero));
        if (!C::ONES) first += a, second += b;
      }
      if (!C::ONES) sum[r] = sum[r] * correction[r] + (first + second);
    }
  }

  // Of 32 keys a register of eight bits has four weights of a row: those that the thread has of the first 16 keys, or of the
  // others. The values are in this order, too.
  __device__ __forceinline__ void pack_weights() {
    if constexpr (C::FLOAT8) {
#pragma unroll
      for (int i = 0; i < C::SCORE_REGISTERS / 4; i++) {
        const float* of = score + i / 4 * 16 + i / 2 % 2 * 8 + i % 2 * 2;
        weight[i] = pack_float8(of[0], of[1], of[4], of[5]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < C::SCORE_REGISTERS / 2; i++) weight[i] = pack<T>(score[2 * i], score[2 * i + 1]);
    }
  }

  // Waits for the output of a tile of keys, and gives the place of its V back.
  __device__ __forceinline__ void end_output(int stage) {
    warpgroup_wait<0>();
    if constexpr (C::FLOAT8)
      settled(part);
    else
      settled(out);
    release(barriers.v_empty(stage));
  }
  // Makes the output so far relative to the maxima that the last softmax found. Of eight bits it was not yet made relative to
  // those before them either: that is done as the output of the last tile is added.
  __device__ __forceinline__ void correct_output() {
#pragma unroll
    for (int i = 0; i < C::OUT_REGISTERS; i++) {
      if constexpr (C::FLOAT8)
        out[i] = fused(out[i], earlier[i / 2 % 2], part[i]);
      else
        out[i] *= correction[i / 2 % 2];
    }
    keep_correction();
  }
  __device__ __forceinline__ void keep_correction() {
    if constexpr (C::FLOAT8) earlier[0] = correction[0], earlier[1] = correction[1];
  }

  // ---- turns at the tensor cores

  __device__ __forceinline__ void await_turn() const {
    if (C::PING_PONG) named_sync(1 + warpgroup, BOTH_TURNS);
  }
  __device__ __forceinline__ void pass_turn() const {
    if (C::PING_PONG) named_arrive(warpgroup + 1 == C::WARPGROUPS ? 1 : 2 + warpgroup, BOTH_TURNS);
  }

  // ---- a tile of work

  __device__ __forceinline__ void release(u32 empty) const {
    if (lane == 0) barrier_arrive(empty);
  }

  // Zeroes the rows of V after the end of a packed sequence, which belong to the next sequence. No value of another sequence
  // may have an effect, not even a NaN with a weight of zero. All warpgroups write the same zeros.
  __device__ __forceinline__ void empty_foreign_rows(const Tile& tile, int n, int stage) const {
    if constexpr (C::PACKED) {
      const int from = tile.seq_k - n * C::KEYS;
      if (from >= C::KEYS) return;
      const int thread = warp * 32 + lane;
      for (int i = from * 8 + thread; i < C::KEYS * 8; i += C::WARPGROUP_THREADS)
#pragma unroll
        for (int chunk = 0; chunk < C::VALUE_CHUNKS; chunk++)
          store_shared(v_tiles + stage * C::V_BYTES + chunk * C::KV_CHUNK_BYTES + i * 16, Chunk{0, 0, 0, 0});
      stores_before_products();
      named_sync(C::EMPTIED + warpgroup, C::WARPGROUP_THREADS);
    }
  }

  // Products of two tiles of keys are in flight at the same time: the scores of tile n and the output of tile n + 1. The
  // softmax of tile n runs during the latter.
  __device__ __forceinline__ void step(const Tile& tile, int n, Place<C>& place, bool masked) {
    const Place<C> following = place.next();
    fetch_mask(tile, n);
    barrier_wait(barriers.k_full(following.stage), following.parity);
    await_turn();
    start_scores(following.stage);
    barrier_wait(barriers.v_full(place.stage), place.parity);
    empty_foreign_rows(tile, n + 1, place.stage);
    start_output(place.stage);
    pass_turn();
    warpgroup_wait<1>();
    settled(score);
    release(barriers.k_empty(following.stage));
    if (n == tile.first) release(barriers.q_empty());
    add_mask();
    if (masked) mask(tile, n);
    softmax();
    end_output(place.stage);
    pack_weights();
    correct_output();
    place = following;
  }

  // Skips the tiles of keys that no row of this warpgroup sees. It still takes and passes its turns. In other places a product
  // brings the lanes of a warp together between a wait and a release; here a lane that fell behind could still be waiting two
  // phases later, so they are synchronised.
  __device__ __forceinline__ int skip_unseen(const Tile& tile, int n, Place<C>& place) {
    if (!C::BOUNDED_RIGHT || C::ROWS <= C::KEYS) return n;
    const int end = tile.row0 + (place_in_head() + 1) * C::WARPGROUP_ROWS + p.last_offset + shift_of<C>(tile);
    for (; n > tile.first && n * C::KEYS >= end; n--) {
      if (!sees(tile, n)) continue;
      barrier_wait(barriers.k_full(place.stage), place.parity);
      sync_warp();
      release(barriers.k_empty(place.stage));
      barrier_wait(barriers.v_full(place.stage), place.parity);
      sync_warp();
      release(barriers.v_empty(place.stage));
      if constexpr (C::STAGED) {
        barrier_wait(barriers.mask_full(given.place.stage()), given.place.parity());
        pass_mask();
      }
      if constexpr (C::KEY_BIAS) pass_mask();
      await_turn();
      pass_turn();
      place = place.next();
    }
    return n;
  }

  __device__ __forceinline__ void attend(const Tile& tile, Place<C>& place) {
    // Tiles n with first_free <= n < end_free need no mask for any row of this warpgroup.
    const int seq_k = keys_of<C>(p, tile);
    int end_free = seq_k / C::KEYS, first_free = tile.first;
    if (C::BOUNDED_RIGHT) {
      const int seen = rows_begin(tile) + p.last_offset + shift_of<C>(tile) + 1;
      end_free = min(end_free, seen <= 0 ? 0 : seen / C::KEYS);
    }
    if (C::BOUNDED_LEFT) {
      const int unseen = rows_begin(tile) + C::WARPGROUP_ROWS - 1 + p.first_offset + shift_of<C>(tile);
      if (unseen > 0) first_free = (unseen + C::KEYS - 1) / C::KEYS;
    }
    int n = skip_unseen(tile, tile.last - 1, place);
    if constexpr (C::KEY_BIAS) {
      while (n >= tile.first && !sees(tile, n)) n--;
      if (n < tile.first) return;
    }
    fetch_mask(tile, n);
    barrier_wait(barriers.k_full(place.stage), place.parity);
    // With a mask of one row, warpgroups may start with different tiles, but each must take the same number of turns.
    if constexpr (C::KEY_BIAS) await_turn();
    start_scores(place.stage);
    if constexpr (C::KEY_BIAS) pass_turn();
    warpgroup_wait<0>();
    settled(score);
    release(barriers.k_empty(place.stage));
    if (n == tile.first) release(barriers.q_empty());
    add_mask();
    if ((C::EDGE && n >= end_free) || (C::BOUNDED_LEFT && n < first_free)) mask(tile, n);
    softmax();
    pack_weights();
    keep_correction();
    n--;
    // Separate loops, so that the one for most tiles has no code for masks.
    if (C::EDGE)
      for (; n >= tile.first && n >= end_free; n--)
        if (sees(tile, n)) step(tile, n, place, true);
    for (; n >= first_free; n--)
      if (sees(tile, n)) step(tile, n, place, false);
    if (C::BOUNDED_LEFT)
      for (; n >= tile.first; n--)
        if (sees(tile, n)) step(tile, n, place, true);
    barrier_wait(barriers.v_full(place.stage), place.parity);
    empty_foreign_rows(tile, tile.first, place.stage);
    start_output(place.stage);
    end_output(place.stage);
    if constexpr (C::FLOAT8) correct_output();
    place = place.next();
  }

  // ---- results

  __device__ __forceinline__ float log2_of(float total) const { return log2_approx(total) - C::WEIGHTS_LOG2; }
  __device__ __forceinline__ float log_of_sum(float most, float log2_of_total) const {
    return C::HAS_TENSOR ? most + log2_of_total * LN_2 : (most * scale_log2() + log2_of_total) * LN_2;
  }

  __device__ __forceinline__ void write(const Tile& tile) {
    i64 to_first = tile.batch * p.out_batch, first = ((i64)tile.batch * (int)p.heads.divisor + tile.head) * p.seq_q;
    int seq_q = p.seq_q;
    if constexpr (C::PAGED) {
      const int start = start_of<C>(p, tile.batch);
      seq_q = start_of<C>(p, tile.batch + 1) - start;
      to_first = start * p.out_row;
      first = p.q_starts ? (i64)tile.head * p.seq_q + start : ((i64)tile.batch * (int)p.heads.divisor + tile.head) * p.queries;
    } else if constexpr (C::PACKED) {  // read again, because keeping them in registers since the tile began takes two too many
      const volatile int* starts = p.q_starts + tile.batch;
      const int start = starts[0];
      seq_q = starts[1] - start;
      to_first = start * p.out_row, first = (i64)tile.head * p.seq_q + start;
    }
    char* head = p.out + tile.head * p.out_head + to_first;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float total = sum[r];
      total += shuffle_xor(total, 1);
      total += shuffle_xor(total, 2);
      if constexpr (C::ONES) total = out[C::VALUE_DIM / 2 + 2 * r];
      float inverse = total == 0.0f ? 0.0f : 1.0f / total;
      const int row = first_row(tile) + 8 * r;
      if constexpr (C::SINKS) {
        const BesideSink beside = beside_sink(total == 0.0f ? MINUS_INFINITY : top[r] * scale_log2() + log2_of(total), p.sinks[tile.head]);
        inverse *= beside.share;
        if (p.lse && row < seq_q && (lane & 3) == 0) p.lse[first + row] = beside.log_of_sum;
      }
      if constexpr (C::FLOAT8) inverse *= p.v_scale[divide(tile.head, p.group)];
      char* to = head + row * p.out_row + (lane & 3) * 16;
#pragma unroll
      for (int i = 0; i < C::VALUE_DIM / 32; i++) {
        u32 pair[4];
#pragma unroll
        for (int j = 0; j < 4; j++) pair[j] = pack<T>(out[16 * i + 4 * j + 2 * r] * inverse, out[16 * i + 4 * j + 2 * r + 1] * inverse);
        // A quad of lanes holds 32 columns of a row in pieces of two columns. After the exchange each lane has eight
        // neighbouring columns.
        const Chunk chunk = across_quad(pair[0], pair[1], pair[2], pair[3], lane);
        if (row < seq_q && 32 * i + 8 * (lane & 3) < p.value_dim) store_global(to + 64 * i, chunk);
      }
      if (!C::SINKS && p.lse && row < seq_q && (lane & 3) == 0)
        p.lse[first + row] =
            total == 0.0f ? MINUS_INFINITY : log_of_sum(top[r], log2_of(total));
    }
  }

  // The same for one of several parts, in float32.
  __device__ __forceinline__ void write_part(const Tile& tile) {
    const i64 first = ((i64)tile.part * p.all_heads + tile.batch * (int)p.heads.divisor + tile.head) * p.seq_q;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float total = sum[r];
      total += shuffle_xor(total, 1);
      total += shuffle_xor(total, 2);
      const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
      const int row = first_row(tile) + 8 * r;
      if (row >= p.seq_q) continue;
      float* to = p.partial_out + (first + row) * p.value_dim + 2 * (lane & 3);
#pragma unroll
      for (int i = 0; i < C::OUT_REGISTERS / 4; i++)
        if (8 * i < p.value_dim) *(Pair*)(to + 8 * i) = Pair{out[4 * i + 2 * r] * inverse, out[4 * i + 2 * r + 1] * inverse};
      if ((lane & 3) == 0)
        p.partial_lse[first + row] = total == 0.0f ? MINUS_INFINITY : top[r] * p.scale_log2 + log2_approx(total);
    }
  }

  __device__ __forceinline__ void run(const volatile int* tile_slot) {
    Place<C> place = {0, 0};
    u32 q_parity = 0;
    if (C::PING_PONG && warpgroup == 0) named_arrive(1, BOTH_TURNS);  // warpgroup 0 has the first turn
    for (;;) {
      barrier_wait(barriers.q_full(), q_parity);
      q_parity ^= 1;
      // One lane reads, the one that later releases Q, so that the slot is not overwritten while another lane still reads it.
      const int index = uniform(lane == 0 ? *tile_slot : 0);
      if (index == NO_MORE_TILES) break;
      Tile tile;
      if constexpr (C::MASK_STAGES > 0 && C::BOUNDED_RIGHT) tile = {};  // otherwise a value of the tile before stays in a register
      if constexpr (C::PACKED)
        tile = packed_tile<C>(p, index, uniform(lane == 0 ? tile_slot[1] : 0), uniform(lane == 0 ? tile_slot[2] : 0));
      else
        tile_of<C>(p, index, tile);
      if constexpr (C::SHARERS > 1) go_to_sharer<C>(p, tile, warpgroup / C::WARPGROUPS_OF_HEAD);
      if constexpr (C::FLOAT8) {
        const int kv_head = divide(tile.head, p.group);
        head_scale_log2 = p.scale_log2 * p.q_scale[kv_head] * p.k_scale[kv_head];
      }
#pragma unroll
      for (int i = 0; i < C::OUT_REGISTERS; i++) out[i] = 0.0f;
#pragma unroll
      for (int r = 0; r < 2; r++) top[r] = MINUS_INFINITY, sum[r] = 0.0f;
      if (tile.first < tile.last)
        attend(tile, place);
      else
        release(barriers.q_empty());
      if constexpr (C::SPLIT)
        write_part(tile);
      else
        write(tile);
    }
  }
};
