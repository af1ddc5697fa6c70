// The rules of simt_races.h. Compiled without the thread sanitizer, whose calls it answers.
//
// A stamp is an access: who made it, and the maker's own clock then. A clock that has reached it has seen it. Makers are the
// threads, the warpgroups' products, the barriers' copies and the threads' additions.
#include "simt_races.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace simt::races {

const bool WATCHES = true;

enum class Kind { THREAD, COPY, PRODUCT, ADDITION };

struct Stamp {
  int maker;
  uint32_t clock;
  Kind kind;
  int thread;  // that made or asked for it; of a product the warpgroup's first
};

struct Clock {
  std::vector<uint32_t> seen;
  uint32_t of(int maker) const { return (size_t)maker < seen.size() ? seen[maker] : 0; }
  void reach(int maker, uint32_t clock) {
    if (seen.size() <= (size_t)maker) seen.resize(maker + 1);
    seen[maker] = std::max(seen[maker], clock);
  }
  void join(const Clock& other) {
    if (seen.size() < other.seen.size()) seen.resize(other.seen.size());
    for (size_t i = 0; i < other.seen.size(); i++) seen[i] = std::max(seen[i], other.seen[i]);
  }
  void keep_common(const Clock& other) {
    if (seen.size() > other.seen.size()) seen.resize(other.seen.size());
    for (size_t i = 0; i < seen.size(); i++) seen[i] = std::min(seen[i], other.seen[i]);
  }
};

struct Cell {  // four bytes
  std::vector<Stamp> writes;  // the last value's: one, or several that wrote the same
  std::vector<Stamp> reads;   // since then
};

struct Barrier {
  int maker;  // of its copies
  uint32_t copies = 0;
  Stamp made;
  Clock gathering, ended;  // of the phase under way, and of the one before
};

struct Finished {  // loads of a thread up to a clock have read, which those know who have seen another
  uint32_t until, known;
};

struct Block {
  int threads = 0, makers = 0;
  const char* shared = nullptr;
  size_t size = 0;
  std::vector<Clock> clocks;                  // of the threads
  std::vector<std::vector<uint32_t>> fences;  // their clocks at each
  std::vector<std::vector<Finished>> finished;  // loads
  std::vector<std::map<long long, uint32_t>> asked_at;  // their clocks when they asked for products
  std::vector<Cell> cells;                          // of shared memory
  std::unordered_map<uintptr_t, Cell> other_cells;  // of variables
  std::map<uint32_t, Barrier> barriers;
  Clock named[16], named_over[16];
  std::map<int, int> products, additions;  // makers, of warpgroups and threads
  std::map<int, uint32_t> additions_asked;
  std::map<std::pair<int, long long>, Clock> asked;  // what all that asked for a product had seen
  std::set<std::string> complaints;
};

static thread_local Block block;
static thread_local int running = -1;
static thread_local const char* stack_begin = nullptr;
static thread_local const char* stack_end = nullptr;

static std::string name_of(const Stamp& s, bool writes) {
  const std::string by = " by warp " + std::to_string(s.thread / 32);
  switch (s.kind) {
    case Kind::COPY: return "a copy asked for" + by;
    case Kind::PRODUCT: return "a product of warpgroup " + std::to_string(s.thread / 128);
    case Kind::ADDITION: return "an addition asked for" + by;
    default: return (writes ? "a write" : "a read") + by;
  }
}

static void complain(const char* what, uintptr_t cell, const Stamp& before, bool wrote, const Stamp& now, bool writes) {
  const uintptr_t from = (uintptr_t)block.shared, at = cell * 4;
  const bool inside = at >= from && at < from + block.size;
  char place[64];
  std::snprintf(place, sizeof place, inside ? "kilobyte %llu" : "a variable", (unsigned long long)(at - from) / 1024);
  const std::string text = std::string(what) + ": " + name_of(before, wrote) + ", then " + name_of(now, writes) + ", in " + place;
  if (block.complaints.size() < 24) block.complaints.insert(text);
}

// Whether a thread's write has been told to what reads it in its own time.
static bool is_published(const Stamp& write, const Clock& seen) {
  const auto& fences = block.fences[write.maker];
  const auto first = std::lower_bound(fences.begin(), fences.end(), write.clock);
  return first != fences.end() && seen.of(write.maker) >= *first;
}

// Whether a thread's load has read, as far as somebody knows who has seen so much.
static bool has_read(const Stamp& read, const Clock& seen) {
  const auto& all = block.finished[read.maker];
  const auto first = std::lower_bound(all.begin(), all.end(), read.clock,
                                      [](const Finished& one, uint32_t clock) { return one.until < clock; });
  return first != all.end() && seen.of(read.maker) >= first->known;
}

