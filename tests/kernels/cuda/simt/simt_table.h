// What a program's kernels are to what runs them: the text of the kernels ends with such a table.
#pragma once
#include <cstddef>

namespace simt {

struct Entry {
  void (*call)(const void* maps, const void* given);  // tensor maps, if it takes any, and its structure
  int threads;
};
extern const Entry entries[];
extern const size_t given_bytes;  // of the structure

}  // namespace simt
