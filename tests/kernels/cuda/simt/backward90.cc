// Runs the launches of Hopper's backward pass described by a file: backward90 INPUT OUTPUT. Blocks of the kernel with tensor
// maps take turns; those of the kernels before and after it run one after the other.
#include "backward/instructions.cuh"
#include "backward/problem.cuh"
#include "simt_buffers.h"
#include "simt_memory.h"
#include "simt_program.h"

struct Header {
  int32_t buffers, launches, late_copies, late_products, reverse, seed, greedy, resident;
};
struct Launch {
  int32_t entry, shared, x, y, z, maps;
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
  for (int i = 0; i < header.launches; i++) {
    Launch launch;
    TensorMap maps[5];
    BackwardParams p;
    input.take(&launch, sizeof launch);
    for (int map = 0; map < launch.maps; map++) {
      simt::Map inner;
      input.take(&inner, sizeof inner);
      buffers.move(inner.address);
      std::memcpy(&maps[map], &inner, sizeof inner);
    }
    input.take(&p, sizeof p);
    buffers.move(p.q), buffers.move(p.k), buffers.move(p.v), buffers.move(p.out), buffers.move(p.dout);
    buffers.move(p.dq), buffers.move(p.dk), buffers.move(p.dv), buffers.move(p.lse), buffers.move(p.dlse);
    buffers.move(p.shift), buffers.move(p.delta), buffers.move(p.sums), buffers.move(p.counter);
    const simt::Entry& entry = simt::entries[launch.entry];
    const simt::Index grid = {(unsigned)launch.x, (unsigned)launch.y, (unsigned)launch.z};
    const auto call = [&] { entry.call(maps, &p); };
    if (launch.maps)
      simt::launch_parting(grid, entry.threads, launch.shared, call);
    else
      simt::launch(grid, entry.threads, launch.shared, call);
  }
  return buffers.write(argv[2]);
}