static void note(std::vector<Stamp>& stamps, const Stamp& now) {
  for (Stamp& one : stamps)
    if (one.maker == now.maker) {
      one = now;
      return;
    }
  stamps.push_back(now);
}

static Cell& cell_at(uintptr_t at) {
  const uintptr_t place = at - (uintptr_t)block.shared / 4;
  return place < block.cells.size() ? block.cells[place] : block.other_cells[at];
}

static void read_cell(uintptr_t at, const Stamp& now, const Clock& seen) {
  Cell& cell = cell_at(at);
  bool ordered = cell.writes.empty(), published = false;
  for (const Stamp& write : cell.writes) {
    if (seen.of(write.maker) < write.clock) continue;
    ordered = true;
    published |= write.kind != Kind::THREAD || now.kind == Kind::THREAD || is_published(write, seen);
  }
  if (!ordered)
    complain("a race", at, cell.writes.back(), true, now, false);
  else if (!published && !cell.writes.empty())
    complain("a write without its fence", at, cell.writes.back(), true, now, false);
  note(cell.reads, now);
}

static void write_cell(uintptr_t at, const Stamp& now, const Clock& seen, bool changes) {
  Cell& cell = cell_at(at);
  if (!changes) {  // nobody can tell it from what is there
    note(cell.writes, now);
    return;
  }
  for (const Stamp& write : cell.writes)
    if (seen.of(write.maker) < write.clock) complain("a race", at, write, true, now, true);
  for (const Stamp& read : cell.reads)
    if (seen.of(read.maker) < read.clock)
      complain("a race", at, read, false, now, true);
    else if (read.kind == Kind::THREAD && now.kind == Kind::COPY && !has_read(read, seen))
      complain("a copy over what a load may still have to read", at, read, false, now, true);
  cell.writes = {now};
  cell.reads.clear();
}

template <class Each>
static void for_each_cell(const void* at, size_t size, Each each) {
  for (uintptr_t cell = (uintptr_t)at / 4; cell * 4 < (uintptr_t)at + size; cell++) each(cell);
}

// The thread's clock as others get it; what it does from now on is later.
static const Clock& given_by(int thread) { return block.clocks[thread]; }
static void advance(int thread) { block.clocks[thread].seen[thread]++; }

static int maker_of(std::map<int, int>& makers, int key) {
  const auto found = makers.emplace(key, block.makers);
  if (found.second) block.makers++;
  return found.first->second;
}

void begin(int threads, const char* shared, size_t size) {
  block = Block();
  block.threads = block.makers = threads, block.shared = shared, block.size = size;
  block.clocks.resize(threads), block.fences.resize(threads), block.cells.resize(size / 4 + 1);
  block.finished.resize(threads), block.asked_at.resize(threads);
  for (int i = 0; i < threads; i++) block.clocks[i].reach(i, 1);
}

void tell() {
  for (const std::string& one : block.complaints) std::fprintf(stderr, "simt: %s\n", one.c_str());
}

void end() {
  tell();
  if (!block.complaints.empty()) std::_Exit(3);
}

void enter(int thread, const char* stack, size_t size) { running = thread, stack_begin = stack, stack_end = stack + size; }

// Later entries of a thread are of later loads, and known later.
static void finish(int thread, uint32_t until, uint32_t known) {
  auto& all = block.finished[thread];
  if (all.empty() || all.back().until < until) all.push_back({until, known});
}

void judge(int thread, const void* at, size_t size, bool writes, bool changes) {
  const Clock& seen = block.clocks[thread];
  const Stamp now = {thread, seen.of(thread), Kind::THREAD, thread};
  for_each_cell(at, size, [&](uintptr_t cell) { writes ? write_cell(cell, now, seen, changes) : read_cell(cell, now, seen); });
  if (!writes) return;
  finish(thread, now.clock, now.clock);
  advance(thread);
}

void fence(int thread) {
  const uint32_t now = block.clocks[thread].of(thread);
  block.fences[thread].push_back(now);
  finish(thread, now, now);
  advance(thread);
}
void loads_have_read(int thread) {
  for (int lane = thread / 32 * 32; lane < thread / 32 * 32 + 32 && lane < block.threads; lane++) {
    const uint32_t known = block.clocks[thread].of(lane);
    finish(lane, known, known);
  }
}

static Barrier& barrier_of(int thread, uint32_t address) {
  Barrier& b = block.barriers[address];
  if (block.clocks[thread].of(b.made.maker) < b.made.clock)
    block.complaints.insert("a barrier used by warp " + std::to_string(thread / 32) + ", which does not know that it is made");
  return b;
}

void barrier_made(int thread, uint32_t address) {
  Barrier& b = block.barriers[address];
  b.maker = block.makers++;
  b.made = {thread, block.clocks[thread].of(thread), Kind::THREAD, thread};
}

