// A block of a Hopper kernel on the CPU: its warps part, wait for different things, and blocks take turns.
//
// Every fiber runs as far as it gets. What the chip does in its own time (copies, products of warpgroups) is done either as
// soon as it is asked for or, one piece at a time, when no fiber can go on without it. Where nothing is left to do and
// fibers still wait, the block is deadlocked, which is reported with who waits for what.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "simt_device.h"

namespace simt {

enum class Wait { NOTHING, BARRIER, NAMED, PRODUCTS, REGISTERS };

struct Waiting {
  Wait what = Wait::NOTHING;
  u32 which = 0, parity = 0;
  i64 until = 0;  // products that must have ended
};

struct Barrier {
  u32 arrivals = 0, due = 0, parity = 0;  // a phase; arrivals still due; the parity of the phase under way
  i64 bytes = 0;                          // still to land in this phase
};

struct NamedBarrier {
  int threads = 0, arrived = 0;
};

struct Map {  // how the tests' own libcuda writes a tensor map
  u64 magic, address, dtype, rank, sizes[4], strides[3], box[4], swizzle;
};
constexpr u64 MAP_MAGIC = 0x70616d726f736e65ull;
constexpr u64 MAP_FLOAT32 = 7;  // as the driver numbers types and ways of swizzling
constexpr u64 MAP_NO_SWIZZLE = 0;

inline u32 element_bytes(const Map& map) { return map.dtype == MAP_FLOAT32 ? 4 : 2; }
inline u32 row_bytes(const Map& map) { return (u32)map.box[0] * element_bytes(map); }

struct Box {  // a copy under way: of a map's box, or of bytes that follow each other
  u32 to, barrier, bytes;
  Map map;
  int at[4];
  const char* from = nullptr;
  u32 number = 0;  // among its barrier's copies
};

inline u32 rows_of(const Map& map) { return (u32)(map.box[1] * map.box[2] * map.box[3]); }

struct Range {  // of shared memory
  u32 from, to;
};

struct Held {  // accumulators that products will write
  float* at;
  int products;
  std::vector<float> values;
};

enum class Left { ACROSS, ALONG, REGISTERS };  // how a product's first operand lies

struct Product {
  int n, asked = 0;
  bool bfloat, accumulate;
  Left left;
  u64 a, b;
  float* d[128];
  const u32* rows[128];
};

struct Warpgroup {
  std::deque<Product> products;  // in order; not yet ended
  i64 ended = 0;
  i64 asked[128] = {};              // by each of its threads
  std::vector<i64> groups[128];     // products asked for at each commit
  std::vector<Held> held[128];
};

struct Block {
  std::vector<Waiting> waiting;
  std::vector<int> registers;  // of each thread
  i64 free_registers = 0;
  std::map<u32, Barrier> barriers;
  NamedBarrier named[16];
  std::vector<Box> boxes;
  std::vector<Warpgroup> warpgroups;
  std::mt19937 chance;
};

constexpr int REGISTERS_OF_SM = 65536, MOST_REGISTERS = 255;

inline thread_local Block block;
inline bool late_copies = false, late_products = false;
inline unsigned seed = 0;           // of the order of warps and copies; 0: in order
inline bool greedy_blocks = false;  // a block runs to its end before the next begins

inline void carry_out(const Box& box);
inline bool end_products();

inline void wait_elsewhere(Wait what, u32 which, u32 parity = 0, i64 until = 0) {
  block.waiting[current] = {what, which, parity, until};
  wait(State::ELSEWHERE);
}

// Lets those fibers go on that wait for this, and for which `ready` says so.
template <class Ready>
inline void wake(Wait what, u32 which, Ready ready) {
  for (size_t i = 0; i < lanes.size(); i++) {
    Waiting& w = block.waiting[i];
    if (lanes[i].state == State::ELSEWHERE && w.what == what && w.which == which && ready(w))
      w.what = Wait::NOTHING, lanes[i].state = State::READY;
  }
}

inline std::string describe(const Waiting& w, State state) {
  char text[200];
  if (state == State::AT_WARP) return "the other lanes of their warp";
  if (state == State::AT_BLOCK) return "all threads of the block";
  switch (w.what) {
    case Wait::BARRIER: {
      const Barrier& b = block.barriers[w.which];
      std::snprintf(text, sizeof text, "parity %u of barrier %u, which lacks %u of %u arrivals and %lld bytes", w.parity,
                    (w.which - block.barriers.begin()->first) / 8, b.due, b.arrivals, b.bytes);
      return text;
    }
    case Wait::NAMED:
      std::snprintf(text, sizeof text, "named barrier %u, where %d of %d have arrived", w.which, block.named[w.which].arrived,
                    block.named[w.which].threads);
      return text;
    case Wait::PRODUCTS: return "products that not all of their warpgroup have asked for";
    case Wait::REGISTERS: return "registers that nobody gives away";
    default: return "nothing";
  }
}

[[noreturn]] inline void fail_of_deadlock() {
  std::string report = "deadlock:";
  for (size_t first = 0, next; first < lanes.size(); first = next) {
    const auto about = [](size_t i) {
      return lanes[i].state == State::DONE ? std::string() : describe(block.waiting[i], lanes[i].state);
    };
    const std::string what = about(first);
    for (next = first + 1; next < lanes.size() && about(next) == what; next++) {
    }
    if (!what.empty())
      report += " threads " + std::to_string(first) + "-" + std::to_string(next - 1) + " wait for " + what + ";";
  }
  fail(report.c_str());
}

// Which copy lands: one that somebody waits for, if there is one, so that the others come as late as can be.
inline size_t box_to_land() {
  std::vector<size_t> awaited;
  for (size_t i = 0; i < block.boxes.size(); i++)
    for (size_t l = 0; l < lanes.size(); l++) {
      const Waiting& w = block.waiting[l];
      if (lanes[l].state != State::ELSEWHERE || w.what != Wait::BARRIER || w.which != block.boxes[i].barrier) continue;
      awaited.push_back(i);
      break;
    }
  const size_t chance = seed ? block.chance() : 0;
  return awaited.empty() ? chance % block.boxes.size() : awaited[chance % awaited.size()];
}

// Something that the chip does late, because nothing else can be done; false if there is nothing.
inline bool do_something_late() {
  const bool products_first = seed % 2 == 0;
  if (products_first && end_products()) return true;
  if (block.boxes.empty()) return end_products();
  const size_t which = box_to_land();
  const Box box = block.boxes[which];
  block.boxes.erase(block.boxes.begin() + (long)which);
  carry_out(box);
  return true;
}

// True if a lane ran or could have. With a seed some lanes fall behind the others of their warp.
inline bool run_warp(Lane* warp) {
  bool ran = false;
  for (;;) {
    for (int l = 0; l < 32; l++) {
      if (warp[l].state != State::READY) continue;
      ran = true;
      if (!seed || block.chance() % 4) resume(warp[l]);
    }
    int at_warp = 0;
    for (int l = 0; l < 32; l++) at_warp += warp[l].state == State::AT_WARP;
    if (at_warp != 32) return ran;
    answer(warp);
  }
}

inline void run_parting_block(int threads) {
  block = Block();
  block.waiting.resize(threads);
  block.chance.seed(seed);
  block.warpgroups.resize((threads + 127) / 128);
  block.registers.assign(threads, std::min(MOST_REGISTERS, REGISTERS_OF_SM / threads / 8 * 8));
  prepare(threads);
  std::vector<int> order;
  for (int w = 0; w < threads / 32; w++) order.push_back(last_warp_first ? threads / 32 - 1 - w : w);
  for (;;) {
    bool ran = false;
    if (seed) std::shuffle(order.begin(), order.end(), block.chance);
    for (int w : order) ran |= run_warp(&lanes[w * 32]);
    if (ran) continue;
    int done = 0, at_block = 0;
    for (const Lane& l : lanes) done += l.state == State::DONE, at_block += l.state == State::AT_BLOCK;
    if (done == threads) break;
    if (at_block == threads) {
      races::meet(0, threads);
      for (Lane& l : lanes) l.state = State::READY;
    } else if (!do_something_late())
      fail_of_deadlock();
  }
  if (!block.boxes.empty()) fail("a copy is still under way at the end of its block");
  for (const auto& [address, barrier] : block.barriers)
    if (barrier.bytes) fail("a barrier still counts bytes at the end of its block");
  for (const Warpgroup& w : block.warpgroups)
    if (!w.products.empty()) fail("a product is still under way at the end of its block");
  races::end();
}

// Blocks that share an SM's time: one at a time, handed on where they meet (at a counter in global memory).
struct Turns {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> ended;
  size_t holder = 0;

