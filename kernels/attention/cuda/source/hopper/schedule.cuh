// The rows and keys of a tile of work, and the order in which tiles are taken.
#pragma once
#include "hopper/problem.cuh"

// The element types of a mask that is a tensor.
struct NoTensor {
  static constexpr int BYTES = 0;
};
struct BoolTensor {
  static constexpr int BYTES = 1;
};
template <class TYPE>
struct HalfTensor {
  typedef TYPE T;
  static constexpr int BYTES = 2;
};
struct FloatTensor {
  static constexpr int BYTES = 4;
};

// The configuration of a kernel. A block has one producer warpgroup and WARPGROUPS consumers of 64 rows each.
template <class TYPE, int HEAD_DIM, int WARPGROUPS_, int KEYS_, int STAGES_, bool RIGHT, bool LEFT, bool PING_PONG_, class MASK = NoTensor, bool PACKED_ = false, bool SPLIT_ = false,
          bool PAGED_ = false, int MASK_STAGES_ = 0, int SHARERS_ = 1, int BIAS_STAGES_ = 0, bool PAGES_AHEAD_ = false, int VALUE_DIM_ = HEAD_DIM, bool SINKS_ = false, bool FLOAT8_ = false, bool ONES_ = false>
struct Hopper {
  typedef TYPE T;
  typedef MASK Mask;
  static constexpr int D = HEAD_DIM;            // padded: a multiple of 32, at most 256
  static constexpr int VALUE_DIM = VALUE_DIM_;  // of V and the output, likewise
  static constexpr int WARPGROUPS = WARPGROUPS_, KEYS = KEYS_, STAGES = STAGES_;
  static constexpr bool BOUNDED_RIGHT = RIGHT;       // causal, or the right edge of a window
  static constexpr bool BOUNDED_LEFT = LEFT;         // the left edge of a window
  static constexpr bool HAS_TENSOR = MASK::BYTES > 0;  // a mask that is a tensor
  static constexpr bool PACKED = PACKED_;            // sequences of different lengths, which follow each other
  static constexpr bool PAGED = PAGED_;              // keys are in pages, which a table lists
  static_assert(!PAGED || PACKED, "keys in pages need packed sequences");
  static constexpr bool PAGES_AHEAD = PAGES_AHEAD_;  // a warp looks up the pages of the tile after the one that its lane 0 copies
  static_assert(!PAGES_AHEAD || PAGED, "looking up pages ahead needs keys in pages");
  static constexpr bool SINKS = SINKS_;              // each head has a score that takes its share of the weights
  static constexpr bool SPLIT = SPLIT_;              // the keys of a row are cut into parts, which another kernel joins
  static_assert(!SPLIT || !(LEFT || PACKED || HAS_TENSOR), "split keys do not support left limits, packed sequences and masks");
  static constexpr bool PING_PONG = PING_PONG_;      // warpgroups take turns at the tensor cores
  // Q, K and V have eight bits an element; T is the output's type. V is transposed (see float8.cuh): a tile has a row of KEYS
  // for each of its columns. Weights are multiplied by 2^WEIGHTS_LOG2, as most are small, and few of 256 numbers are.
  static constexpr bool FLOAT8 = FLOAT8_;
  static_assert(!FLOAT8 || !(PACKED_ || SPLIT_ || MASK::BYTES), "eight bits do not support packed sequences, split keys and masks");
  static constexpr int ELEMENT_BYTES = FLOAT8 ? 1 : 2, PRODUCT_DEPTH = 32 / ELEMENT_BYTES;
  static constexpr float WEIGHTS_LOG2 = FLOAT8 ? 8.0f : 0.0f;

  // Rows of ones below a transposed V, so that the product with V has the sums of the weights, too. They are sums of rounded
  // weights: right for the output, which the same weights make, but not for a log-sum-exp.
  static constexpr bool ONES = ONES_;
  static_assert(!ONES || (FLOAT8 && !SINKS), "ones are beside transposed values, and have no log-sum-exp");
  static constexpr int ONES_ROWS = ONES ? 8 : 0;

