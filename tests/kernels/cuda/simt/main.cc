// Runs one launch described by a file: simt INPUT OUTPUT. Every buffer is its own allocation of exactly its size, so that
// the address sanitizer sees the first byte beyond it.
#include KERNELS  // the entry points, and a table of them called `entries`

#include <memory>
#include <string>

struct Job {
  int32_t entry, combine, grid_x, grid_y, combine_blocks, shared, eager, reverse;
  int64_t q, k, v, out, lse, partial_out, partial_lse;  // bytes
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
  Job job;
  AttentionParams p;
  std::memcpy(&job, input.data(), sizeof job);
  std::memcpy(&p, input.data() + sizeof job, sizeof p);
  size_t at = sizeof job + sizeof p;
  auto given = [&](int64_t bytes) {
    std::unique_ptr<char[]> buffer(new char[bytes]);
    std::memcpy(buffer.get(), input.data() + at, bytes);
    at += bytes;
    return buffer;
  };
  auto q = given(job.q), k = given(job.k), v = given(job.v), out = given(job.out);
  auto poisoned = [](int64_t bytes) {
    std::unique_ptr<char[]> buffer(new char[bytes]);
    std::memset(buffer.get(), 0xff, bytes);
    return buffer;
  };
  auto lse = poisoned(job.lse), partial_out = poisoned(job.partial_out), partial_lse = poisoned(job.partial_lse);
  p.q = q.get(), p.k = k.get(), p.v = v.get(), p.out = out.get();
  p.lse = job.lse ? (float*)lse.get() : nullptr;
  p.partial_out = (float*)partial_out.get(), p.partial_lse = (float*)partial_lse.get();

  simt::eager_copies = job.eager, simt::last_warp_first = job.reverse;
  const Entry& entry = entries[job.entry];
  simt::launch({(unsigned)job.grid_x, (unsigned)job.grid_y, 1}, entry.threads, job.shared, [&] { entry.kernel(p); });
  if (job.combine >= 0) {
    const Entry& combine = entries[job.combine];
    simt::launch({(unsigned)job.combine_blocks, 1, 1}, combine.threads, 0, [&] { combine.kernel(p); });
  }
  FILE* file = std::fopen(argv[2], "wb");
  if (!file) return 4;
  std::fwrite(out.get(), 1, job.out, file);
  std::fwrite(lse.get(), 1, job.lse, file);
  std::fclose(file);
  return 0;
}
