// Fibers, the warps that they make up, and blocks one after the other.
#include "simt_lanes.h"
#include "simt_program.h"

#include <ucontext.h>

#include <map>
#include <memory>
#include <mutex>

namespace simt {

// A stack and a place on it. The first switch to a fiber takes system calls; those after it do without.
struct Fiber {
  ucontext_t first;
  void* place[5];
  bool begun = false;
};

struct Stacks {  // one for each thread; not touched before they are used
  int count = 0;
  std::unique_ptr<char[]> memory;
};

struct Host {  // what a thread of the host has for its blocks
  std::vector<Lane> lanes;
  std::vector<Fiber> fibers;
  Stacks stacks;
  std::vector<char> shared;
  Fiber scheduler;
  std::map<u32, char*> statics;  // variables in shared memory whose address was taken
};

#ifdef __SANITIZE_ADDRESS__
constexpr size_t STACK_BYTES = 64 * 1024;  // it clears as much at every switch
#else
constexpr size_t STACK_BYTES = 256 * 1024 + 17 * 64;  // all at the same lines of a cache, they would push each other out
#endif
constexpr u32 STATIC_SHARED = 1u << 31;

static __thread Host* host;
static int thread_of(const Lane* one) { return (int)(one - lanes); }
static std::function<void()> body;
static std::mutex spare_mutex;
static std::vector<Stacks> spare;  // of blocks that are over

void fail(const char* what) {
  races::tell();
  std::fprintf(stderr, "simt: %s (block %u,%u thread %d)\n", what, block_index.x, block_index.y, current);
  std::_Exit(3);
}

#ifdef __SANITIZE_ADDRESS__  // it follows this switch and no other
static void switch_fiber(Fiber& from, Fiber& to) { swapcontext(&from.first, &to.first); }
#else
// The built-in pair keeps three registers, and the compiler whatever else is needed; it may not be in one function.
[[noreturn, gnu::noinline]] static void go_to(Fiber& to) {
  if (to.begun) __builtin_longjmp(to.place, 1);
  setcontext(&to.first);
  std::abort();
}
[[gnu::noinline]] static void switch_fiber(Fiber& from, Fiber& to) {
  from.begun = true;
  if (__builtin_setjmp(from.place)) return;
  go_to(to);
}
#endif

static Fiber& entered(int thread) {
  current = thread;
  thread_index.x = (unsigned)thread;
  races::enter(thread, host->stacks.memory.get() + thread * STACK_BYTES, STACK_BYTES);
  return host->fibers[thread];
}

// To the next lane of the warp that may run, without a way back to the scheduler, which would choose the same; behind the last
// of them to the scheduler.
static void leave() {
  Fiber& self = host->fibers[current];
  for (int next = current + 1; next % 32; next++)
    if (lanes[next].state == State::READY && (!takes_its_turn || takes_its_turn())) return switch_fiber(self, entered(next));
  switch_fiber(self, host->scheduler);
}

void wait(State state) {
  lane().state = state;
  leave();
}

static void ask(Request request) {
  lane().request = request;
  wait(State::AT_WARP);
}

static void start() {
  body();
  lane().state = State::DONE;
  leave();
}

bool run_lanes(Lane* warp) {
  bool ran = false;
  const int first = thread_of(warp);
  for (int l = 0; l < 32; l++) {
    if (lanes[first + l].state != State::READY) continue;
    ran = true;
    if (takes_its_turn && !takes_its_turn()) continue;
    switch_fiber(host->scheduler, entered(first + l));
    l = current - first;  // the last that ran
  }
  return ran;
}

static Stacks stacks_for(int threads) {
  const std::lock_guard<std::mutex> lock(spare_mutex);
  if (spare.empty() || spare.back().count < threads) return {threads, std::unique_ptr<char[]>(new char[threads * STACK_BYTES])};
  Stacks found = std::move(spare.back());
  spare.pop_back();
  return found;
}

void begin_block(int threads, size_t size) {
  if (!host) host = new Host;
  host->lanes.resize(threads), host->fibers.resize(threads);
  lanes = host->lanes.data(), lane_count = threads;
  host->shared.assign(size, (char)0xff);
  shared = host->shared.data(), shared_size = size;
  races::begin(threads, shared, shared_size);
  if (host->stacks.count < threads) host->stacks = stacks_for(threads);
  for (int i = 0; i < threads; i++) {
    lanes[i].state = State::READY;
    lanes[i].open.clear(), lanes[i].groups.clear();
    Fiber& fiber = host->fibers[i];
    fiber.begun = false;
    getcontext(&fiber.first);
    fiber.first.uc_stack.ss_sp = host->stacks.memory.get() + i * STACK_BYTES;
    fiber.first.uc_stack.ss_size = STACK_BYTES;
    fiber.first.uc_link = nullptr;
    makecontext(&fiber.first, start, 0);
  }
}

void end_host_thread() {
  const std::lock_guard<std::mutex> lock(spare_mutex);
  spare.push_back(std::move(host->stacks));
  delete host;
  host = nullptr;
}

void set_kernel(Index grid, std::function<void()> kernel) { grid_size = grid, body = std::move(kernel); }

using Row [[gnu::vector_size(32)]] = float;  // of eight columns

// Sums in the order of k, as one thread would add them.
static void multiply(Lane* warp) {
  u16 left[16][16], right[16][8];  // mma.m16n8k16: the PTX manual's fragments, with group = lane / 4, place = lane % 4
  float A[16][16];
  Row B[16], C[16];
  for (int l = 0; l < 32; l++) {
    const int group = l / 4, place = l % 4;
    if (warp[l].bfloat != warp[0].bfloat) fail("lanes of a warp multiply different types");
    for (int r = 0; r < 4; r++) std::memcpy(&left[group + 8 * (r & 1)][place * 2 + 8 * (r >> 1)], &warp[l].a[r], 4);
    for (int r = 0; r < 2; r++)
      for (int e = 0; e < 2; e++) right[place * 2 + 8 * r + e][group] = (u16)(warp[l].b[r] >> (16 * e));
    for (int r = 0; r < 2; r++) std::memcpy((float*)&C[group + 8 * r] + place * 2, &warp[l].c[2 * r], 8);
  }
  widen(A[0], left[0], 16 * 16, warp[0].bfloat);
  widen((float*)B, right[0], 16 * 8, warp[0].bfloat);
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < 16; k++) C[row] += A[row][k] * B[k];
  for (int l = 0; l < 32; l++)
    for (int r = 0; r < 2; r++) std::memcpy(&warp[l].c[2 * r], (float*)&C[l / 4 + 8 * r] + l % 4 * 2, 8);
}