  static constexpr int WARPGROUP_THREADS = 128, WARPGROUP_ROWS = 64, WARPS_PER_WARPGROUP = 4;
  // A block computes this many heads at the same time, which share a mask; each has half of the warpgroups. One tile of the
  // mask serves both.
  static constexpr int SHARERS = SHARERS_, WARPGROUPS_OF_HEAD = WARPGROUPS / SHARERS;
  static_assert(SHARERS == 1 || (SHARERS == 2 && MASK_STAGES_ > 0 && !PACKED && !SPLIT), "two heads can share a staged mask");
  static constexpr int ROWS = WARPGROUPS_OF_HEAD * WARPGROUP_ROWS;
  static constexpr int CHUNK_ROW_BYTES = 128, CHUNK_COLUMNS = CHUNK_ROW_BYTES / ELEMENT_BYTES;  // one tensor copy moves these of each row
  static constexpr int CHUNKS = (D + CHUNK_COLUMNS - 1) / CHUNK_COLUMNS;
  static constexpr int Q_CHUNK_BYTES = SHARERS * ROWS * CHUNK_ROW_BYTES, Q_BYTES = CHUNKS * Q_CHUNK_BYTES;
  static_assert(!FLOAT8 || KEYS % PRODUCT_DEPTH == 0, "transposed values are multiplied by as many keys at a time");
  static constexpr int VALUE_CHUNKS = (VALUE_DIM + CHUNK_COLUMNS - 1) / CHUNK_COLUMNS;
  static constexpr int KEY_CHUNKS = (KEYS + CHUNK_COLUMNS - 1) / CHUNK_COLUMNS;  // of a row of transposed values; the last may have keys too many
  static constexpr int KV_CHUNK_BYTES = KEYS * CHUNK_ROW_BYTES;
  static constexpr int K_BYTES = CHUNKS * KV_CHUNK_BYTES, V_BYTES = FLOAT8 ? KEY_CHUNKS * (VALUE_DIM + ONES_ROWS) * CHUNK_ROW_BYTES : VALUE_CHUNKS * KV_CHUNK_BYTES;  // of one head
  static constexpr int K_STAGE_BYTES = SHARERS * K_BYTES, V_STAGE_BYTES = SHARERS * V_BYTES;
  // A staged mask comes through shared memory, where its tiles have a ring of MASK_STAGES places. The distance between its rows
  // is 16 bytes more than their length (32 bytes for elements of 32 bits), so that lanes of different rows read different
  // banks; therefore a copy is eight columns wider than the tile. The distance between rows of booleans is an odd multiple of
  // 16 bytes.
  static constexpr bool STAGED = MASK_STAGES_ > 0;
  static_assert(!STAGED || (HAS_TENSOR && KEYS % 16 == 0), "a staged mask must be a tensor, and KEYS a multiple of 16");
  static constexpr int MASK_PADDING = STAGED && MASK::BYTES == 1 ? (KEYS / 16 % 2 ? 0 : 16) : 8;
  // A mask that is the same for all rows comes as float32, one bias for each key. After the biases of a tile, eight words say
  // whether any of its keys is seen. Tiles whose keys are all hidden are neither copied nor multiplied.
  static constexpr bool KEY_BIAS = BIAS_STAGES_ > 0;
  static_assert(!KEY_BIAS || (HAS_TENSOR && !STAGED && !PACKED && !SPLIT), "biases need a mask that is not staged");
  static constexpr int BIAS_SEEN_WORDS = 8;
  static constexpr bool EDGE = RIGHT || !KEY_BIAS;  // some tiles hide keys at the right; biases hide those beyond the last key
  static constexpr int MASK_STAGES = STAGED ? MASK_STAGES_ : BIAS_STAGES_;
  static_assert((MASK_STAGES & (MASK_STAGES - 1)) == 0, "the number of places for masks must be a power of two");
  static constexpr int MASK_ROW_BYTES = (KEYS + MASK_PADDING) * (KEY_BIAS ? 4 : MASK::BYTES);
  static constexpr int MASK_TILE_BYTES = KEY_BIAS ? MASK_ROW_BYTES : ROWS * MASK_ROW_BYTES;
  static constexpr int BARRIERS = 2 + 4 * STAGES + 2 * MASK_STAGES;
  static constexpr int SLOT_WORDS = PACKED ? 3 : 1;  // these words say which tile a block's consumers have

  // Named barriers: 1 to WARPGROUPS are the turns of ping-pong, 0 is the whole block's.
  static constexpr int PRODUCER_WARP_THREADS = 32, BARRIERS_READY = WARPGROUPS + 1, EMPTIED = WARPGROUPS + 2;
  static constexpr int READY_THREADS = PRODUCER_WARP_THREADS + WARPGROUPS * WARPGROUP_THREADS;

