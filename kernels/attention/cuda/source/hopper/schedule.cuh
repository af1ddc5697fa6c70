// Which rows and keys a tile of work has, and in which order tiles are taken.
#pragma once
#include "hopper/problem.cuh"

// How a kernel is built. A block has one producer warpgroup and WARPGROUPS consumers of 64 rows each.
template <class TYPE, int HEAD_DIM, int WARPGROUPS_, int KEYS_, int STAGES_, bool RIGHT, bool LEFT, bool PING_PONG_>
struct Hopper {
  typedef TYPE T;
  static constexpr int D = HEAD_DIM;  // padded: 64 or 128
  static constexpr int WARPGROUPS = WARPGROUPS_, KEYS = KEYS_, STAGES = STAGES_;
  static constexpr bool BOUNDED_RIGHT = RIGHT;       // causal, or the right edge of a window
  static constexpr bool BOUNDED_LEFT = LEFT;         // the left edge of a window
  static constexpr bool PING_PONG = PING_PONG_;      // warpgroups take turns at the tensor cores

  static constexpr int WARPGROUP_THREADS = 128, WARPGROUP_ROWS = 64, WARPS_PER_WARPGROUP = 4;
  static constexpr int ROWS = WARPGROUPS * WARPGROUP_ROWS;
  static constexpr int CHUNK_COLUMNS = 64, CHUNK_ROW_BYTES = 128;  // what one tensor copy moves: 64 columns of each row
  static constexpr int CHUNKS = D / CHUNK_COLUMNS;
  static constexpr int Q_CHUNK_BYTES = ROWS * CHUNK_ROW_BYTES, Q_BYTES = CHUNKS * Q_CHUNK_BYTES;
  static constexpr int KV_CHUNK_BYTES = KEYS * CHUNK_ROW_BYTES, KV_BYTES = CHUNKS * KV_CHUNK_BYTES;
  static constexpr int BARRIERS = 2 + 4 * STAGES;

  // Named barriers: 1 to WARPGROUPS are the turns of ping-pong, 0 is the whole block's.
  static constexpr int PRODUCER_WARP_THREADS = 32, BARRIERS_READY = WARPGROUPS + 1;
  static constexpr int READY_THREADS = PRODUCER_WARP_THREADS + WARPGROUPS * WARPGROUP_THREADS;

  // Registers a thread, in steps of 8. The producer, which only copies, gives most of its own to the consumers; together they
  // have what the block was launched with, and a block that asks for more waits for ever.
  static constexpr int PRODUCER_REGISTERS = WARPGROUPS == 2 ? 40 : WARPGROUPS == 3 ? 32 : 24;
  static constexpr int CONSUMER_REGISTERS = WARPGROUPS == 2 ? 232 : WARPGROUPS == 3 ? 160 : 112;
  static constexpr int LAUNCH_REGISTERS = 65536 / ((WARPGROUPS + 1) * WARPGROUP_THREADS) / 8 * 8;
  static_assert(PRODUCER_REGISTERS + WARPGROUPS * CONSUMER_REGISTERS <= (WARPGROUPS + 1) * LAUNCH_REGISTERS, "");
  static constexpr int SCORE_REGISTERS = KEYS / 2, OUT_REGISTERS = D / 2;
};

// One tile of work: ROWS rows of one head, and the tiles of keys first .. last - 1 that they see.
struct Tile {
  int batch, head, row0, first, last;
};

// False for the surplus heads of the last section.
template <class C>
DEVICE bool tile_of(const HopperParams& p, int index, Tile& tile) {
  const int section = divide(index, p.section_tiles), within = index - section * (int)p.section_tiles.divisor;
  int head_of_all, row_tile;
  if (C::BOUNDED_RIGHT) {
    // Rows see more keys the later they come: the longest first, head by head, so that short ones fill the gaps at the end.
    const int place = divide(within, p.section);
    head_of_all = section * (int)p.section.divisor + within - place * (int)p.section.divisor;
    row_tile = (int)p.row_tiles.divisor - 1 - place;
  } else {
    const int head = divide(within, p.row_tiles);
    head_of_all = section * (int)p.section.divisor + head;
    row_tile = within - head * (int)p.row_tiles.divisor;
  }
  if (head_of_all >= p.all_heads) return false;
  tile.batch = divide(head_of_all, p.heads);
  tile.head = head_of_all - tile.batch * (int)p.heads.divisor;
  tile.row0 = row_tile * C::ROWS;
  tile.first = 0;
  tile.last = (p.seq_k + C::KEYS - 1) / C::KEYS;
  if (C::BOUNDED_RIGHT) {
    const int end = (tile.row0 + C::ROWS < p.seq_q ? tile.row0 + C::ROWS : p.seq_q) + p.last_offset;  // first key not seen
    const int last = end <= 0 ? 0 : (end + C::KEYS - 1) / C::KEYS;
    tile.last = last < tile.last ? last : tile.last;
  }
  if (C::BOUNDED_LEFT) {
    const int begin = tile.row0 + p.first_offset;
    tile.first = begin <= 0 ? 0 : begin / C::KEYS;
    tile.first = tile.first < tile.last ? tile.first : tile.last;
  }
  return true;
}

// Where each barrier of a block lies. Q and each stage of K and V have two: `full` ends a phase when the bytes have landed,
// `empty` when every consumer warp has read them.
template <class C>
struct Barriers {
  u32 base;
  __device__ __forceinline__ u32 q_full() const { return base; }
  __device__ __forceinline__ u32 q_empty() const { return base + 8; }
  __device__ __forceinline__ u32 k_full(int stage) const { return base + 16 + 8 * stage; }
  __device__ __forceinline__ u32 k_empty(int stage) const { return base + 16 + 8 * (C::STAGES + stage); }
  __device__ __forceinline__ u32 v_full(int stage) const { return base + 16 + 8 * (2 * C::STAGES + stage); }
  __device__ __forceinline__ u32 v_empty(int stage) const { return base + 16 + 8 * (3 * C::STAGES + stage); }

  __device__ __forceinline__ void init() const {
    constexpr int READERS = C::WARPGROUPS * C::WARPS_PER_WARPGROUP;
    barrier_init(q_full(), 1);
    barrier_init(q_empty(), READERS);
    for (int stage = 0; stage < C::STAGES; stage++) {
      barrier_init(k_full(stage), 1);
      barrier_init(v_full(stage), 1);
      barrier_init(k_empty(stage), READERS);
      barrier_init(v_empty(stage), READERS);
    }
    barrier_init_done();
  }
};

// A place in the ring of stages, and the parity of the phase it is in.
template <class C>
struct Place {
  int stage;
  u32 parity;
  __device__ __forceinline__ Place next() const {
    return stage + 1 == C::STAGES ? Place{0, parity ^ 1} : Place{stage + 1, parity};
  }
};
