// The allocator that was torch's before accelrt's object, and who begins a pool while uninstall() decides.
#ifndef ACCELRT_TORCH_FORMER_H
#define ACCELRT_TORCH_FORMER_H
#include <mutex>

#include "torch_history.h"
#include "torch_pools.h"

namespace {

CUDAAllocator *before = nullptr;  // until accelrt's object is torch's
std::atomic<bool> late{false};    // it is initialised, so that memory and pools of it may be about
std::atomic<int> devices{0};      // that torch initialised

// Has it serve the devices too, for it is to be torch's again.
std::mutex &turn_to_wake = *new std::mutex;
void wake_former() {
  std::lock_guard<std::mutex> guard(turn_to_wake);
  if (!before->initialized()) before->init(devices.load());
  late.store(true);
}

bool is_childs{false};  // in a forked child of a process that used CUDA: locks of torch's own allocator may stay held

// torch's own settings, as its own allocator tells them; raises where torch refuses their text.
decltype(SnapshotInfo::config_metadata) torchs_settings() {
  const Pool none{1, 1};  // no pool of torch's has this id, so no memory is listed
  decltype(SnapshotInfo::config_metadata) unknown{};
  unknown.pinned_num_register_threads = 1;
  if (before == nullptr || is_childs || before->name() != "native") return unknown;
#if TORCH_MINOR >= 11
  return before->snapshot(none, false).config_metadata;
#else
  return before->snapshot(none).config_metadata;
#endif
}

// While uninstall() looks whether torch uses pools, those that are just being begun are waited for, and new ones are the
// former allocator's: that one would be told the end of what begins here after the look.
std::atomic<bool> leaving{false};
std::atomic<int> begins{0};
struct Begin {
  Begin(DeviceIndex device, Pool pool) {
    if (!leaving.load() || accelrt->pool_uses(device, pool.first, pool.second) > 0) return;
    wake_former();
    forget_pool(device, pool);
    other = before;
  }
  struct Count {
    Count() { ++begins; }
    ~Count() { --begins; }
  } count;
  CUDAAllocator *other = nullptr;  // whose the pool is; NULL: accelrt's
};

}  // namespace
#endif
