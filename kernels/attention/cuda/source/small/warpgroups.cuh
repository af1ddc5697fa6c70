// Attention over few keys on Hopper: tensor copies bring all K and V of a head at once, and warpgroups multiply by wgmma.
//
// ROW_GROUPS warpgroups take 64 rows each, and for each of them KEY_GROUPS warpgroups take every KEY_GROUPS-th of BLOCKS blocks
// of KEYS keys. Nothing is overwritten, so no warpgroup waits for another one before the end: each starts with its first block
// when that block has landed. The output of a block is in flight during the softmax of the next one and, if AHEAD, the scores
// of the next block during the softmax of this one. If not AHEAD, all of K is loaded before V, so that the softmax can be done
// when V lands.
//
// With CLUSTER > 1, that many blocks, neighbours in the same head, each load a share of every block of keys for all of them.
#pragma once
#include "hopper/wgmma.cuh"
#include "small/exchange.cuh"

template <class T_, int D_, int ROW_GROUPS_, int KEY_GROUPS_, int KEYS_, int BLOCKS_, int CLUSTER_, bool AHEAD_, bool CAUSAL_,
          bool DEPENDENT_>
struct InWarpgroups {
  typedef T_ T;
  static constexpr int D = D_, ROW_GROUPS = ROW_GROUPS_, KEY_GROUPS = KEY_GROUPS_, KEYS = KEYS_, BLOCKS = BLOCKS_;
  static constexpr int CLUSTER = CLUSTER_;
  static constexpr bool AHEAD = AHEAD_, CAUSAL = CAUSAL_, DEPENDENT = DEPENDENT_;
  static constexpr int THREADS = ROW_GROUPS * KEY_GROUPS * 128, ROWS = ROW_GROUPS * 64;
  static constexpr int COLUMNS = 64, CHUNKS = D / COLUMNS, ROW_BYTES = 128;  // a chunk: 64 columns, in rows of 128 bytes
  static constexpr int Q_CHUNK_BYTES = 64 * ROW_BYTES, Q_BYTES = CHUNKS * Q_CHUNK_BYTES;  // for each row group
  static constexpr int KV_CHUNK_BYTES = KEYS * ROW_BYTES, KV_BYTES = CHUNKS * KV_CHUNK_BYTES;
  static constexpr int BOX_ROWS = KEYS / CLUSTER;  // rows of a block of keys that one member of the cluster loads
  static constexpr int MOST = (BLOCKS + KEY_GROUPS - 1) / KEY_GROUPS;  // the most blocks of keys of a warpgroup
  typedef ::Exchange<D / 16, D / 32, KEY_GROUPS, 128> Exchange;  // for each row group
  static constexpr int EXCHANGE_BYTES = KEY_GROUPS == 1 ? 0 : ROW_GROUPS * Exchange::BYTES;
  static constexpr int TILE_BYTES = ROW_GROUPS * Q_BYTES + 2 * BLOCKS * KV_BYTES;
  static constexpr bool OWN_PLACE = TILE_BYTES + EXCHANGE_BYTES <= 226 * 1024;
  static_assert(KEYS % CLUSTER == 0 && BOX_ROWS % 8 == 0, "each member of the cluster must load whole groups of eight rows");
};

DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEVICE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Like copy_box, but into the shared memory of every member of the cluster in `members`; the barriers at the same address there
// count the bytes.
DEVICE void copy_box_to_all(u32 to, const TensorMap& map, u32 barrier, int column, int row, int head, int batch, u16 members) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to), "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head),
      "r"(batch), "h"(members) : "memory");
}

// In a cluster, a shared address has the rank of its block above the 18 bits for which a matrix descriptor has room.
DEVICE u32 within_block(u32 address) { return address & 0x3ffff; }

template <class C>
struct FewKeys {
  typedef typename C::T T;
  const SmallParams& p;
  const SmallBlock& b;
  u32 q_tile, k_tiles, v_tiles;  // addresses in shared memory; q_tile is that of this row group
  u32 barriers;                  // one for Q of each row group, then K and V of each block of keys
  int key_group, warp, lane, first_row;

  float out[C::D / 2], score[C::AHEAD ? 2 : 1][C::KEYS / 2], top[2], sum[2], correction[2];
  u32 weight[C::KEYS / 4];

  DEVICE_MEMBER u32 k_full(int block) const { return barriers + (C::ROW_GROUPS + 2 * block) * 8; }
  DEVICE_MEMBER u32 v_full(int block) const { return barriers + (C::ROW_GROUPS + 2 * block + 1) * 8; }
  DEVICE_MEMBER int block_of(int turn) const { return turn * C::KEY_GROUPS + key_group; }

