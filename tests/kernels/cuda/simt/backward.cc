// Runs the launches of a backward pass described by a file one after the other: backward INPUT OUTPUT. As ways.cc, with this
// family's parameters.
#include KERNELS  // the entry points, and a table of them called `entries`

#include "simt_buffers.h"

struct Header {
  int32_t buffers, launches, eager, reverse;
};
struct Launch {
  int32_t entry, shared, x, y, z, unused;
};

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  simt::Input input(argv[1]);
  Header header;
  input.take(&header, sizeof header);
  simt::Buffers buffers(input, header.buffers);
  simt::eager_copies = header.eager, simt::last_warp_first = header.reverse;
  for (int i = 0; i < header.launches; i++) {
    Launch launch;
    BackwardParams p;
    input.take(&launch, sizeof launch), input.take(&p, sizeof p);
    buffers.move(p.q), buffers.move(p.k), buffers.move(p.v), buffers.move(p.out), buffers.move(p.dout);
    buffers.move(p.dq), buffers.move(p.dk), buffers.move(p.dv), buffers.move(p.lse), buffers.move(p.dlse);
    buffers.move(p.shift), buffers.move(p.delta), buffers.move(p.sums), buffers.move(p.counter);
    buffers.move(p.q_starts), buffers.move(p.k_starts), buffers.move(p.mask);
    const Entry& entry = entries[launch.entry];
    simt::launch({(unsigned)launch.x, (unsigned)launch.y, 1}, entry.threads, launch.shared, [&] { entry.kernel(p); });
  }
  return buffers.write(argv[2]);
}
