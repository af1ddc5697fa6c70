// A block of a Hopper kernel on the CPU, for hopper_engine.cc: its warps part, wait for different things, and blocks take turns.
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

#include "hopper/instructions.cuh"
#include "simt_lanes.h"
#include "simt_memory.h"
#include "simt_program.h"

namespace simt {

enum class Wait { NOTHING, BARRIER, NAMED, PRODUCTS, REGISTERS, VALUE };

struct Waiting {
  Wait what = Wait::NOTHING;
  u32 which = 0, parity = 0;
  i64 until = 0;  // products that must have ended
  const int* at = nullptr;  // a number in global memory, and what it must be
  int value = 0;
};

struct Barrier {
  u32 arrivals = 0, due = 0, parity = 0;  // a phase; arrivals still due; the parity of the phase under way
  i64 bytes = 0;                          // still to land in this phase
  bool published = false;                 // to the copy engine and the other block
};

struct NamedBarrier {
  int threads = 0, arrived = 0;
};

struct Box {  // a copy under way: of a map's box, or of bytes that follow each other
  u32 to, barrier, bytes;
  Map map;
  int at[4];
  const char* from = nullptr;
  u32 number = 0;  // among its barrier's copies
};

struct Range {  // of shared memory
  u32 from, to;
};

struct Held {  // accumulators that products will write
  float* at;
  int products;
  std::vector<float> values;
};

struct Product : Asked {
  int asked = 0;  // by so many threads
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

struct Addition {
  float* to;
  u32 from, bytes;
  bool stores;                // in place of what is there
  std::vector<float> floats;  // once they have been read
};

struct Message {  // from the other block of a cluster: bytes of its shared memory, or an arrival
  u32 to, bytes, barrier;
  const char* from;
};

struct Block {
  std::vector<Message> messages;
  std::map<u32, u32> places;  // to which the other block has copied, and their bytes
  std::vector<size_t> met_peer;  // by each thread, so often
  int sender = 0;                // the thread that last copied to the other block
  char* memory = nullptr;
  std::vector<Waiting> waiting;
  std::vector<int> registers;  // of each thread
  i64 free_registers = 0;
  std::map<u32, Barrier> barriers;
  NamedBarrier named[16];
  std::vector<Box> boxes;
  std::vector<Warpgroup> warpgroups;
  std::map<int, std::vector<Addition>> additions;  // of each thread, not yet carried out
  std::mt19937 chance, own_chance;  // the same in every block; its own
};

constexpr int REGISTERS_OF_SM = 65536, MOST_REGISTERS = 255;

inline __thread Block* running;  // on this thread of the host

void carry_out(const Box& box);
void deliver(const Message& message);
void check_places_are_read();
inline bool end_products();

inline void wait_elsewhere(Wait what, u32 which, u32 parity = 0, i64 until = 0) {
  running->waiting[current] = {what, which, parity, until};
  wait(State::ELSEWHERE);
}

// Lets those fibers go on that wait for this, and for which `ready` says so.
template <class Ready>
inline void wake(Wait what, u32 which, Ready ready) {
  for (size_t i = 0; i < (size_t)lane_count; i++) {
    Waiting& w = running->waiting[i];
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
      const Barrier& b = running->barriers[w.which];
      std::snprintf(text, sizeof text, "parity %u of barrier %u, which lacks %u of %u arrivals and %lld bytes", w.parity,
                    (w.which - running->barriers.begin()->first) / 8, b.due, b.arrivals, b.bytes);
      return text;
    }
    case Wait::NAMED:
      std::snprintf(text, sizeof text, "named barrier %u, where %d of %d have arrived", w.which, running->named[w.which].arrived,
                    running->named[w.which].threads);
      return text;
    case Wait::PRODUCTS: return "products that not all of their warpgroup have asked for";
    case Wait::REGISTERS: return "registers that nobody gives away";
    case Wait::VALUE:
      std::snprintf(text, sizeof text, "a number in global memory that is %d and should be %d", *w.at, w.value);
      return text;
    default: return "nothing";
  }
}

[[noreturn]] inline void fail_of_deadlock() {
  std::string report = "deadlock:";
  for (size_t first = 0, next; first < (size_t)lane_count; first = next) {
    const auto about = [](size_t i) {
      return lanes[i].state == State::DONE ? std::string() : describe(running->waiting[i], lanes[i].state);
    };
    const std::string what = about(first);
    for (next = first + 1; next < (size_t)lane_count && about(next) == what; next++) {
    }
    if (!what.empty())
      report += " threads " + std::to_string(first) + "-" + std::to_string(next - 1) + " wait for " + what + ";";
  }
  fail(report.c_str());
}

// Which copy lands: one that somebody waits for, if there is one, so that the others come as late as can be.
inline size_t box_to_land() {
  std::vector<size_t> awaited;
  for (size_t i = 0; i < running->boxes.size(); i++)
    for (size_t l = 0; l < (size_t)lane_count; l++) {
      const Waiting& w = running->waiting[l];
      if (lanes[l].state != State::ELSEWHERE || w.what != Wait::BARRIER || w.which != running->boxes[i].barrier) continue;
      awaited.push_back(i);
      break;
    }
  const size_t chance = seed ? running->chance() : 0;
  return awaited.empty() ? chance % running->boxes.size() : awaited[chance % awaited.size()];
}

// Something that the chip does late, because nothing else can be done; false if there is nothing.
inline bool do_something_late() {
  const bool products_first = seed % 2 == 0;
  if (products_first && end_products()) return true;
  if (running->boxes.empty()) return end_products();
  const size_t which = box_to_land();
  const Box box = running->boxes[which];
  running->boxes.erase(running->boxes.begin() + (long)which);
  carry_out(box);
  return true;
}

inline bool by_chance() { return running->chance() % 4; }

// True if a lane ran or could have. With a seed some lanes fall behind the others of their warp.
inline bool run_warp(Lane* warp) {
  bool ran = false;
  for (;;) {
    ran |= run_lanes(warp);
    int at_warp = 0;
    for (int l = 0; l < 32; l++) at_warp += warp[l].state == State::AT_WARP;
    if (at_warp != 32) return ran;
    answer(warp);
  }
}

inline bool await_other_blocks();
inline void tell_progress();
inline thread_local size_t place_among_blocks = 0;
inline std::vector<Block*> present;                 // by their place
inline std::vector<std::map<size_t, int>> meetings;  // of each pair of blocks: threads that have come to its first, second, ...

inline Block* peer() { return present[place_among_blocks ^ 1]; }

// What the other block has sent arrives as late as can be: when nothing else can go on.
inline bool deliver_messages() {
  const std::vector<Message> all = std::move(running->messages);
  running->messages.clear();
  for (const Message& message : all) deliver(message);
  return !all.empty();
}

// Whether all threads wait for those of the other block, and for nothing else: what is under way may still be when they have met.
inline bool all_meet_peer() {
  for (int i = 0; i < lane_count; i++)
    if (lanes[i].state != State::ELSEWHERE || running->waiting[i].what != Wait::VALUE || !running->met_peer[i]) return false;
  return true;
}

inline void run_parting_block(int threads) {
  Block own;
  running = &own;
  present[place_among_blocks] = &own, own.memory = shared, own.met_peer.resize(threads);
  running->waiting.resize(threads);
  running->chance.seed(seed), running->own_chance.seed(seed * 1000 + (unsigned)place_among_blocks);
  running->warpgroups.resize((threads + 127) / 128);
  running->registers.assign(threads, std::min(MOST_REGISTERS, REGISTERS_OF_SM / threads / 8 * 8));
  std::vector<int> order;
  for (int w = 0; w < threads / 32; w++) order.push_back(last_warp_first ? threads / 32 - 1 - w : w);
  for (;;) {
    bool ran = false;
    if (seed) std::shuffle(order.begin(), order.end(), running->chance);
    for (int w : order) ran |= run_warp(&lanes[w * 32]);
    if (ran) {
      tell_progress();
      continue;
    }
    int done = 0, at_block = 0;
    for (int i = 0; i < threads; i++) done += lanes[i].state == State::DONE, at_block += lanes[i].state == State::AT_BLOCK;
    if (done == threads) break;
    if (at_block == threads) {
      races::meet(0, threads);
      for (int i = 0; i < threads; i++) lanes[i].state = State::READY;
    } else if (all_meet_peer() && await_other_blocks())
      continue;
    else if (do_something_late() || deliver_messages())
      tell_progress();
    else if (!await_other_blocks())
      fail_of_deadlock();
  }
  if (!running->boxes.empty()) fail("a copy is still under way at the end of its block");
  for (const auto& [thread, additions] : running->additions)
    if (!additions.empty()) fail("an addition is still under way at the end of its block");
  for (const auto& [address, barrier] : running->barriers)
    if (barrier.bytes || barrier.due != barrier.arrivals) fail("a barrier is within a phase at the end of its block");
  for (const Warpgroup& w : running->warpgroups)
    if (!w.products.empty()) fail("a product is still under way at the end of its block");
  if (!running->messages.empty()) fail("a message of the other block is still under way at the end of its block");
  present[place_among_blocks] = nullptr;
  races::end();
}

// Blocks that share an SM's time: one at a time, handed on where they meet (at a counter in global memory).
struct Turns {
  std::mutex mutex;
  std::vector<std::condition_variable> turn;  // of each block
  std::vector<bool> ended;
  size_t holder = 0, done = 0, fruitless = 0;  // blocks that have ended; times that one was woken for nothing

