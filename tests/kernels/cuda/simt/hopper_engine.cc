// Hopper's barriers, copies and products, and blocks that take turns.
#include "hopper_products.h"

namespace simt {

static Barrier& barrier_at(u32 address) {
  auto found = running->barriers.find(address);
  if (found == running->barriers.end()) fail("a barrier is used before it is initialised");
  return found->second;
}

static Barrier& published_barrier(u32 address) {
  Barrier& b = barrier_at(address);
  if (!b.published) fail("a barrier is used from outside of its block's threads before a fence has published it");
  return b;
}

void publish_barriers() {
  for (auto& [address, barrier] : running->barriers) barrier.published = true;
}

static void advance(u32 address, Barrier& b) {
  if (b.due || b.bytes) return;
  b.parity ^= 1, b.due = b.arrivals;
  races::phase_ended(address);
  wake(Wait::BARRIER, address, [&](const Waiting& w) {
    const bool over = w.parity != b.parity;
    if (over) races::see_phase((int)(&w - running->waiting.data()), address);
    return over;
  });
}

void arrive(u32 address, i64 bytes) {
  Barrier& b = barrier_at(address);
  if (b.due == 0) fail("a barrier has one arrival too many in a phase");
  races::arrive(current, address);
  b.bytes += bytes, b.due--;
  advance(address, b);
}

// The piece of 16 bytes of a map's row that begins at this column; zeros outside of the map.
static void read_piece(const Map& m, char (&to)[16], i64 column, i64 row, i64 head, i64 batch) {
  std::memset(to, 0, sizeof to);
  const auto inside = [&](i64 x, int dimension) { return x >= 0 && x < (i64)m.sizes[dimension]; };
  if (!inside(row, 1) || !inside(head, 2) || !inside(batch, 3)) return;
  const i64 size = element_bytes(m), from = std::max<i64>(column, 0), until = std::min<i64>(column + 16 / size, (i64)m.sizes[0]);
  const char* at = (const char*)m.address + row * (i64)m.strides[0] + head * (i64)m.strides[1] + batch * (i64)m.strides[2];
  if (from < until) std::memcpy(to + (from - column) * size, at + from * size, (size_t)((until - from) * size));
}

void carry_out(const Box& box) {
  const Map& m = box.map;
  u32 to = box.to;
  if (box.from) {
    for (u32 i = 0; i < box.bytes; i += 16) std::memcpy(shared_bytes(to + i, 16), box.from + i, 16);
    to += box.bytes;
  }
  for (i64 batch = box.at[3]; batch < box.at[3] + (i64)m.box[3]; batch++)
    for (i64 head = box.at[2]; head < box.at[2] + (i64)m.box[2]; head++)
      for (i64 row = box.at[1]; row < box.at[1] + (i64)m.box[1]; row++, to += row_bytes(m))
        for (u32 i = 0; i < row_bytes(m); i += 16) {
          char piece[16];
          read_piece(m, piece, box.at[0] + i / element_bytes(m), row, head, batch);
          std::memcpy(shared_bytes(m.swizzle == MAP_NO_SWIZZLE ? to + i : swizzled(to + i), 16), piece, 16);
        }
  Barrier& b = barrier_at(box.barrier);
  races::copy_landed(box.barrier, box.number);
  b.bytes -= box.bytes;
  advance(box.barrier, b);
}

void deliver(const Message& message) {
  const u32 to = message.to + window, barrier = message.barrier + window;
  Barrier& b = published_barrier(barrier);
  if (message.bytes) {
    check_not_read({to, to + message.bytes});
    for (u32 i = 0; i < message.bytes; i += 16) std::memcpy(shared_bytes(to + i, 16), message.from + i, 16);
    b.bytes -= message.bytes, running->places[to] = message.bytes;
  } else {
    if (b.due-- == 0) fail("a barrier has one arrival too many in a phase");
    races::see_additions(running->sender);  // what was sent to the other block has been read when that one arrives
    races::arrive(running->sender, barrier);
  }
  advance(barrier, b);
}

// The copy is under way: what lies at its place is lost at once.
static void start(Box box) {
  published_barrier(box.barrier);
  box.number = races::copy_asked(current, shared_bytes(box.to, 16), box.bytes, box.barrier);
  check_not_read({box.to, box.to + box.bytes});
  for (u32 i = 0; i < box.bytes; i += 16) std::memset(shared_bytes(box.to + i, 16), 0xff, 16);
  if (late_copies)
    running->boxes.push_back(box);
  else
    carry_out(box);
}

void give_registers(int count, bool more) {
  const int had = running->registers[current];
  if (count % 8 || count < 24 || count > 256) fail("setmaxnreg takes multiples of 8 from 24 to 256");
  if (more ? count < had : count > had) fail("setmaxnreg goes the wrong way");
  while (count - had > running->free_registers) wait_elsewhere(Wait::REGISTERS, 0);
  running->free_registers -= count - had;
  running->registers[current] = count;
  wake(Wait::REGISTERS, 0, [](const Waiting&) { return true; });
}

void arrive_named(int id, int threads) {
  if (id < 1 || id > 15) fail("named barriers are 1 to 15");
  NamedBarrier& b = running->named[id];
  if (b.arrived && b.threads != threads) fail("threads disagree about how many meet at a named barrier");
  b.threads = threads;
  races::arrive_named(current, id);
  if (++b.arrived < threads) return;
  b.arrived = 0;
  races::named_ended(id);
  wake(Wait::NAMED, (u32)id, [&](const Waiting& w) {
    races::see_named((int)(&w - running->waiting.data()), id);
    return true;
  });
}

void make_barrier(u32 address, u32 arrivals) {
  if (arrivals == 0 || address % 8) fail("a barrier lies on 8 bytes and counts at least one arrival");
  if (!running->barriers.emplace(address, Barrier{arrivals, arrivals}).second) fail("a barrier is made twice");
  races::barrier_made(current, address);
}

void await_phase(u32 address, u32 parity) {
  if (barrier_at(address).parity == parity)
    wait_elsewhere(Wait::BARRIER, address, parity);
  else
    races::see_phase(current, address);
}

void meet_named(int id, int threads) {
  const bool last = running->named[id & 15].arrived + 1 == threads;
  arrive_named(id, threads);
  if (last)
    races::see_named(current, id);
  else
    wait_elsewhere(Wait::NAMED, (u32)id);
}

void copy_box(u32 to, const void* map, u32 barrier, int column, int row, int head, int batch) {
  Box box = {to, barrier, 0, {}, {column, row, head, batch}};
  std::memcpy(&box.map, map, sizeof box.map);
  if (box.map.magic != MAP_MAGIC) fail("a copy by something that is no tensor map");
  const bool in_a_row = box.map.swizzle == MAP_NO_SWIZZLE;
  if (!in_a_row && row_bytes(box.map) != 128) fail("a box whose rows are not as wide as their swizzle");
  if (row_bytes(box.map) % 16) fail("a box whose rows are no whole pieces of 16 bytes");
  if (to % 128) fail("a box to an address that is no multiple of 128");
  box.bytes = (u32)(box.map.box[1] * box.map.box[2] * box.map.box[3]) * row_bytes(box.map);
  start(box);
}

void copy_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
  if (to % 16 || (uintptr_t)from % 16 || bytes % 16) fail("a copy of bytes that are no whole pieces of 16");
  start({to, barrier, bytes, {}, {}, (const char*)from});
}

