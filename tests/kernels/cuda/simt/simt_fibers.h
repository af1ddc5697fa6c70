// A fiber for each thread of a block, the block's shared memory, and how a fiber waits.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "simt_races.h"

namespace simt {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

enum class State { READY, AT_WARP, AT_BLOCK, DONE, ELSEWHERE };  // elsewhere: simt_hopper.h knows what it waits for
enum class Request { NONE, SYNC, SHUFFLE, SHUFFLE_FROM, FIRST, ANY, MMA, MATRICES, MATRICES_TRANSPOSED, STORE_MATRICES };

struct Copy {
  u32 to;
  const char* from;
  bool reads;
};

// A stack and a place on it. The first switch to a fiber takes system calls; those after it do without.
struct Fiber {
  ucontext_t first;
  jmp_buf place;
  bool begun = false;
};

struct Lane {
  Fiber fiber;
  std::unique_ptr<char[]> stack;  // not touched before it is used
  State state = State::READY;
  Request request = Request::NONE;
  // Operands and results of what the warp does together.
  u32 word = 0;
  int number = 0;
  bool flag = false, bfloat = false;
  u32 a[4], b[2], address = 0, loaded[4];
  float c[4];
  std::vector<Copy> open;                 // issued, not yet committed
  std::vector<std::vector<Copy>> groups;  // committed, not yet landed
};

constexpr u32 SHARED_BASE = 1024;  // not 0, so that a forgotten base shows
constexpr u32 STATIC_SHARED = 1u << 31;
constexpr size_t STACK_BYTES = 256 * 1024;

// Of one block each; blocks that take turns have a thread of the host each.
inline thread_local std::vector<Lane> lanes;
inline thread_local std::vector<char> shared;
inline thread_local Fiber scheduler;
inline thread_local int current = 0;
inline thread_local Index thread_index, block_index;
inline Index grid_size;
inline bool eager_copies = false;   // land when issued rather than when waited for
inline bool last_warp_first = false;
inline std::function<void()> body;

[[noreturn]] inline void fail(const char* what) {
  races::tell();
  std::fprintf(stderr, "simt: %s (block %u,%u thread %d)\n", what, block_index.x, block_index.y, current);
  std::_Exit(3);
}

inline char* shared_bytes(u32 address, size_t size) {
  if (address % size != 0) fail("misaligned access to shared memory");
  if (address < SHARED_BASE || address - SHARED_BASE + size > shared.size()) fail("access outside shared memory");
  return shared.data() + (address - SHARED_BASE);
}

inline thread_local std::map<u32, char*> statics;  // variables in shared memory whose address was taken

inline char* static_bytes(u32 address, size_t size) {
  const auto next = statics.upper_bound(address);
  if (next == statics.begin() || address % size) fail("an address that nobody took");
  return std::prev(next)->second + (address - std::prev(next)->first);
}

inline Lane& lane() { return lanes[current]; }

inline void switch_fiber(Fiber& from, Fiber& to) {
#ifdef __SANITIZE_ADDRESS__  // it follows this switch and no other
  swapcontext(&from.first, &to.first);
#else
  from.begun = true;
  if (_setjmp(from.place)) return;
  if (to.begun) _longjmp(to.place, 1);
  setcontext(&to.first);
#endif
}

inline void wait(State state) {
  Lane& self = lane();
  self.state = state;
  switch_fiber(self.fiber, scheduler);
}

inline void ask(Request request) {
  lane().request = request;
  wait(State::AT_WARP);
}

inline void start() {
  body();
  lane().state = State::DONE;
  switch_fiber(lane().fiber, scheduler);
}

// Gives every thread of the block a fiber at the kernel's beginning.
inline void prepare(int threads) {
  races::begin(threads, shared.data(), shared.size());
  for (int i = 0; i < threads; i++) {
    Lane& l = lanes[i];
    if (!l.stack) l.stack.reset(new char[STACK_BYTES]);
    l.state = State::READY;
    l.open.clear(), l.groups.clear();
    l.fiber.begun = false;
    getcontext(&l.fiber.first);
    l.fiber.first.uc_stack.ss_sp = l.stack.get();
    l.fiber.first.uc_stack.ss_size = STACK_BYTES;
    l.fiber.first.uc_link = nullptr;
    makecontext(&l.fiber.first, start, 0);
  }
}

inline void resume(Lane& l) {
  current = (int)(&l - lanes.data());
  thread_index.x = (unsigned)current;
  races::enter(current, l.stack.get(), STACK_BYTES);
  switch_fiber(scheduler, l.fiber);
}

}  // namespace simt
