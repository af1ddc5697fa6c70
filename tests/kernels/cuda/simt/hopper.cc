// Runs one launch of a Hopper kernel described by a file: hopper INPUT OUTPUT. Every buffer lies between bands of NaN that
// must be there at the end; the host's own addresses among the arguments are moved to where the buffers are here.
#include <cstring>
#include <memory>
#include <vector>

#include "hopper/instructions.cuh"
#include "simt_memory.h"
#include "simt_program.h"

struct Header {
  int32_t buffers, entry, shared, x, y, z, pointers;
  int32_t late_copies, late_products, reverse, seed, greedy;
};
struct Buffer {
  u64 address;
  i64 size;
};

constexpr size_t GUARD = 512;

static std::vector<char> read_all(const char* path) {
  std::vector<char> data;
  FILE* file = std::fopen(path, "rb");
  if (!file) std::exit(4);
  char part[65536];
  for (size_t n; (n = std::fread(part, 1, sizeof part, file)) > 0;) data.insert(data.end(), part, part + n);
  std::fclose(file);
  return data;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::vector<char> input = read_all(argv[1]);
  size_t at = 0;
  const auto take = [&](void* to, size_t size) { std::memcpy(to, input.data() + at, size), at += size; };
  Header header;
  take(&header, sizeof header);
  std::vector<Buffer> buffers(header.buffers);
  std::vector<std::unique_ptr<char[]>> memory;
  for (Buffer& buffer : buffers) take(&buffer, sizeof buffer);
  for (const Buffer& buffer : buffers) {
    memory.emplace_back(new char[buffer.size + 2 * GUARD]);
    std::memset(memory.back().get(), 0xff, buffer.size + 2 * GUARD);
    take(memory.back().get() + GUARD, buffer.size);
    simt::global_memory.push_back({memory.back().get() + GUARD, (size_t)buffer.size});
  }
  const auto moved = [&](u64 address, i64 size) -> u64 {
    for (size_t i = 0; i < buffers.size(); i++)
      if (address >= buffers[i].address && address + size <= buffers[i].address + buffers[i].size)
        return (u64)(memory[i].get() + GUARD) + (address - buffers[i].address);
    std::fprintf(stderr, "hopper: an argument lies in no buffer\n");
    std::exit(5);
  };
  TensorMap maps[4];  // the last of a mask, if the kernel is given one
  for (TensorMap& map : maps) {
    simt::Map inner;
    take(&inner, sizeof inner);
    if (!inner.magic) continue;
    i64 extent = (i64)inner.sizes[0] * simt::element_bytes(inner);
    for (int i = 1; i < 4; i++) extent += ((i64)inner.sizes[i] - 1) * (i64)inner.strides[i - 1];
    inner.address = moved(inner.address, extent);
    std::memcpy(&map, &inner, sizeof map);
  }
  std::vector<int32_t> pointers(header.pointers);
  take(pointers.data(), pointers.size() * 4);
  simt::Given given;
  take(given.bytes, simt::given_bytes);
  for (int32_t offset : pointers) {
    u64 address;
    std::memcpy(&address, given.bytes + offset, 8);
    if (address) address = moved(address, 0);
    std::memcpy(given.bytes + offset, &address, 8);
  }
  simt::late_copies = header.late_copies, simt::late_products = header.late_products;
  simt::last_warp_first = header.reverse, simt::seed = (unsigned)header.seed, simt::greedy_blocks = header.greedy;
  const simt::Entry& entry = simt::entries[header.entry];
  const simt::Index grid = {(unsigned)header.x, (unsigned)header.y, (unsigned)header.z};
  simt::launch_parting({{grid, entry.threads, (size_t)header.shared, [&] { entry.call(maps, given.bytes); }}});
  for (size_t i = 0; i < memory.size(); i++)
    for (size_t byte = 0; byte < GUARD; byte++)
      if (memory[i][byte] != (char)0xff || memory[i][GUARD + buffers[i].size + byte] != (char)0xff) {
        std::fprintf(stderr, "hopper: written outside of buffer %zu\n", i);
        return 6;
      }
  FILE* file = std::fopen(argv[2], "wb");
  if (!file) return 4;
  for (size_t i = 0; i < memory.size(); i++) std::fwrite(memory[i].get() + GUARD, 1, buffers[i].size, file);
  std::fclose(file);
  return 0;
}