void tell_products() { races::fence(current); }
void end_loads() { races::loads_have_read(current); }

static void read(Addition& one) {
  if (!one.floats.empty()) return;
  one.floats.resize(one.bytes / 4);
  for (u32 i = 0; i < one.bytes; i += 4) std::memcpy(&one.floats[i / 4], shared_bytes(one.from + i, 4), 4);
}
static void add(Addition& one) {
  read(one);
  for (size_t i = 0; i < one.floats.size(); i++) one.to[i] = one.floats[i] + (one.stores ? 0 : one.to[i]);
}

void add_floats(u64 to, u32 from, u32 bytes, bool stores) {
  if (to % 16 || from % 16 || bytes % 16) fail("an addition of bytes that are no whole pieces of 16");
  perhaps_let_other_blocks_run();
  Addition one = {(float*)to, from, bytes, stores, {}};
  races::addition_reads(current, shared_bytes(from, 16), bytes);
  if (late_products)
    running->additions[current].push_back(one);
  else
    add(one);
}

void read_additions() {
  for (Addition& one : running->additions[current]) read(one);
  races::see_additions(current);
}

void end_additions() {
  perhaps_let_other_blocks_run();
  for (Addition& one : running->additions[current]) add(one);
  running->additions[current].clear();
  races::see_additions(current);
}

void check_global(const char* at, size_t size, const char* complaint) {
  for (const Span& span : global_memory)
    if (at >= span.from && at + size <= span.from + span.size) return;
  fail(complaint);
}

}  // namespace simt
