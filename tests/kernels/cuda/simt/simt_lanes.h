// What the machine keeps of the threads of a block that runs, for simt_engine.cc and hopper_engine.cc.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "device.cuh"
#include "simt_races.h"

namespace simt {

enum class State { READY, AT_WARP, AT_BLOCK, DONE, ELSEWHERE };  // elsewhere: hopper_engine.cc knows what it waits for
enum class Request { NONE, SYNC, SHUFFLE, SHUFFLE_FROM, FIRST, ANY, MMA, MATRICES, MATRICES_TRANSPOSED, STORE_MATRICES };

struct Copy {
  u32 to;
  const char* from;
  bool reads;
};

struct Lane {
  State state = State::READY;
  Request request = Request::NONE;
  // Operands and results of what the warp does together.
  u32 word = 0;
  int number = 0;
  bool flag = false, bfloat = false;
  const u32* a;
  u32 b[2], address = 0, *loaded;
  float* c;
  std::vector<Copy> open;                 // issued, not yet committed
  std::vector<std::vector<Copy>> groups;  // committed, not yet landed
};

inline __thread Lane* lanes;
inline __thread int lane_count;

inline Lane& lane() { return lanes[current]; }

inline char* shared_bytes(u32 address, size_t size) {
  address -= window;
  if (address % size != 0) fail("misaligned access to shared memory");
  if (address < SHARED_BASE || address - SHARED_BASE + size > shared_size) fail("access outside shared memory");
  return shared + (address - SHARED_BASE);
}

void begin_block(int threads, size_t shared_size);  // the block's memory, of NaN in every 16-bit format, and its fibers
bool run_lanes(Lane* warp);  // those that may, one after the other, each as far as it gets; false if there are none
inline bool (*takes_its_turn)() = nullptr;  // whether a lane that may run does; without it all do
void wait(State state);
void answer(Lane* warp);  // what its lanes ask for
void end_host_thread();   // whose blocks are over
void set_kernel(Index grid, std::function<void()> kernel);

}  // namespace simt