static void load(Lane* warp, bool transposed) {
  for (int matrix = 0; matrix < 4; matrix++) {
    u16 rows[8][8];
    for (int r = 0; r < 8; r++) {
      const int by = matrix * 8 + r;
      const char* from = shared_bytes(warp[by].address, 16);
      races::access(thread_of(&warp[by]), from, 16, false);
      std::memcpy(rows[r], from, 16);
    }
    for (int l = 0; l < 32; l++) {
      const int group = l / 4, place = (l % 4) * 2;
      const u16 low = transposed ? rows[place][group] : rows[group][place];
      const u16 high = transposed ? rows[place + 1][group] : rows[group][place + 1];
      warp[l].loaded[matrix] = (u32)low | (u32)high << 16;
    }
  }
}

static void put(int thread, char* to, const void* from, size_t size) {
  races::access(thread, to, size, true, races::WATCHES && std::memcmp(to, from, size) != 0);
  std::memcpy(to, from, size);
}
static void get(void* to, const char* from, size_t size) {
  races::access(current, from, size, false);
  std::memcpy(to, from, size);
}

static void store(const Lane* warp) {
  for (int matrix = 0; matrix < 4; matrix++)
    for (int row = 0; row < 8; row++) {
      const int by = matrix * 8 + row;
      u32 words[4];
      for (int place = 0; place < 4; place++) words[place] = warp[row * 4 + place].a[matrix];
      put(thread_of(&warp[by]), shared_bytes(warp[by].address, 16), words, 16);
    }
}

void answer(Lane* warp) {
  const Request request = warp[0].request;
  for (int l = 1; l < 32; l++)
    if (warp[l].request != request) fail("lanes of a warp ask for different things");
  u32 words[32];
  bool any = false;
  for (int l = 0; l < 32; l++) words[l] = warp[l].word, any |= warp[l].flag;
  switch (request) {
    case Request::SHUFFLE:
      for (int l = 0; l < 32; l++) warp[l].word = words[l ^ warp[l].number];
      break;
    case Request::SHUFFLE_FROM:
      for (int l = 0; l < 32; l++) warp[l].word = words[warp[l].number & 31];
      break;
    case Request::FIRST:
      for (int l = 0; l < 32; l++) warp[l].word = words[0];
      break;
    case Request::ANY:
      for (int l = 0; l < 32; l++) warp[l].flag = any;
      break;
    case Request::SYNC: races::meet(thread_of(warp), 32); break;
    case Request::MMA: multiply(warp); break;
    case Request::MATRICES: load(warp, false); break;
    case Request::MATRICES_TRANSPOSED: load(warp, true); break;
    case Request::STORE_MATRICES: store(warp); break;
    default: break;
  }
  for (int l = 0; l < 32; l++) warp[l].state = State::READY;
}

