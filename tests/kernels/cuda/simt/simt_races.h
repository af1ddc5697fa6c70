// Who has seen what of a block's shared memory: accesses that nothing orders are reported, whatever order they came in.
//
// Every thread has a vector clock, and so has everything that threads synchronise by: barriers, named barriers, warps. What the
// chip does in its own time (copies, products, additions) has clocks of its own, which a thread gets by waiting for it. Two
// accesses of which one writes must be ordered; what threads wrote is read by products and copies only after the writer's fence.
// A copy comes over what a thread has read only if that load is known to have read: the thread has waited for a product that it
// asked for later, or written to shared memory, which are taken to depend on the load; it has fenced; or it arrived with a number
// that depends on the load. That the load was issued earlier is not enough.
// simt_races.cc has the rules. A program that is linked with simt_unwatched.cc in its place checks nothing: the machine below
// the kernels is one for both.
//
// A program with the rules is compiled as for the thread sanitizer, whose calls simt_races.cc answers: so accesses through plain
// pointers are seen too.
#pragma once
#include <cstddef>
#include <cstdint>

namespace simt::races {

void begin(int threads, const char* shared, size_t size);
void tell();  // what was found
void end();   // the same, and the program's end if it is anything
void enter(int thread, const char* stack, size_t size);  // this thread runs from now on

extern const bool WATCHES;

void judge(int thread, const void* at, size_t size, bool writes, bool changes);
inline void access(int thread, const void* at, size_t size, bool writes, bool changes = true) {
  if (WATCHES) judge(thread, at, size, writes, changes);
}
void fence(int thread);  // what the thread wrote is there for copies and products
void loads_have_read(int thread);  // those of its warp, so far as the thread knows of them

uint32_t copy_asked(int thread, const void* at, size_t size, uint32_t barrier);  // its number
void copy_landed(uint32_t barrier, uint32_t number);

void barrier_made(int thread, uint32_t barrier);
void arrive(int thread, uint32_t barrier);
void phase_ended(uint32_t barrier);
void see_phase(int thread, uint32_t barrier);

void arrive_named(int thread, int id);
void named_ended(int id);
void see_named(int thread, int id);

void meet(int first, int count);  // these threads have waited for each other

void product_asked(int thread, int warpgroup, long long number);
void product_reads(int warpgroup, long long number, const void* at, size_t size);
void see_products(int thread, int warpgroup, long long until);

void addition_reads(int thread, const void* at, size_t size);
void see_additions(int thread);

}  // namespace simt::races
