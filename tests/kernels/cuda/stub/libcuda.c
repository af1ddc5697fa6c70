// The calls of libcuda that the project makes, on a machine without one: they check what they are given as the driver would
// and keep a record of the launches. An "image" is text: the kernel's name, its threads, and the sizes of its arguments.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NOT_FOUND = 500, TOO_LARGE = 701 };
enum { MAX_KERNELS = 256, MAX_ARGUMENTS = 8, MAX_ARGUMENT_BYTES = 512, MAX_LAUNCHES = 4096 };
enum { CAPTURE_UNSUPPORTED = 900, CAPTURE_RELAXED = 2, POISON = 0xA5, MAX_ALLOCATIONS = 4096 };
enum { COOPERATIVE = 2, PROGRAMMATIC = 6, MAX_DYNAMIC_SHARED = 8, DEFAULT_SHARED = 48 * 1024 };
enum { UINT8 = 0, FLOAT32 = 7, NO_SWIZZLE = 0, SWIZZLE_128_BYTES = 3 };

typedef struct {
  char name[128];
  int threads, count, sizes[MAX_ARGUMENTS], shared_limit;
} Kernel;

typedef struct {
  unsigned grid[3], block[3], shared;
  void* stream;
  void* attributes;
  unsigned attribute_count;
} Config;

typedef struct {
  int id, pad, value[16];
} Attribute;

typedef struct {
  uint64_t magic, address, dtype, rank, sizes[4], strides[3], box[4], swizzle;
} Map;

typedef struct {
  char name[128];
  int32_t grid[3], threads, shared, dependent, cooperative, count, sizes[MAX_ARGUMENTS];
  uint64_t stream;
  char arguments[MAX_ARGUMENTS][MAX_ARGUMENT_BYTES];
} Launch;

static const uint64_t MAGIC = 0x70616d726f736e65;
static Kernel kernels[MAX_KERNELS];
static int kernel_count;
static Launch launches[MAX_LAUNCHES];
static long launch_count, context_count, map_count, replace_count;
static int failing, always_failing;  // the code of the next launch, and of all of them
static __thread void* context;
static char the_context;

// Captures: while one is under way, a thread that has not relaxed its mode may neither allocate nor load, and breaks it by
// trying. Fresh memory is poisoned; zeroing takes effect when its stream is waited for.
typedef struct {
  unsigned char* start;
  size_t size;
} Allocation;
typedef struct {
  unsigned char* address;
  size_t size;
} Stream;
static __thread int capture_mode;
static int capturing, broken_captures, full;  // full: the next so many allocations fail
static Allocation allocations[MAX_ALLOCATIONS];
static long allocation_count, stream_count;

// ---- what tests ask

long stub_launches(void) { return launch_count; }
long stub_maps(void) { return map_count; }
long stub_replaced(void) { return replace_count; }
const Launch* stub_launch(long number) { return &launches[number % MAX_LAUNCHES]; }
void stub_fail_next(int code) { failing = code; }
void stub_fail_launches(int code) { always_failing = code; }
void stub_capturing(int on) { capturing = on; }
int stub_broken_captures(void) { return broken_captures; }
void stub_full(int times) { full = times; }
long stub_open_streams(void) { return stream_count; }
long stub_allocations(void) { return allocation_count; }
// Whether the bytes lie in memory allocated here and all are zero: 1 or 0.
int stub_is_zero(uint64_t address, long size) {
  for (long i = 0; i < allocation_count; i++) {
    const uint64_t start = (uintptr_t)allocations[i].start;
    if (address < start || address + (uint64_t)size > start + allocations[i].size) continue;
    for (long at = 0; at < size; at++)
      if (((unsigned char*)(uintptr_t)address)[at]) return 0;
    return 1;
  }
  return 0;
}
static int forbidden(void) {
  if (!capturing || capture_mode == CAPTURE_RELAXED) return 0;
  broken_captures++;
  return 1;
}