  // Registers for each thread, in steps of 8. The producer, which only copies, gives most of its registers to the consumers.
  // Together they have as many as the block was launched with; a block that asks for more waits for ever.
  static constexpr int PRODUCER_REGISTERS = WARPGROUPS == 2 ? 40 : WARPGROUPS == 3 || MASK_STAGES > 0 ? 32 : 24;
  static constexpr int CONSUMER_REGISTERS = WARPGROUPS == 2 ? 232 : WARPGROUPS == 3 ? 160 : 112;
  static constexpr int LAUNCH_REGISTERS = 65536 / ((WARPGROUPS + 1) * WARPGROUP_THREADS) / 8 * 8;
  static_assert(PRODUCER_REGISTERS + WARPGROUPS * CONSUMER_REGISTERS <= (WARPGROUPS + 1) * LAUNCH_REGISTERS,
                "the warpgroups ask for more registers than the block has");
  static constexpr int SCORE_REGISTERS = KEYS / 2, OUT_REGISTERS = (VALUE_DIM + ONES_ROWS) / 2;
};

// One tile of work: ROWS rows of one head, and the tiles of keys first .. last - 1 that they see.
struct Tile {
  int batch, head, row0, first, last;
  int q_start, k_start, seq_q, seq_k;  // of a packed sequence
  int shift;                           // its limits count from here
  int part;                            // the number of the part of its keys
};

// The numbers of rows and keys, and where they begin in their tensors.
template <class C>
DEVICE int rows_of(const HopperParams& p, const Tile& tile) {
  return C::PACKED ? tile.seq_q : p.seq_q;
}
template <class C>
DEVICE int keys_of(const HopperParams& p, const Tile& tile) {
  return C::PACKED ? tile.seq_k : p.seq_k;
}
template <class C>
DEVICE int shift_of(const Tile& tile) {
  return C::PACKED ? tile.shift : 0;
}

// Sets the tiles of keys that the rows of a tile see, once the rows are known.
template <class C>
DEVICE void find_keys(const HopperParams& p, Tile& tile) {
  const int seq_q = rows_of<C>(p, tile), seq_k = keys_of<C>(p, tile), shift = shift_of<C>(tile);
  tile.first = 0;
  tile.last = (seq_k + C::KEYS - 1) / C::KEYS;
  if (C::BOUNDED_RIGHT) {
    const int end = (tile.row0 + C::ROWS < seq_q ? tile.row0 + C::ROWS : seq_q) + p.last_offset + shift;  // first key not seen
    const int last = end <= 0 ? 0 : (end + C::KEYS - 1) / C::KEYS;
    tile.last = last < tile.last ? last : tile.last;
  }
  if (C::BOUNDED_LEFT) {
    const int begin = tile.row0 + p.first_offset + shift;
    tile.first = begin <= 0 ? 0 : begin / C::KEYS;
    tile.first = tile.first < tile.last ? tile.first : tile.last;
  }
}

// Reduces the tiles of keys to this part's share, which may be empty.
template <class C>
DEVICE void take_share(const HopperParams& p, Tile& tile) {
  const int share = (int)((u32)(tile.last + p.splits - 1) / (u32)p.splits), end = tile.last;
  tile.first = tile.part * share < end ? tile.part * share : end;
  tile.last = tile.first + share < end ? tile.first + share : end;
}

// Where a packed sequence's rows begin. With keys in pages, all sequences may have the same number of rows and no array of
// starts.
template <class C>
DEVICE int start_of(const HopperParams& p, int batch) {
  return C::PAGED && !p.q_starts ? batch * p.queries : p.q_starts[batch];
}

// Row tile `row_tile` of a head of a packed sequence. Only the device knows the lengths.
template <class C>
DEVICE Tile packed_tile(const HopperParams& p, int batch, int head, int row_tile) {
  Tile tile;
  tile.batch = batch, tile.head = head, tile.row0 = row_tile * C::ROWS;
  if constexpr (C::PAGED) {
    tile.q_start = start_of<C>(p, batch), tile.k_start = 0;
    tile.seq_q = start_of<C>(p, batch + 1) - tile.q_start;
    tile.seq_k = p.k_lengths[batch] < p.seq_k ? p.k_lengths[batch] : p.seq_k;
  } else {
    tile.q_start = p.q_starts[batch], tile.k_start = p.k_starts[batch];
    tile.seq_q = p.q_starts[batch + 1] - tile.q_start, tile.seq_k = p.k_starts[batch + 1] - tile.k_start;
  }
  tile.shift = p.align_ends ? tile.seq_k - tile.seq_q : 0;
  find_keys<C>(p, tile);
  return tile;
}