  DEVICE_MEMBER void start_scores(float (&s)[C::KEYS / 2], int block) {
    barrier_wait(k_full(block), 0);
    const u32 q = matrix(within_block(q_tile), 0), k = matrix(within_block(k_tiles) + block * C::KV_BYTES, 0);
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < C::D / 16; step++)
      wgmma_shared<T, C::KEYS>(s, descriptor(q + (step / 4 * C::Q_CHUNK_BYTES + step % 4 * 32) / 16),
                               descriptor(k + (step / 4 * C::KV_CHUNK_BYTES + step % 4 * 32) / 16), step > 0);
    warpgroup_commit();
  }

  DEVICE_MEMBER void start_output(int block, bool accumulate) {
    barrier_wait(v_full(block), 0);
    const u32 v = matrix(within_block(v_tiles) + block * C::KV_BYTES, C::KV_CHUNK_BYTES);
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < C::KEYS / 16; step++)
      wgmma_registers<T, C::D>(out, weight + 4 * step, descriptor(v + step * 16 * C::ROW_BYTES / 16), accumulate || step > 0);
    warpgroup_commit();
  }

  DEVICE_MEMBER void mask(float (&s)[C::KEYS / 2], int block) const {
    const int column = block * C::KEYS + 2 * (lane & 3);
    const int row_end = first_row - (lane >> 2) + p.causal_offset + 1;  // the first key that the warp's first row does not see
    if ((block + 1) * C::KEYS <= p.seq_k && !(C::CAUSAL && (block + 1) * C::KEYS > row_end)) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int end = p.seq_k;
      if (C::CAUSAL) end = min(end, first_row + 8 * r + p.causal_offset + 1);
      end -= column;
#pragma unroll
      for (int i = 0; i < C::KEYS / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
          if (8 * i + e >= end) s[4 * i + 2 * r + e] = MINUS_INFINITY;
    }
  }

  template <bool FIRST>
  DEVICE_MEMBER void softmax(float (&s)[C::KEYS / 2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float even = s[2 * r], odd = s[2 * r + 1];
#pragma unroll
      for (int i = 1; i < C::KEYS / 8; i++) even = fmaxf(even, s[4 * i + 2 * r]), odd = fmaxf(odd, s[4 * i + 2 * r + 1]);
      float most = fmaxf(even, odd);
      most = fmaxf(most, shuffle_xor(most, 1));
      most = rounded_product(fmaxf(most, shuffle_xor(most, 2)), p.scale_log2);
      if (!FIRST) most = fmaxf(most, top[r]);
      const float subtrahend = most == MINUS_INFINITY ? 0.0f : most;  // inf - inf would be NaN
      correction[r] = FIRST ? 0.0f : exp2_approx(top[r] - subtrahend);
      top[r] = most;
      const float added = any_lane(is_large(subtrahend)) ? exponentials<true>(s, r, subtrahend) : exponentials<false>(s, r, subtrahend);
      sum[r] = FIRST ? added : sum[r] * correction[r] + added;
    }
  }

  // Row r's scores become exponentials. Returns this lane's part of their sum.
  template <bool SOME_LARGE>
  DEVICE_MEMBER float exponentials(float (&s)[C::KEYS / 2], int r, float subtrahend) const {
    const bool large = SOME_LARGE && is_large(subtrahend);
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int i = 0; i < C::KEYS / 8; i++) {
      float &x = s[4 * i + 2 * r], &y = s[4 * i + 2 * r + 1];
      x = exp2_approx(exponent(x, p.scale_log2, subtrahend, large)), y = exp2_approx(exponent(y, p.scale_log2, subtrahend, large));
      even += x, odd += y;
    }
    return even + odd;
  }

  DEVICE_MEMBER void pack_weights(const float (&s)[C::KEYS / 2]) {
#pragma unroll
    for (int i = 0; i < C::KEYS / 4; i++) weight[i] = pack<T>(s[2 * i], s[2 * i + 1]);
  }

  // Processes TURNS blocks of keys of this warpgroup. The number is known at compile time, because each accumulator needs a
  // name.
  template <int TURNS>
  DEVICE_MEMBER void attend() {
    start_scores(score[0], block_of(0));
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      float(&s)[C::KEYS / 2] = score[C::AHEAD ? turn & 1 : 0];
      const bool more = turn + 1 < TURNS;
      if (C::AHEAD && more) start_scores(score[(turn + 1) & 1], block_of(turn + 1));
      // In flight, oldest first: these scores, the output of the turn before and, if AHEAD, the scores of the next turn.
      constexpr int YOUNGER = C::AHEAD ? 1 : 0;
      if (turn > 0 && more)
        warpgroup_wait<1 + YOUNGER>();
      else if (turn > 0)
        warpgroup_wait<1>();
      else if (more)
        warpgroup_wait<YOUNGER>();
      else
        warpgroup_wait<0>();
      settled(s);
      mask(s, block_of(turn));
      if (turn == 0)
        softmax<true>(s);
      else
        softmax<false>(s);
      if (turn > 0) {
        if (more)
          warpgroup_wait<YOUNGER>();
        else
          warpgroup_wait<0>();
        settled(out);
#pragma unroll
        for (int i = 0; i < C::D / 2; i++) out[i] *= correction[i / 2 % 2];
      }
      pack_weights(s);
      if (!C::AHEAD && more) start_scores(s, block_of(turn + 1));
      start_output(block_of(turn), turn > 0);
    }
    warpgroup_wait<0>();
    settled(out);
  }

  template <int TURNS>
  DEVICE_MEMBER void attend_to(int turns) {
    if (turns == TURNS) {
      attend<TURNS>();
    } else if constexpr (TURNS > 1) {
      attend_to<TURNS - 1>(turns);
    } else {  // no key is seen
#pragma unroll
      for (int i = 0; i < C::D / 2; i++) out[i] = 0.0f;
      top[0] = top[1] = MINUS_INFINITY;
      sum[0] = sum[1] = 0.0f;
    }
  }

  // Unit r D / 32 + h has row first_row + 8 r, columns 32 h .. + 31; of every eight columns the lane has two.
  DEVICE_MEMBER void write(char* exchange, int row_group, int thread) {
    typedef typename C::Exchange E;
    float units[E::UNITS][8], mine[E::OWN][8], own_top[E::OWN_ROWS], own_sum[E::OWN_ROWS];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      sum[r] += shuffle_xor(sum[r], 1);
      sum[r] += shuffle_xor(sum[r], 2);
    }
