// Runs the launches of Hopper's backward pass described by a file: backward90 INPUT OUTPUT. Blocks of the kernel with tensor
// maps take turns; those of the kernels before and after it run one after the other, or, if launches overlap, those of the one
// after it take turns with them.
#include "backward/instructions.cuh"
#include "backward/problem.cuh"
#include "simt_buffers.h"
#include "simt_memory.h"
#include "simt_program.h"

struct Header {
  int32_t buffers, launches, late_copies, late_products, reverse, seed, greedy, resident, overlap;
};
struct Asked {
  int32_t entry, shared, x, y, z, maps;
};
struct Given {
  TensorMap maps[5];
  BackwardParams p;
};

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  simt::Input input(argv[1]);
  Header header;
  input.take(&header, sizeof header);
  simt::Buffers buffers(input, header.buffers);
  for (int i = 0; i < header.buffers; i++)
    simt::global_memory.push_back({buffers.memory[i].get(), (size_t)buffers.places[i].size});
  simt::late_copies = header.late_copies, simt::late_products = header.late_products;
  simt::last_warp_first = header.reverse, simt::seed = (unsigned)header.seed, simt::greedy_blocks = header.greedy;
  simt::resident_blocks = (size_t)header.resident;
  std::vector<Asked> launches(header.launches);
  std::vector<Given> given(header.launches);
  const auto launch_of = [&](int i) {
    const Asked& asked = launches[i];
    const simt::Entry& entry = simt::entries[asked.entry];
    const simt::Index grid = {(unsigned)asked.x, (unsigned)asked.y, (unsigned)asked.z};
    return simt::Launch{grid, entry.threads, (size_t)asked.shared, [&, i] { entry.call(given[i].maps, &given[i].p); }};
  };
  for (int i = 0; i < header.launches; i++) {
    BackwardParams& p = given[i].p;
    input.take(&launches[i], sizeof launches[i]);
    for (int map = 0; map < launches[i].maps; map++) {
      simt::Map inner;
      input.take(&inner, sizeof inner);
      buffers.move(inner.address);
      std::memcpy(&given[i].maps[map], &inner, sizeof inner);
    }
    input.take(&p, sizeof p);
    buffers.move(p.q), buffers.move(p.k), buffers.move(p.v), buffers.move(p.out), buffers.move(p.dout);
    buffers.move(p.dq), buffers.move(p.dk), buffers.move(p.dv), buffers.move(p.lse), buffers.move(p.dlse);
    buffers.move(p.shift), buffers.move(p.delta), buffers.move(p.sums), buffers.move(p.progress), buffers.move(p.counter);
  }
  for (int i = 0; i < header.launches; i++) {
    const simt::Launch one = launch_of(i);
    if (!launches[i].maps)
      simt::launch(one.grid, one.threads, one.shared_size, one.kernel);
    else if (header.overlap && i + 1 < header.launches)
      simt::launch_parting({one, launch_of(++i)});
    else
      simt::launch_parting({one});
  }
  return buffers.write(argv[2]);
}
