// Runs the launches described by a file one after the other: ways INPUT OUTPUT. Every buffer is its own allocation of exactly
// its size, so that the address sanitizer sees the first byte beyond it; the pointers among the arguments, which are the
// host's own, are moved to where the buffers are here.
#include KERNELS  // the entry points, and a table of them called `entries`

#include <memory>
#include <type_traits>

struct Header {
  int32_t buffers, launches, eager, reverse;
};
struct Buffer {
  u64 address;
  i64 size;
};
struct Launch {
  int32_t entry, shared, x, y, z, unused;
};

static std::vector<char> read_all(const char* path) {
  std::vector<char> data;
  FILE* file = std::fopen(path, "rb");
  if (!file) std::exit(4);
  char block[65536];
  for (size_t n; (n = std::fread(block, 1, sizeof block, file)) > 0;) data.insert(data.end(), block, block + n);
  std::fclose(file);
  return data;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::vector<char> input = read_all(argv[1]);
  size_t at = 0;
  auto take = [&](void* to, size_t size) { std::memcpy(to, input.data() + at, size), at += size; };
  Header header;
  take(&header, sizeof header);
  std::vector<Buffer> buffers(header.buffers);
  std::vector<std::unique_ptr<char[]>> memory;
  for (Buffer& buffer : buffers) take(&buffer, sizeof buffer);
  for (const Buffer& buffer : buffers) {
    memory.emplace_back(new char[buffer.size]);
    take(memory.back().get(), buffer.size);
  }
  auto move = [&](auto& pointer) {
    if (!pointer) return;
    for (size_t i = 0; i < buffers.size(); i++)
      if ((u64)pointer >= buffers[i].address && (u64)pointer < buffers[i].address + buffers[i].size) {
        pointer = (std::remove_reference_t<decltype(pointer)>)(memory[i].get() + ((u64)pointer - buffers[i].address));
        return;
      }
    std::fprintf(stderr, "ways: an argument points into no buffer\n");
    std::exit(5);
  };
  simt::eager_copies = header.eager, simt::last_warp_first = header.reverse;
  for (int i = 0; i < header.launches; i++) {
    Launch launch;
    AttentionParams p;
    take(&launch, sizeof launch), take(&p, sizeof p);
    move(p.q), move(p.k), move(p.v), move(p.out), move(p.lse), move(p.partial_out), move(p.partial_lse);
    move(p.tickets), move(p.q_starts), move(p.k_starts), move(p.mask), move(p.block_table), move(p.k_lengths);
    const Entry& entry = entries[launch.entry];
    simt::launch({(unsigned)launch.x, (unsigned)launch.y, 1}, entry.threads, launch.shared, [&] { entry.kernel(p); });
  }
  FILE* file = std::fopen(argv[2], "wb");
  if (!file) return 4;
  for (int i = 0; i < header.buffers; i++) std::fwrite(memory[i].get(), 1, buffers[i].size, file);
  std::fclose(file);
  return 0;
}