#pragma unroll
    for (int u = 0; u < E::UNITS; u++)
#pragma unroll
      for (int j = 0; j < 8; j++)
        units[u][j] = out[u % E::UNITS_PER_ROW * 16 + j / 2 * 4 + u / E::UNITS_PER_ROW * 2 + j % 2];
    if constexpr (C::KEY_GROUPS == 1) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        own_top[r] = top[r], own_sum[r] = sum[r];
        const float inverse = sum[r] == 0.0f ? 0.0f : 1.0f / sum[r];
#pragma unroll
        for (int u = r * E::UNITS_PER_ROW; u < (r + 1) * E::UNITS_PER_ROW; u++)
#pragma unroll
          for (int j = 0; j < 8; j++) mine[u][j] = units[u][j] * inverse;
      }
    } else {
      if constexpr (!C::OWN_PLACE) sync_block();  // every warpgroup has left Q, K and V
      E::leave(exchange, key_group, thread, units, top, sum, mine);
      named_sync(1 + row_group, C::KEY_GROUPS * 128);
      if (!E::finishes(key_group)) return;
      E::pick_up(exchange, key_group, thread, mine, own_top, own_sum);
    }
#pragma unroll
    for (int n = 0; n < E::OWN_ROWS; n++) {
      const int row = first_row + (E::first_row(key_group) + n) * 8;
#pragma unroll
      for (int m = 0; m < E::OWN_PER_ROW; m++) {
        const Chunk chunk = gathered(packed<T>(mine[n * E::OWN_PER_ROW + m]), lane);
        const int column = (key_group * E::OWN + n * E::OWN_PER_ROW + m) % E::UNITS_PER_ROW * 32 + (lane & 3) * 8;
        if (row < p.seq_q && column < p.head_dim) *(Chunk*)(out_row(p, b, row) + column * 2) = chunk;
      }
      if (p.lse && row < p.seq_q && (lane & 3) == 0 && (key_group * E::OWN) % E::UNITS_PER_ROW == 0)
        write_lse(p, b, row, own_top[n], own_sum[n]);
    }
  }
};

