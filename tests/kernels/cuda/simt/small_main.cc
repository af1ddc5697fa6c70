// Runs one launch of a kernel for few keys: small INPUT OUTPUT. As main.cc, with this family's parameters and grid.
#include KERNELS  // the entry points, and a table of them called `entries`

#include <memory>

struct Job {
  int32_t entry, grid_x, grid_y, grid_z, shared, eager, reverse, pad;
  int64_t q, k, v, out, lse;  // bytes
};

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  FILE* file = std::fopen(argv[1], "rb");
  if (!file) return 4;
  Job job;
  SmallParams p;
  bool whole = std::fread(&job, sizeof job, 1, file) == 1 && std::fread(&p, sizeof p, 1, file) == 1;
  // Every buffer is an allocation of exactly its size, so that the address sanitizer sees the first byte beyond it.
  auto given = [&](int64_t bytes) {
    std::unique_ptr<char[]> buffer(new char[bytes]);
    whole = whole && std::fread(buffer.get(), 1, bytes, file) == (size_t)bytes;
    return buffer;
  };
  auto q = given(job.q), k = given(job.k), v = given(job.v), out = given(job.out);
  std::fclose(file);
  if (!whole) return 5;
  std::unique_ptr<char[]> lse(new char[job.lse]);
  std::memset(lse.get(), 0xff, job.lse);
  p.q = q.get(), p.k = k.get(), p.v = v.get(), p.out = out.get();
  p.lse = job.lse ? (float*)lse.get() : nullptr;

  simt::eager_copies = job.eager, simt::last_warp_first = job.reverse;
  const Entry& entry = entries[job.entry];
  const simt::Index grid = {(unsigned)job.grid_x, (unsigned)job.grid_y, (unsigned)job.grid_z};
  simt::launch(grid, entry.threads, job.shared, [&] { entry.kernel(p); });
  file = std::fopen(argv[2], "wb");
  if (!file) return 4;
  std::fwrite(out.get(), 1, job.out, file);
  std::fwrite(lse.get(), 1, job.lse, file);
  std::fclose(file);
  return 0;
}