uint32_t copy_asked(int thread, const void* at, size_t size, uint32_t address) {
  Barrier& b = barrier_of(thread, address);
  const Stamp now = {b.maker, ++b.copies, Kind::COPY, thread};
  for_each_cell(at, size, [&](uintptr_t cell) { write_cell(cell, now, block.clocks[thread], true); });
  return now.clock;
}
void copy_landed(uint32_t address, uint32_t number) {
  Barrier& b = block.barriers[address];
  b.gathering.reach(b.maker, number);
}

void arrive(int thread, uint32_t address) {
  barrier_of(thread, address).gathering.join(given_by(thread));
  advance(thread);
}
void phase_ended(uint32_t address) {
  Barrier& b = block.barriers[address];
  b.ended = b.gathering;
  b.gathering = Clock();
}
void see_phase(int thread, uint32_t address) { block.clocks[thread].join(barrier_of(thread, address).ended); }

void arrive_named(int thread, int id) {
  block.named[id].join(given_by(thread));
  advance(thread);
}
void named_ended(int id) {
  block.named_over[id] = block.named[id];
  block.named[id] = Clock();
}
void see_named(int thread, int id) { block.clocks[thread].join(block.named_over[id]); }

void meet(int first, int count) {
  Clock all;
  for (int i = first; i < first + count; i++) all.join(given_by(i));
  for (int i = first; i < first + count; i++) {
    block.clocks[i].join(all);
    advance(i);
  }
}

void product_asked(int thread, int warpgroup, long long number) {
  block.asked_at[thread][number] = block.clocks[thread].of(thread);
  const auto product = std::make_pair(warpgroup, number);
  const auto found = block.asked.find(product);
  if (found == block.asked.end())
    block.asked.emplace(product, block.clocks[thread]);
  else
    found->second.keep_common(block.clocks[thread]);
}
void product_reads(int warpgroup, long long number, const void* at, size_t size) {
  const Stamp now = {maker_of(block.products, warpgroup), (uint32_t)number + 1, Kind::PRODUCT, warpgroup * 128};
  const Clock& seen = block.asked[{warpgroup, number}];
  for_each_cell(at, size, [&](uintptr_t cell) { read_cell(cell, now, seen); });
}
void see_products(int thread, int warpgroup, long long until) {
  if (until <= 0) return;
  block.clocks[thread].reach(maker_of(block.products, warpgroup), (uint32_t)until);
  auto& asked = block.asked_at[thread];
  const auto end = asked.lower_bound(until);  // product `until` - 1 is the last that has ended
  if (end == asked.begin()) return;
  finish(thread, std::prev(end)->second, block.clocks[thread].of(thread));
  asked.erase(asked.begin(), end);
  advance(thread);
}

void addition_reads(int thread, const void* at, size_t size) {
  const Stamp now = {maker_of(block.additions, thread), ++block.additions_asked[thread], Kind::ADDITION, thread};
  for_each_cell(at, size, [&](uintptr_t cell) { read_cell(cell, now, block.clocks[thread]); });
}
void see_additions(int thread) {
  if (block.additions.count(thread)) block.clocks[thread].reach(block.additions[thread], block.additions_asked[thread]);
}

// An access through a pointer: to the block's memory, or to a volatile variable of its own.
static void seen(const void* at, size_t size, bool writes, bool is_volatile) {
  if (running < 0) return;
  const char* from = (const char*)at;
  const bool inside = from >= block.shared && from < block.shared + block.size;
  const bool own = from >= stack_begin && from < stack_end;
  if (inside || (is_volatile && !own)) access(running, at, size, writes);
}

}  // namespace simt::races

#define HOOK(NAME, SIZE, WRITES, VOLATILE) \
  extern "C" void __tsan_##NAME(void* at) { simt::races::seen(at, SIZE, WRITES, VOLATILE); }
#define HOOKS(SIZE)                                \
  HOOK(read##SIZE, SIZE, false, false)             \
  HOOK(write##SIZE, SIZE, true, false)             \
  HOOK(unaligned_read##SIZE, SIZE, false, false)   \
  HOOK(unaligned_write##SIZE, SIZE, true, false)   \
  HOOK(volatile_read##SIZE, SIZE, false, true)     \
  HOOK(volatile_write##SIZE, SIZE, true, true)     \
  HOOK(unaligned_volatile_read##SIZE, SIZE, false, true) \
  HOOK(unaligned_volatile_write##SIZE, SIZE, true, true)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
extern "C" {
void __tsan_read_range(void* at, size_t size) { simt::races::seen(at, size, false, false); }
void __tsan_write_range(void* at, size_t size) { simt::races::seen(at, size, true, false); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}
