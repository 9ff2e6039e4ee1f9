// Known answers in the place of accelrt's, by which torch_prebuilt.py sees whether the torch that runs and an object that
// was compiled elsewhere lay C++'s objects out alike.  For a child process that asks and ends: nothing is put back.
#ifndef ACCELRT_TORCH_PROBE_H
#define ACCELRT_TORCH_PROBE_H
#include "torch_history.h"
#include "torch_pools.h"

namespace {
namespace probe {

constexpr uint64_t FIRST = 0x7000, POOL[2] = {5, 6};

void read_stats(int, TorchStats *out_stats) {
  int64_t *numbers = reinterpret_cast<int64_t *>(out_stats);
  for (size_t index = 0; index < sizeof(TorchStats) / sizeof(int64_t); ++index) numbers[index] = 1000 + index;
}

// One segment: two live blocks, and a free one between them.
int blocks(int device, TorchBlock **out_blocks, size_t *out_count) {
  static TorchBlock all[3];
  for (uint64_t index = 0; index < 3; ++index)
    all[index] = {FIRST + 512 * index, 512, 500 + index, 77, {POOL[0], POOL[1]}, index == 1 ? 0 : TORCH_LIVE, index == 0,
                  0, 1, 0};
  *out_blocks = all;
  *out_count = device == 0 ? 3 : 0;
  return 0;
}

int save_pool(int device, uint64_t first, uint64_t second, void **out_state, char *text) {
  if (device == 0 && first == POOL[0] && second == POOL[1]) return *out_state = text, 0;
  snprintf(text, TORCH_TEXT, "a pool of another name");
  return -1;
}

TorchTable table_of() {
  TorchTable table{};
  table.version = TORCH_TABLE_VERSION;
  table.read_stats = read_stats;
  table.blocks = blocks;
  table.release_blocks = [](TorchBlock *) {};
  table.save_pool = save_pool;
  table.forget_state = [](void *) {};
  table.get_fraction = [](int device) { return device == 0 ? 0.625 : 1; };
  return table;
}

void fill_history() {
  static const TorchTable table = table_of();
  accelrt = &table;
  note_pool(0, {POOL[0], POOL[1]});
  recorder.records = true;
  recorder.most = 8;
  compile_contexts = {"a compile context"};
  user_metadata = "metadata longer than what std::string keeps within itself";
  const TraceEntry::Action actions[] = {TraceEntry::ALLOC, TraceEntry::FREE_COMPLETED, TraceEntry::SNAPSHOT};
  for (uint64_t index = 0; index < 3; ++index)
    keep(entry_of(actions[index], 0, FIRST + index, 512 + index, reinterpret_cast<void *>(77), {POOL[0], POOL[1]},
                  nullptr));
  AnnotationEntry entry(0, c10::getApproximateTime());
  entry.recordUserMetadata("key", "value");
  recorder.annotations.assign(2, entry);
}

}  // namespace probe
}  // namespace
#endif