static u32 exchange(Request request, u32 word, int number) {
  lane().word = word, lane().number = number;
  ask(request);
  return lane().word;
}
u32 shuffle_xor(u32 word, int mask) { return exchange(Request::SHUFFLE, word, mask); }
u32 shuffle_from(u32 word, int from) { return exchange(Request::SHUFFLE_FROM, word, from); }
u32 first_lane(u32 word) { return exchange(Request::FIRST, word, 0); }
bool any_lane(bool flag) {
  lane().flag = flag;
  ask(Request::ANY);
  return lane().flag;
}
void sync_warp() { ask(Request::SYNC); }
void sync_block() { wait(State::AT_BLOCK); }

void mma(bool bfloat, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  Lane& self = lane();
  self.bfloat = bfloat;
  self.a = a, self.c = c;
  self.b[0] = b0, self.b[1] = b1;
  ask(Request::MMA);
}
void load_matrices(u32 (&to)[4], u32 address, bool transposed) {
  lane().address = address, lane().loaded = to;
  ask(transposed ? Request::MATRICES_TRANSPOSED : Request::MATRICES);
}
void store_matrices(u32 address, const u32 (&from)[4]) {
  lane().address = address, lane().a = from;
  ask(Request::STORE_MATRICES);
}

void store(u32 address, const void* from, size_t size) { put(current, shared_bytes(address, size), from, size); }
void load(void* to, u32 address, size_t size) { get(to, shared_bytes(address, size), size); }

u32 address_of(const void* pointer) {
  const size_t offset = (size_t)((const char*)pointer - shared);
  if (offset <= shared_size) return SHARED_BASE + (u32)offset;
  const u32 address = STATIC_SHARED | (u32)(uintptr_t)pointer;
  host->statics[address] = (char*)pointer;
  return address;
}
static char* static_bytes(u32 address, size_t size) {
  const auto next = host->statics.upper_bound(address);
  if (next == host->statics.begin() || address % size) fail("an address that nobody took");
  return std::prev(next)->second + (address - std::prev(next)->first);
}
void store_static(u32 address, const void* from, size_t size) { put(current, static_bytes(address, size), from, size); }
void load_static(void* to, u32 address, size_t size) { get(to, static_bytes(address, size), size); }
void release_block() { races::access(current, shared, shared_size, true); }

static void land(const Copy& one) {
  char* to = shared_bytes(one.to, 16);
  races::access(current, to, 16, true);
  if (one.reads)
    std::memcpy(to, one.from, 16);
  else
    std::memset(to, 0, 16);
}
void copy(u32 to, const char* from, bool reads) {
  if ((uintptr_t)from % 16 != 0) fail("misaligned asynchronous copy");
  if (eager_copies)
    land({to, from, reads});
  else
    lane().open.push_back({to, from, reads});
}
void commit_copies() {
  lane().groups.push_back(std::move(lane().open));
  lane().open.clear();
}
void await_copies(size_t pending) {
  auto& groups = lane().groups;
  while (groups.size() > pending) {
    for (const Copy& one : groups.front()) land(one);
    groups.erase(groups.begin());
  }
}

// Warps run one after the other, each as far as it gets without the others.
static void run_block(int threads) {
  for (;;) {
    for (int w = 0; w < threads / 32; w++) {
      const int first = (last_warp_first ? threads / 32 - 1 - w : w) * 32;
      Lane* warp = lanes + first;
      for (;;) {
        int count[5] = {0, 0, 0, 0, 0};
        run_lanes(warp);
        for (int l = 0; l < 32; l++) count[(int)warp[l].state]++;
        if (count[(int)State::AT_WARP] == 32)
          answer(warp);
        else if (count[(int)State::AT_BLOCK] == 32 || count[(int)State::DONE] == 32)
          break;
        else
          fail("lanes of a warp have parted");
      }
    }
    int waiting = 0;
    for (int i = 0; i < threads; i++) waiting += lanes[i].state == State::AT_BLOCK;
    if (waiting == 0) return races::end();
    if (waiting != threads) fail("not every thread reaches a barrier");
    races::meet(0, threads);
    for (int i = 0; i < threads; i++) lanes[i].state = State::READY;
  }
}

void launch(Index grid, int threads, size_t size, std::function<void()> kernel) {
  set_kernel(grid, std::move(kernel));
  for (block_index.z = 0; block_index.z < grid.z; block_index.z++)
    for (block_index.y = 0; block_index.y < grid.y; block_index.y++)
      for (block_index.x = 0; block_index.x < grid.x; block_index.x++) {
        begin_block(threads, size);
        run_block(threads);
      }
}

}  // namespace simt