  explicit Turns(size_t blocks) : turn(blocks), ended(blocks) {}
  bool may_run(size_t block) const { return !ended[block] && (!resident_blocks || block < done + resident_blocks); }
  void hand_on(size_t from) {
    for (size_t step = 1; step <= ended.size(); step++) {
      holder = (from + step) % ended.size();
      if (may_run(holder)) break;
    }
    turn[holder].notify_one();
  }
  void await(std::unique_lock<std::mutex>& lock, size_t self) {
    turn[self].wait(lock, [&] { return holder == self; });
  }
};

inline Turns* turns = nullptr;

inline void tell_progress() { turns->fruitless = 0; }

inline void pass_on() {
  std::unique_lock<std::mutex> lock(turns->mutex);
  turns->hand_on(place_among_blocks);
  turns->await(lock, place_among_blocks);
}

void let_other_blocks_run() {
  if (!greedy_blocks && turns) pass_on();
}

// Nothing in this block can go on: the others run. False if no fiber waits for what another block does, or none of them does it.
inline bool await_other_blocks() {
  bool waits = false;
  for (int i = 0; i < lane_count; i++) {
    const Wait what = running->waiting[i].what;
    const bool by_peer = what == Wait::BARRIER && running->met_peer[i] && peer();
    waits |= lanes[i].state == State::ELSEWHERE && (what == Wait::VALUE || by_peer);
  }
  if (!waits || turns->fruitless++ > 2 * turns->ended.size()) return false;
  pass_on();
  wake(Wait::VALUE, 0, [](const Waiting& w) { return *w.at == w.value; });
  return true;
}

void perhaps_let_other_blocks_run() {
  if (seed && running->own_chance() % 2) let_other_blocks_run();
}

void await_value(const int* at, int value) {
  check_global((const char*)at, sizeof *at, "a number is read outside of what a kernel may write");
  let_other_blocks_run();
  while (*at != value) {
    running->waiting[current] = {Wait::VALUE, 0, 0, 0, at, value};
    wait(State::ELSEWHERE);
  }
}

int look_at_value(const int* at) {
  check_global((const char*)at, sizeof *at, "a number is read outside of what a kernel may write");
  return *at;
}

int claim_value(int* at) {
  check_global((const char*)at, sizeof *at, "a number is claimed outside of what a kernel may write");
  let_other_blocks_run();
  const int before = *at;
  if (before == 0) *at = 1;
  return before;
}

u32 address_in_cluster(const void* pointer) {
  window = (u32)(place_among_blocks & 1) << 24;
  return address_of(pointer) + window;
}

void meet_peer() {
  const size_t which = running->met_peer[current]++;
  int& come = meetings[place_among_blocks / 2][which];
  come++;
  if (std::all_of(running->met_peer.begin(), running->met_peer.end(), [&](size_t met) { return met > which; })) races::meet(0, lane_count);
  while (come != 2 * lane_count) {
    running->waiting[current] = {Wait::VALUE, 0, 0, 0, &come, 2 * lane_count};
    wait(State::ELSEWHERE);
  }
}

// What will be overwritten is lost at once; what is sent is read when the message is delivered. The thread that arrives has no product
// under way that reads what the other block has sent.
void send_to_peer(u32 to, u32 from, u32 bytes, u32 barrier) {
  if (!peer()) fail("something is sent to a block that is not there");
  if (to % 16 || from % 16 || bytes % 16) fail("a copy to another block of no whole pieces of 16");
  if (bytes) races::addition_reads(running->sender = current, shared_bytes(from, 16), bytes);
  if (bytes) std::memset(peer()->memory + (to - window - SHARED_BASE), 0xff, bytes);
  if (!bytes) check_places_are_read();
  peer()->messages.push_back({to - window, bytes, barrier - window, bytes ? shared_bytes(from, 16) : nullptr});
}

void give_value(int* at, int value) {
  check_global((const char*)at, sizeof *at, "a number is written outside of what a kernel may write");
  *at = value;
  let_other_blocks_run();
}

void count_value(int* at) {
  check_global((const char*)at, sizeof *at, "a number is counted up outside of what a kernel may write");
  ++*at;
  let_other_blocks_run();
}

// One lane of a warp hands on, so that all of it looks again as soon as this block has its turn.
void rest() {
  if (current % 32) return;
  if (!turns || turns->fruitless++ > 1000 * turns->ended.size()) fail("a block rests for what nobody does");
  pass_on();
}

void launch_parting(const std::vector<Launch>& launches) {
  struct Place {
    const Launch* launch;
    unsigned index;  // of the block, among those of its launch
  };
  static thread_local const Launch* own;
  std::vector<Place> places;
  for (const Launch& one : launches)
    for (unsigned i = 0; i < one.grid.x * one.grid.y * one.grid.z; i++) places.push_back({&one, i});
  present.assign(places.size() + 1, nullptr), meetings.assign(places.size(), {});
  Turns all(places.size());
  turns = &all;
  takes_its_turn = seed ? by_chance : nullptr;
  set_kernel(launches[0].grid, [] { own->kernel(); });
  std::vector<std::thread> blocks;
  for (size_t i = 0; i < all.ended.size(); i++)
    blocks.emplace_back([&, i] {
      std::unique_lock<std::mutex> lock(all.mutex);
      all.await(lock, i);
      lock.unlock();
      place_among_blocks = i, own = places[i].launch, grid_size = own->grid;
      const unsigned index = places[i].index;
      block_index = {index % grid_size.x, index / grid_size.x % grid_size.y, index / grid_size.x / grid_size.y};
      begin_block(own->threads, own->shared_size);
      run_parting_block(own->threads);
      end_host_thread();
      lock.lock();
      all.ended[i] = true, all.done++;
      all.hand_on(i);
    });
  for (std::thread& one : blocks) one.join();
  turns = nullptr, takes_its_turn = nullptr;
}

}  // namespace simt
