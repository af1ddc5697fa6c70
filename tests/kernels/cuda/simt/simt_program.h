// Of ways.cc, hopper.cc and backward90.cc, which run the kernels of a table. Each is compiled once for all programs: half of what a
// program would cost that has them in its own text.
#pragma once
#include <functional>
#include <vector>

#include "device.cuh"
#include "simt_table.h"

namespace simt {

void launch(Index grid, int threads, size_t shared_size, std::function<void()> kernel);
struct Launch {
  Index grid;
  int threads;
  size_t shared_size;
  std::function<void()> kernel;
};
// Blocks take turns, and those of all of these launches are under way at the same time.
void launch_parting(const std::vector<Launch>& launches);

// The structure that a kernel is given.
struct Given {
  alignas(128) char bytes[4096];
  Given() {
    if (given_bytes > sizeof bytes) std::abort();
  }
};

}  // namespace simt