// A block's walk over the sequences: it is given ever larger numbers of tiles, and continues from its last position. Heads come
// one after the other, so that the keys of a head stay in the cache, and the rows that see the most keys come first.
template <class C>
struct Sequences {
  int batch, before, row_tiles;  // the current sequence, the number of tiles before it, its tiles in one head
  __device__ __forceinline__ void open(const HopperParams& p) {
    if (batch < p.sequences) row_tiles = (start_of<C>(p, batch + 1) - start_of<C>(p, batch) + C::ROWS - 1) / C::ROWS;
  }
  // Returns false if there is no such tile.
  __device__ __forceinline__ bool find(const HopperParams& p, int index, Tile& tile) {
    const int heads = (int)p.heads.divisor;
    while (batch < p.sequences && index >= before + heads * row_tiles) {
      before += heads * row_tiles, batch++;
      open(p);
    }
    if (batch >= p.sequences) return false;
    const int head = (int)((u32)(index - before) / (u32)row_tiles), place = index - before - head * row_tiles;
    tile = packed_tile<C>(p, batch, head, C::BOUNDED_RIGHT ? row_tiles - 1 - place : place);
    return true;
  }
};

// Goes to the next head with the same mask: the same head of the next batch if those follow each other, else the next head.
template <class C>
DEVICE void go_to_sharer(const HopperParams& p, Tile& tile, int sharer) {
  if (p.batches.divisor > 1)
    tile.batch += sharer;
  else
    tile.head += sharer;
}

// Returns false for the surplus heads of the last section.
template <class C>
DEVICE bool tile_of(const HopperParams& p, int index, Tile& tile) {
  if constexpr (C::SPLIT) {  // one part after the other, so that blocks that run together read different keys
    tile.part = divide(index, p.part_tiles);
    index -= tile.part * (int)p.part_tiles.divisor;
  }
  const int section = divide(index, p.section_tiles), within = index - section * (int)p.section_tiles.divisor;
  int head_of_all, row_tile;
  if (C::BOUNDED_RIGHT) {
    // Later rows see more keys: the longest tiles come first, head by head, so that short ones fill the gaps at the end.
    const int place = divide(within, p.section);
    head_of_all = section * (int)p.section.divisor + within - place * (int)p.section.divisor;
    row_tile = (int)p.row_tiles.divisor - 1 - place;
  } else {
    const int head = divide(within, p.row_tiles);
    head_of_all = section * (int)p.section.divisor + head;
    row_tile = within - head * (int)p.row_tiles.divisor;
  }
  head_of_all *= C::SHARERS;
  if (head_of_all >= p.all_heads) return false;
  if (C::HAS_TENSOR && !C::KEY_BIAS && p.batches.divisor > 1) {  // a head's mask is read once, and then from the L2 cache
    tile.head = divide(head_of_all, p.batches);
    tile.batch = head_of_all - tile.head * (int)p.batches.divisor;
  } else {
    tile.batch = divide(head_of_all, p.heads);
    tile.head = head_of_all - tile.batch * (int)p.heads.divisor;
  }
  tile.row0 = row_tile * C::ROWS;
  find_keys<C>(p, tile);
  if constexpr (C::SPLIT) take_share<C>(p, tile);
  return true;
}

// The addresses of the barriers of a block. Q, and each stage of K and V, have two: a phase of `full` ends when the bytes have
// landed, a phase of `empty` when every consumer warp has read them.
template <class C>
struct Barriers {
  u32 base;
  __device__ __forceinline__ u32 q_full() const { return base; }
  __device__ __forceinline__ u32 q_empty() const { return base + 8; }
  __device__ __forceinline__ u32 k_full(int stage) const { return base + 16 + 8 * stage; }
  __device__ __forceinline__ u32 k_empty(int stage) const { return base + 16 + 8 * (C::STAGES + stage); }
  __device__ __forceinline__ u32 v_full(int stage) const { return base + 16 + 8 * (2 * C::STAGES + stage); }
  __device__ __forceinline__ u32 v_empty(int stage) const { return base + 16 + 8 * (3 * C::STAGES + stage); }
  __device__ __forceinline__ u32 mask_full(int stage) const { return base + 16 + 8 * (4 * C::STAGES + stage); }
  __device__ __forceinline__ u32 mask_empty(int stage) const { return base + 16 + 8 * (4 * C::STAGES + C::MASK_STAGES + stage); }

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
    for (int stage = 0; stage < C::MASK_STAGES; stage++) {
      barrier_init(mask_full(stage), 1);
      barrier_init(mask_empty(stage), READERS);
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

// The same for tiles of a mask, in one register, which counts the tiles so far.
template <class C>
struct MaskPlace {
  u32 count;
  __device__ __forceinline__ int stage() const { return (int)(count % C::MASK_STAGES); }
  __device__ __forceinline__ u32 parity() const { return count / C::MASK_STAGES & 1; }
};
