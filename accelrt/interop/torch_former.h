// The allocator that was torch's before accelrt's object, and who begins a pool while uninstall() decides.
#ifndef ACCELRT_TORCH_FORMER_H
#define ACCELRT_TORCH_FORMER_H
#include <mutex>
#include <new>

#include "torch_history.h"
#include "torch_pools.h"

namespace {

CUDAAllocator *before = nullptr;  // until accelrt's object is torch's
std::atomic<bool> late{false};    // it is initialised, so that memory and pools of it may be about
std::atomic<int> devices{0};      // that torch initialised

// Has it serve the devices too, for it is to be torch's again.
void wake_former() {
  static std::mutex &turn = *new std::mutex;
  std::lock_guard<std::mutex> guard(turn);
  if (!before->initialized()) before->init(devices.load());
  late.store(true);
}

// torch's own settings, as its own allocator tells them; raises where torch refuses their text.
decltype(SnapshotInfo::config_metadata) torchs_settings() {
  const Pool none{1, 1};  // no pool of torch's has this id, so no memory is listed
  decltype(SnapshotInfo::config_metadata) unknown{};
  unknown.pinned_num_register_threads = 1;
  if (before == nullptr || before->name() != "native") return unknown;
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

// In a forked child: threads of the parent's may have been in the middle of what is forgotten here.
void forget_parents_threads() {
  begins.store(0);
  leaving.store(false);
  new (&recorder.lock) std::mutex;
  new (&recorder.traces) decltype(recorder.traces);
  new (&recorder.live) decltype(recorder.live);
  new (&recorder.annotations) decltype(recorder.annotations);
}

}  // namespace
#endif
