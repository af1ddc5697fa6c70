// Runs the launches described by a file one after the other: ways INPUT OUTPUT. The pointers among a kernel's parameters,
// which are the host's own, are moved to where the buffers are here.
#include "simt_buffers.h"
#include "simt_program.h"

struct Header {
  int32_t buffers, launches, pointers, eager, reverse;
};
struct Launch {
  int32_t entry, shared, x, y, z;
};

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  simt::Input input(argv[1]);
  Header header;
  input.take(&header, sizeof header);
  simt::Buffers buffers(input, header.buffers);
  std::vector<int32_t> pointers(header.pointers);
  input.take(pointers.data(), pointers.size() * sizeof(int32_t));
  simt::eager_copies = header.eager, simt::last_warp_first = header.reverse;
  for (int i = 0; i < header.launches; i++) {
    Launch launch;
    simt::Given given;
    input.take(&launch, sizeof launch), input.take(given.bytes, simt::given_bytes);
    for (int32_t at : pointers) buffers.move(*(char**)(given.bytes + at));
    const simt::Entry& entry = simt::entries[launch.entry];
    const simt::Index grid = {(unsigned)launch.x, (unsigned)launch.y, (unsigned)launch.z};
    simt::launch(grid, entry.threads, launch.shared, [&] { entry.call(nullptr, given.bytes); });
  }
  return buffers.write(argv[2]);
}
