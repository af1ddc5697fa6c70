// The global memory of a program whose kernels are told where they write outside of it.
#pragma once
#include <cstddef>
#include <vector>

namespace simt {

struct Span {
  char* from;
  size_t size;
};
inline std::vector<Span> global_memory;  // what a kernel may write

}  // namespace simt
