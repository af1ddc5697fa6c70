// The machine that kernels run on here, as they and the programs around them see it: a fiber for each thread of a block, the
// block's shared memory, and what lanes of a warp do together. simt_engine.cc has the machine, compiled once for all programs.
#pragma once
#include <cstddef>
#include <cstdint>

namespace simt {

struct Index {
  unsigned x, y, z;
};

constexpr u32 SHARED_BASE = 1024;  // not 0, so that a forgotten base shows

// Of one block each; blocks that take turns have a thread of the host each.
inline __thread char* shared;
inline __thread size_t shared_size;
inline __thread u32 window;  // where shared memory begins for a block of a cluster, less SHARED_BASE
inline __thread int current;
inline __thread Index thread_index, block_index;
inline __thread Index grid_size;
inline bool eager_copies = false;  // land when issued rather than when waited for
inline bool last_warp_first = false;

[[noreturn]] void fail(const char* what);

// Every lane of a warp asks for the same, and goes on when all have.
u32 shuffle_xor(u32 word, int mask);
u32 shuffle_from(u32 word, int lane);
u32 first_lane(u32 word);
bool any_lane(bool flag);
void sync_warp();
void mma(bool bfloat, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);
void load_matrices(u32 (&to)[4], u32 address, bool transposed);
void store_matrices(u32 address, const u32 (&from)[4]);

void sync_block();

// What a thread stores in shared memory, and what it loads from there.
void store(u32 address, const void* from, size_t size);
void load(void* to, u32 address, size_t size);
u32 address_of(const void* pointer);  // of a variable too, which these two know from then on
void store_static(u32 address, const void* from, size_t size);
void load_static(void* to, u32 address, size_t size);
void release_block();  // its memory may be given to others: each thread that used it must be known to be done

void copy(u32 to, const char* from, bool reads);
void commit_copies();
void await_copies(size_t pending);

}  // namespace simt
