// What a program is given, and the buffers that its kernels read and write: each its own allocation of exactly its size, so that
// the address sanitizer sees the first byte beyond it. Pointers among arguments, which are the host's own, are moved to them.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

namespace simt {

struct Input {
  std::vector<char> data;
  size_t at = 0;
  explicit Input(const char* path) {
    FILE* file = std::fopen(path, "rb");
    if (!file) std::exit(4);
    char block[65536];
    for (size_t n; (n = std::fread(block, 1, sizeof block, file)) > 0;) data.insert(data.end(), block, block + n);
    std::fclose(file);
  }
  void take(void* to, size_t size) { std::memcpy(to, data.data() + at, size), at += size; }
};

struct Buffers {
  struct Place {
    uint64_t address;
    int64_t size;
  };
  std::vector<Place> places;
  std::vector<std::unique_ptr<char[]>> memory;

  Buffers(Input& input, int count) : places(count) {
    for (Place& place : places) input.take(&place, sizeof place);
    for (const Place& place : places) {
      memory.emplace_back(new char[place.size]);
      input.take(memory.back().get(), place.size);
    }
  }
  template <class P>
  void move(P& pointer) const {
    if (!pointer) return;
    for (size_t i = 0; i < places.size(); i++)
      if ((uint64_t)pointer >= places[i].address && (uint64_t)pointer < places[i].address + places[i].size) {
        pointer = (P)(memory[i].get() + ((uint64_t)pointer - places[i].address));
        return;
      }
    std::fprintf(stderr, "an argument points into no buffer\n");
    std::exit(5);
  }
  int write(const char* path) const {
    FILE* file = std::fopen(path, "wb");
    if (!file) return 4;
    for (size_t i = 0; i < places.size(); i++) std::fwrite(memory[i].get(), 1, places[i].size, file);
    std::fclose(file);
    return 0;
  }
};

}  // namespace simt