// ---- what the project calls

int cuGetErrorString(int code, const char** words) {
  *words = code == INVALID_VALUE ? "invalid argument" : code == TOO_LARGE ? "too many resources requested" : "error";
  return SUCCESS;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return index == 0 ? SUCCESS : INVALID_VALUE;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  *value = attribute == 16 ? 132 : 50 << 20;
  return SUCCESS;
}
int cuCtxGetCurrent(void** found) {
  *found = context;
  return SUCCESS;
}
int cuCtxSetCurrent(void* wanted) {
  context = wanted;
  return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void** found, int device) {
  (void)device;
  context_count++;
  *found = &the_context;
  return SUCCESS;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  const int before = capture_mode;
  capture_mode = *mode, *mode = before;
  return SUCCESS;
}
int cuStreamCreate(void** stream, unsigned flags) {
  if (context != &the_context) return INVALID_CONTEXT;
  if (flags != 1) return INVALID_VALUE;  // a stream that waits for the default one breaks that one's capture
  __sync_fetch_and_add(&stream_count, 1);
  *stream = calloc(1, sizeof(Stream));
  return SUCCESS;
}
int cuStreamDestroy_v2(void* stream) {
  free(stream);
  __sync_fetch_and_add(&stream_count, -1);
  return SUCCESS;
}
int cuMemAlloc_v2(uint64_t* address, size_t size) {
  if (context != &the_context) return INVALID_CONTEXT;
  if (forbidden()) return CAPTURE_UNSUPPORTED;
  if (full > 0 && full--) return OUT_OF_MEMORY;
  if (!size || allocation_count == MAX_ALLOCATIONS) return INVALID_VALUE;
  unsigned char* start = aligned_alloc(512, (size + 511) / 512 * 512);
  memset(start, POISON, size);
  allocations[__sync_fetch_and_add(&allocation_count, 1)] = (Allocation){start, size};
  *address = (uintptr_t)start;
  return SUCCESS;
}
int cuMemFree_v2(uint64_t address) {
  (void)address;
  return INVALID_VALUE;
}
int cuMemsetD8Async(uint64_t address, unsigned char value, size_t size, void* stream) {
  if (value || !stream) return INVALID_VALUE;
  *(Stream*)stream = (Stream){(unsigned char*)(uintptr_t)address, size};
  return SUCCESS;
}
int cuStreamIsCapturing(void* stream, int* status) {
  (void)stream;
  *status = capturing;
  return SUCCESS;
}
int cuStreamSynchronize(void* stream) {
  if (!stream) return INVALID_VALUE;
  Stream* one = stream;
  if (one->size) memset(one->address, 0, one->size);
  return SUCCESS;
}
int cuModuleLoadDataEx(void** module, const char* image, unsigned count, int* options, void** values) {
  (void)count, (void)options, (void)values;
  if (forbidden()) return CAPTURE_UNSUPPORTED;
  if (context != &the_context) return INVALID_CONTEXT;
  const int place = __sync_fetch_and_add(&kernel_count, 1);  // of its own, also where two threads load at once
  if (place >= MAX_KERNELS) return INVALID_VALUE;
  Kernel* kernel = &kernels[place];
  int at = 0, used = 0;
  memset(kernel, 0, sizeof *kernel);
  if (sscanf(image, "%127s %d%n", kernel->name, &kernel->threads, &at) != 2) return INVALID_VALUE;
  while (kernel->count < MAX_ARGUMENTS && sscanf(image + at, "%d%n", &kernel->sizes[kernel->count], &used) == 1)
    at += used, kernel->count++;
  kernel->shared_limit = DEFAULT_SHARED;
  *module = kernel;
  return SUCCESS;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (strcmp(((Kernel*)module)->name, name)) return NOT_FOUND;
  *function = module;
  return SUCCESS;
}
int cuModuleUnload(void* module) {
  (void)module;
  return SUCCESS;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  if (attribute == MAX_DYNAMIC_SHARED) ((Kernel*)function)->shared_limit = value;
  return SUCCESS;
}
int cuFuncGetAttribute(int* value, int attribute, void* function) {
  (void)function;
  *value = attribute == 4 ? 100 : 0;
  return SUCCESS;
}
int cuTensorMapEncodeTiled(void* made, int dtype, unsigned rank, void* address, const uint64_t* sizes,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave,
                           int swizzle, int promotion, int fill) {
  (void)interleave, (void)promotion, (void)fill;
  if ((uintptr_t)made % 64 || rank != 4 || (uintptr_t)address % 16) return INVALID_VALUE;
  const uint32_t row = box[0] * (dtype == UINT8 ? 1 : dtype == FLOAT32 ? 4 : 2);
  if ((swizzle != NO_SWIZZLE && swizzle != SWIZZLE_128_BYTES) || row % 16) return INVALID_VALUE;
  if (swizzle == SWIZZLE_128_BYTES && row > 128) return INVALID_VALUE;
  Map map = {.magic = MAGIC, .address = (uintptr_t)address, .dtype = dtype, .rank = rank, .swizzle = swizzle};
  for (unsigned i = 0; i < rank; i++) {
    if (!sizes[i] || !box[i] || box[i] > 256 || steps[i] != 1) return INVALID_VALUE;
    map.sizes[i] = sizes[i], map.box[i] = box[i];
    if (i + 1 < rank) {
      if (strides[i] % 16 || strides[i] >= (uint64_t)1 << 40) return INVALID_VALUE;
      map.strides[i] = strides[i];
    }
  }
  memcpy(made, &map, sizeof map);
  map_count++;
  return SUCCESS;
}
int cuTensorMapReplaceAddress(void* given, void* address) {
  Map* map = given;
  if (map->magic != MAGIC || (uintptr_t)address % 16) return INVALID_VALUE;
  map->address = (uintptr_t)address;
  replace_count++;
  return SUCCESS;
}
int cuLaunchKernelEx(const Config* config, void* function, void** arguments, void** extra) {
  if (always_failing) return always_failing;
  if (failing) {
    const int code = failing;
    failing = 0;
    return code;
  }
  const Kernel* kernel = function;
  if (context != &the_context) return INVALID_CONTEXT;
  if (kernel < kernels || kernel >= kernels + kernel_count || extra) return INVALID_VALUE;
  if ((int)config->shared > kernel->shared_limit) return TOO_LARGE;
  if (config->block[0] != (unsigned)kernel->threads || config->block[1] != 1 || config->block[2] != 1)
    return INVALID_VALUE;
  if (!config->grid[0] || !config->grid[1] || !config->grid[2] || config->grid[1] > 65535 || config->grid[2] > 65535)
    return INVALID_VALUE;
  Launch* launch = &launches[__sync_fetch_and_add(&launch_count, 1) % MAX_LAUNCHES];
  memset(launch, 0, sizeof *launch);
  strcpy(launch->name, kernel->name);
  for (int i = 0; i < 3; i++) launch->grid[i] = (int32_t)config->grid[i];
  launch->threads = kernel->threads, launch->shared = (int32_t)config->shared;
  launch->stream = (uintptr_t)config->stream, launch->count = kernel->count;
  for (unsigned i = 0; i < config->attribute_count; i++) {
    const Attribute* attribute = (const Attribute*)config->attributes + i;
    if (attribute->id == PROGRAMMATIC) launch->dependent = attribute->value[0];
    if (attribute->id == COOPERATIVE) launch->cooperative = attribute->value[0];
  }
  for (int i = 0; i < kernel->count; i++) {
    launch->sizes[i] = kernel->sizes[i];
    memcpy(launch->arguments[i], arguments[i], (size_t)kernel->sizes[i]);
  }
  return SUCCESS;
}