// Grid: (row_tiles, rounded up to whole clusters; heads; batch). Shared memory: TILE_BYTES, and EXCHANGE_BYTES if OWN_PLACE.
template <class C>
DEVICE void attention_in_warpgroups(const TensorMap& q_map, const TensorMap& k_map, const TensorMap& v_map, const SmallParams& p) {
  SHARED_MEMORY(memory);
  __shared__ __align__(8) u64 barrier_words[C::ROW_GROUPS + 2 * C::BLOCKS];
  const SmallBlock b = small_block<C::CAUSAL, C::ROWS>(p);
  const int group = uniform((int)threadIdx.x >> 7), thread = (int)threadIdx.x & 127;
  const int row_group = group % C::ROW_GROUPS, key_group = group / C::ROW_GROUPS;
  const u32 barriers = shared_address(barrier_words), q_tiles = shared_address(memory);
  const u32 k_tiles = q_tiles + C::ROW_GROUPS * C::Q_BYTES, v_tiles = k_tiles + C::BLOCKS * C::KV_BYTES;
  FewKeys<C> few = {p, b, q_tiles + row_group * C::Q_BYTES, k_tiles, v_tiles, barriers, key_group, thread >> 5, thread & 31};
  few.first_row = b.row0 + row_group * 64 + few.warp * 16 + (few.lane >> 2);

  // The blocks of keys to load; in a cluster, all blocks that any member's rows see.
  int keys = b.keys;
  if (C::CAUSAL && C::CLUSTER > 1) {
    const int last_tile = p.row_tiles - 1 - (int)(blockIdx.x / C::CLUSTER * C::CLUSTER);  // the cluster's longest, see small_block
    const int rows = min((last_tile + 1) * C::ROWS, p.seq_q);
    keys = min(rows + p.causal_offset, p.seq_k);
  }
  const int blocks = keys <= 0 ? 0 : (keys + C::KEYS - 1) / C::KEYS;
  const int own_blocks = b.keys <= 0 ? 0 : (b.keys + C::KEYS - 1) / C::KEYS;

  // The thread that starts a copy has initialised its barrier itself, so without a cluster it need not wait for other threads.
  const bool copies_q = thread == 0 && key_group == 0, copies_kv = thread == 0 && row_group == 0;
  if (threadIdx.x == C::THREADS - 1) prefetch_map(q_map), prefetch_map(k_map), prefetch_map(v_map);
  if (copies_q) barrier_init(barriers + row_group * 8, 1);
  if (copies_kv)
    for (int block = key_group; block < C::BLOCKS; block += C::KEY_GROUPS)
      barrier_init(few.k_full(block), 1), barrier_init(few.v_full(block), 1);
  if (copies_q || copies_kv) barrier_init_done();
  sync_warp();  // the compiler may let another lane initialise than the one that arrives
  if (C::CLUSTER > 1) {
    sync_block();
    cluster_arrive();
  }
  if (C::DEPENDENT) wait_for_previous();
  const int kv_head = divide(b.head, p.group);
  if (copies_q) {
    const u32 full = barriers + row_group * 8;
    barrier_arrive_expecting(full, C::Q_BYTES);
#pragma unroll
    for (int c = 0; c < C::CHUNKS; c++)
      copy_box(few.q_tile + c * C::Q_CHUNK_BYTES, q_map, full, c * C::COLUMNS, b.row0 + row_group * 64, b.head, b.batch);
  }
  if (C::CLUSTER > 1) cluster_wait();
  if (copies_kv) {
    // Each key group starts the copies of its own blocks, in the order in which it needs them.
    const u32 rank = C::CLUSTER > 1 ? cluster_rank() : 0;
    const auto load = [&](int block, bool of_v) {
      const u32 full = of_v ? few.v_full(block) : few.k_full(block);
      const u32 to = (of_v ? v_tiles : k_tiles) + block * C::KV_BYTES + rank * C::BOX_ROWS * C::ROW_BYTES;
      barrier_arrive_expecting(full, C::KV_BYTES);
#pragma unroll
      for (int c = 0; c < C::CHUNKS; c++) {
        const u32 place = to + c * C::KV_CHUNK_BYTES;
        const int row = block * C::KEYS + (int)rank * C::BOX_ROWS;
        if (C::CLUSTER > 1)
          copy_box_to_all(place, of_v ? v_map : k_map, full, c * C::COLUMNS, row, kv_head, b.batch, (1 << C::CLUSTER) - 1);
        else
          copy_box(place, of_v ? v_map : k_map, full, c * C::COLUMNS, row, kv_head, b.batch);
      }
    };
    if (C::AHEAD) {
      for (int block = key_group; block < blocks; block += C::KEY_GROUPS) load(block, false), load(block, true);
    } else {
      for (int block = key_group; block < blocks; block += C::KEY_GROUPS) load(block, false);
      for (int block = key_group; block < blocks; block += C::KEY_GROUPS) load(block, true);
    }
  }
  if (C::CLUSTER == 1) sync_block();  // the barriers are there for everybody
  if (C::DEPENDENT) let_next_start();
  barrier_wait(barriers + row_group * 8, 0);
  few.template attend_to<C::MOST>(own_blocks <= key_group ? 0 : (own_blocks - key_group + C::KEY_GROUPS - 1) / C::KEY_GROUPS);
  // What other blocks send must land before this block's shared memory is used by another block, or for the exchange.
  if (C::CLUSTER > 1 && C::CAUSAL)
    for (int block = 0; block < blocks; block++) barrier_wait(few.k_full(block), 0), barrier_wait(few.v_full(block), 0);
  few.write(memory + (C::OWN_PLACE ? C::TILE_BYTES + row_group * C::Exchange::BYTES : row_group * C::Exchange::BYTES), row_group,
            thread);
}