  void hand_on(size_t from) {
    for (size_t step = 1; step <= ended.size(); step++) {
      holder = (from + step) % ended.size();
      if (!ended[holder]) break;
    }
    changed.notify_all();
  }
  void await(std::unique_lock<std::mutex>& lock, size_t self) {
    changed.wait(lock, [&] { return holder == self; });
  }
};

inline Turns* turns = nullptr;
inline thread_local size_t place_among_blocks = 0;

inline void let_other_blocks_run() {
  if (greedy_blocks || !turns) return;
  std::unique_lock<std::mutex> lock(turns->mutex);
  turns->hand_on(place_among_blocks);
  turns->await(lock, place_among_blocks);
}

inline void launch_parting(Index grid, int threads, size_t shared_size, std::function<void()> kernel) {
  Turns all;
  turns = &all;
  body = kernel, grid_size = grid;
  all.ended.resize((size_t)grid.x * grid.y * grid.z);
  std::vector<std::thread> blocks;
  for (size_t i = 0; i < all.ended.size(); i++)
    blocks.emplace_back([&, i] {
      std::unique_lock<std::mutex> lock(all.mutex);
      all.await(lock, i);
      lock.unlock();
      place_among_blocks = i;
      block_index = {(unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y), (unsigned)(i / grid.x / grid.y)};
      lanes.resize(threads);
      shared.assign(shared_size, (char)0xff);
      run_parting_block(threads);
      lanes.clear(), lanes.shrink_to_fit();
      lock.lock();
      all.ended[i] = true;
      all.hand_on(i);
    });
  for (std::thread& one : blocks) one.join();
  turns = nullptr;
}

}  // namespace simt
