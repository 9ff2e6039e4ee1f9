// torch's allocator of CUDA memory, as an object of torch's own class over accelrt's pool.  torch_build.py compiles it
// against the headers of the torch that is installed, with TORCH_MINOR as its minor version; it needs no header of
// NVIDIA's (cuda_stub) and no symbol of Python's.  It calls accelrt by a table of C functions (torch_table.h).
//
// Addresses and pools that are not accelrt's are the allocator's that was torch's before, so it may be installed late.
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "torch_fork.h"
#include "torch_former.h"
#include "torch_history.h"
#include "torch_pinned.h"
#include "torch_pools.h"
#include "torch_probe.h"
#include "torch_sharing.h"

namespace {

using c10::DataPtr;
using Counts = c10::CachingDeviceAllocator::DeviceStats;

std::string backend_name = "accelrt";

// Tells torch's tracer of memory (torch.cuda._gpu_trace, the sanitizer) what comes or goes, if there is one.
void tell_tracer(void *address, bool comes) {
  const c10::impl::PyInterpreter *python = c10::impl::GPUTrace::get_trace();
  if (C10_LIKELY(python == nullptr) || address == nullptr) return;
  if (comes)
    (*python)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
  else
    (*python)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
}

void free_ours(void *address);
void free_plain(void *address) {
  tell_tracer(address, false);
  accelrt->plain_free(reinterpret_cast<uintptr_t>(address));
}

struct Checkpoint final : AllocatorState {
  Checkpoint(void *state, Pool pool) : state(state), pool(pool) {}
  ~Checkpoint() override { accelrt->forget_state(state); }
  void *state;
  Pool pool;
};

// --- figures -------------------------------------------------------------------------------------------------

template <class Stats>
void fill_stats(Stats &into, const TorchCounter *counters) {
  for (int kind = 0; kind < 3; ++kind) fill_stat(into[kind], counters[kind]);
}

void report(void *address, int64_t size, DeviceIndex device) {
  int64_t allocated, reserved;
  accelrt->totals(device, &allocated, &reserved);
  c10::reportMemoryUsageToProfiler(address, size, allocated, reserved, c10::Device(c10::kCUDA, device));
}

bool run_callbacks() {
  bool freed = false;
  for (const auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
    freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
  return freed;
}

// --- the allocator -------------------------------------------------------------------------------------------

struct Allocator final : CUDAAllocator {
  std::atomic<bool> caching{true};

  void *take(size_t size, DeviceIndex device, cudaStream_t stream) {
    void *memory = take_block(size, device, stream);
    tell_tracer(memory, true);  // which may allocate: past the routes of this allocation
    return memory;
  }

  void *take_block(size_t size, DeviceIndex device, cudaStream_t stream) {
    uintptr_t address = 0;
    char text[TORCH_TEXT];
    if (size == 0) return nullptr;
    refuse_in_tracker();
    Gathered gathered(RecordContext::STATE);
    Routed routed(device, stream);
    Homed homed(device, stream, routed.entered);
    int code = accelrt->alloc(size, device, stream, &address, text);
    if (code < 0 && homed.leave()) code = accelrt->alloc(size, device, stream, &address, text);  // it fell asleep
    if (code > 0 && run_callbacks()) code = accelrt->alloc(size, device, stream, &address, text);
    if (code > 0) refuse(size, device, stream, text);
    TORCH_CHECK(code == 0, text);
    void *memory = reinterpret_cast<void *>(address);
    if (C10_UNLIKELY(c10::memoryProfilingEnabled())) report(memory, accelrt->size_of(device, address), device);
    if (C10_UNLIKELY(is_tracked.load())) give_postponed();
    return memory;
  }

  [[noreturn]] void refuse(size_t size, DeviceIndex device, cudaStream_t stream, const char *text) {
    size_t room = 0, total = 0;
    int64_t allocated, reserved;
    std::vector<OutOfMemoryObserver> observers;
    cudaMemGetInfo(&room, &total);
    cudaGetLastError();
    {
      std::lock_guard<std::mutex> guard(recorder.lock);
      bool is_recorded = recorder.when.load() >= RecordContext::ALLOC;
      keep(entry_of(TraceEntry::OOM, device, room, size, stream, {0, 0}, is_recorded ? context : nullptr));
      observers = recorder.observers;
    }
    accelrt->totals(device, &allocated, &reserved);
    c10::reportOutOfMemoryToProfiler(size, allocated, reserved, c10::Device(c10::kCUDA, device));
    for (const auto &observer : observers)
      observer(device, size, static_cast<size_t>(accelrt->get_fraction(device) * static_cast<double>(total)), room);
    TORCH_CHECK_WITH(OutOfMemoryError, false, text, take_refusal());
    std::abort();
  }

  void *take_plain(size_t size, DeviceIndex device) {  // past the cache
    uintptr_t address = 0;
    char text[TORCH_TEXT];
    int code = size == 0 ? 0 : accelrt->plain_alloc(device, size, &address, text);
    TORCH_CHECK_WITH(OutOfMemoryError, code <= 0, "CUDA out of memory. Tried to allocate ", size,
                     " bytes past the cache. ", text);
    TORCH_CHECK(code == 0, text);
    tell_tracer(reinterpret_cast<void *>(address), true);
    return reinterpret_cast<void *>(address);
  }

  void give_postponed() {
    while (!freed_in_tracker.empty()) {
      void *address = freed_in_tracker.back();
      freed_in_tracker.pop_back();
      give(address, false);
    }
  }

  void give(void *address, bool raises) {
    if (raises) refuse_in_tracker();
    if (C10_UNLIKELY(is_tracked.load() && in_tracker)) return freed_in_tracker.push_back(address);
    uintptr_t number = reinterpret_cast<uintptr_t>(address);
    int device = accelrt->device_at(number);
    Gathered gathered(RecordContext::ALL);
    bool reports = c10::memoryProfilingEnabled() && device >= 0, is_traced = c10::impl::GPUTrace::get_trace() != nullptr;
    int64_t size = C10_UNLIKELY(reports || is_traced) ? static_cast<int64_t>(accelrt->size_of(device, number)) : 0;
    if (C10_UNLIKELY(is_traced) && size != 0) tell_tracer(address, false);  // before another thread can have it
    TORCH_CHECK(accelrt->release(address, device, raises) == 0, "invalid device pointer: ", address);
    if (C10_UNLIKELY(reports)) report(address, -size, static_cast<DeviceIndex>(device));
    if (C10_UNLIKELY(is_tracked.load())) give_postponed();
  }

  bool is_ours(void *address) const {
    uintptr_t number = reinterpret_cast<uintptr_t>(address);
    int device = accelrt->device_at(number);
    return device >= 0 && (!late || accelrt->size_of(device, number) != 0);
  }

  void require(DeviceIndex device) const {
    refuse_in_tracker();
    TORCH_CHECK(device >= 0 && device < devices.load(), "Invalid device argument ", static_cast<int>(device),
                ": torch has ", devices.load(), " devices of CUDA here, or has not initialised them yet");
  }

  CUDAAllocator *owner_of(DeviceIndex device, Pool pool) const {  // NULL: ours
    if (is_known(device, pool)) return nullptr;
    TORCH_CHECK(late, "accelrt, which is torch's allocator here, never had a pool (", pool.first, ", ", pool.second,
                ") on device ", static_cast<int>(device));
    return before;
  }

  // c10::Allocator
  DataPtr allocate(size_t size) override {
    TORCH_CHECK_WITH(OutOfMemoryError, size < (1ull << 60),
                     "CUDA out of memory. Tried to allocate more than 1EB memory.");
    DeviceIndex device = c10::cuda::current_device();
    c10::Device place(c10::kCUDA, device);
    if (C10_UNLIKELY(!caching.load())) {
      void *memory = take_plain(size, device);
      return {memory, memory, size != 0 ? &free_plain : &free_ours, place};
    }
    void *memory = take(size, device, c10::cuda::getCurrentCUDAStream(device).stream());
    return {memory, memory, &free_ours, place};
  }
  c10::DeleterFnPtr raw_deleter() const override { return caching.load() ? &free_ours : &free_plain; }
  void copy_data(void *to, const void *from, size_t count) const override {
    DeviceIndex device = c10::cuda::current_device();
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device).stream();
    C10_CUDA_CHECK(cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream));
  }

  // c10::DeviceAllocator, of CUDAAllocator before torch 2.9
  bool initialized() override { return devices.load() > 0; }
  void emptyCache(Pool pool) override {
    Gathered gathered(RecordContext::ALL);
    if (pool == Pool(0, 0))
      accelrt->empty();
    else
      accelrt->empty_pool(pool.first, pool.second);
    if (late && !is_known(pool)) before->emptyCache(pool);
  }
  Counts getDeviceStats(DeviceIndex device) override {
    TorchStats read;
    Counts stats;
    require(device);
    accelrt->read_stats(device, &read);
    fill_stats(stats.allocation, read.counters[0]);
    fill_stats(stats.active, read.counters[1]);
    fill_stats(stats.inactive_split, read.counters[2]);
    fill_stats(stats.allocated_bytes, read.counters[3]);
    fill_stats(stats.active_bytes, read.counters[4]);
    fill_stats(stats.inactive_split_bytes, read.counters[5]);
    fill_stats(stats.requested_bytes, read.counters[6]);
    fill_stats(stats.segment, read.counters[7]);
    fill_stats(stats.reserved_bytes, read.counters[8]);
    fill_stat(stats.oversize_allocations, read.oversize_allocations);
    fill_stat(stats.oversize_segments, read.oversize_segments);
    stats.num_alloc_retries = read.retries;
    stats.num_ooms = read.refusals;
    stats.num_sync_all_streams = read.waits;
    stats.num_device_alloc = read.device_allocations;
    stats.num_device_free = read.device_frees;
    stats.max_split_size = read.max_split;
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    require(device);
    accelrt->reset_accumulated(device);
  }
  void resetPeakStats(DeviceIndex device) override {
    require(device);
    accelrt->reset_peaks(device);
  }
#if TORCH_MINOR >= 9
  void recordStream(const DataPtr &data, c10::Stream stream) override {
    recordStream(data, c10::cuda::CUDAStream(stream));
  }
#endif
#if TORCH_MINOR >= 10
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    c10::DeviceGuard guard(c10::Device(c10::kCUDA, device));
    size_t room = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&room, &total));
    return {room, total};
  }
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    Blocks listed(device);
    std::vector<StreamSegmentSize> sizes;
    for (size_t index = 0; index < listed.count; ++index) {
      const TorchBlock &block = listed.blocks[index];
      if (!block.expandable) continue;
      if (block.opens) sizes.emplace_back(reinterpret_cast<cudaStream_t>(block.stream), !block.large, 0);
      sizes.back().total_size += block.size;
    }
    return sizes;
  }
  void setUserMetadata(const std::string &metadata) override { user_metadata = metadata; }
  std::string getUserMetadata() override { return user_metadata; }
  void setNoSplit(DeviceIndex device, Pool pool) override {
    if (CUDAAllocator *other = owner_of(device, pool)) return other->setNoSplit(device, pool);
    set_up(device, pool, [](Setup &setup) { setup.whole = 1; });
  }
#endif

  // c10::cuda::CUDACachingAllocator::CUDAAllocator
  void *raw_alloc(size_t size) override {
    DeviceIndex device = c10::cuda::current_device();
    return raw_alloc_with_stream(size, c10::cuda::getCurrentCUDAStream(device).stream());
  }
  void *raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
    DeviceIndex device = c10::cuda::current_device();
    return caching.load() ? take(size, device, stream) : take_plain(size, device);
  }
  void raw_delete(void *address) override {
    if (address == nullptr) return;
    if (is_ours(address) || (!late && caching.load()))
      give(address, true);
    else if (!caching.load())  // as torch's own goes by what is set when memory is freed
      free_plain(address);
    else
      before->raw_delete(address);
  }
  void init(int count) override {
    char text[TORCH_TEXT];
    torchs_settings();  // raises what torch's own allocator raises of its settings
    TORCH_CHECK(accelrt->init(count, text) == 0, text);
    devices.store(count);
    if (allocator.load() != this) wake_former();  // uninstall() came in between
  }
  double getMemoryFraction(DeviceIndex device) override {
    require(device);
    return accelrt->get_fraction(device);
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    require(device);
    TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction: ", fraction, ". Please set within [0, 1].");
    accelrt->set_fraction(fraction, device);
  }
  void enable(bool value) override { caching.store(value); }
  bool isEnabled() const override { return caching.load(); }
  void cacheInfo(DeviceIndex device, size_t *largest) override { *largest = std::max(*largest, accelrt->largest(device)); }
  void *getBaseAllocation(void *address, size_t *size) override {
    uintptr_t number = reinterpret_cast<uintptr_t>(address), base = 0;
    size_t bytes = 0;
    int device = accelrt->device_at(number);
    if (device < 0 || accelrt->base_of(device, number, &base, &bytes) != 0) {
      TORCH_CHECK(late, "accelrt, which is torch's allocator here, did not hand out ", address);
      return before->getBaseAllocation(address, size);
    }
    if (size != nullptr) *size = bytes;
    return reinterpret_cast<void *>(base);
  }
  void recordStream(const DataPtr &data, c10::cuda::CUDAStream stream) override {
    if (data.get() == nullptr || data.get_deleter() == &free_plain) return;
    if (data.get_deleter() != &free_ours && late && !is_ours(data.get()))
      before->recordStream(data, stream);
    else
      accelrt->record_stream(data.get(), stream.stream());
  }

  void beginAllocateToPool(DeviceIndex device, Pool pool, Filter filter) override {
    char text[TORCH_TEXT];
    Begin begin(device, pool);
    if (begin.other != nullptr) return begin.other->beginAllocateToPool(device, pool, std::move(filter));
    int purpose = purpose_of(filter);
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device).stream();
    int begun = purpose == TORCH_UNKNOWN ? TORCH_HOLDER : purpose;
    note_pool(device, pool);
    TORCH_CHECK(accelrt->begin_pool(device, pool.first, pool.second, begun, reinterpret_cast<uintptr_t>(stream), text) == 0,
                text);
    if (purpose != TORCH_UNKNOWN) return;
    std::lock_guard<std::mutex> guard(pools_lock);
    filtered.push_back({device, pool, std::move(filter)});
    filters.store(filtered.size());
  }
  void endAllocateToPool(DeviceIndex device, Pool pool) override {
    if (CUDAAllocator *other = owner_of(device, pool)) return other->endAllocateToPool(device, pool);
    {
      std::lock_guard<std::mutex> guard(pools_lock);
      for (auto each = filtered.rbegin(); each != filtered.rend(); ++each)
        if (each->device == device && each->pool == pool) {
          filtered.erase(std::next(each).base());
          filters.store(filtered.size());
          return;
        }
    }
    accelrt->end_pool(device, pool.first, pool.second);
  }
  void releasePool(DeviceIndex device, Pool pool) override {
    if (CUDAAllocator *other = owner_of(device, pool)) return other->releasePool(device, pool);
    accelrt->release_pool(device, pool.first, pool.second);
  }
  int getPoolUseCount(DeviceIndex device, Pool pool) override {
    if (late && !is_known(device, pool)) return before->getPoolUseCount(device, pool);
    return accelrt->pool_uses(device, pool.first, pool.second);
  }
  bool checkPoolLiveAllocations(DeviceIndex device, Pool pool, const std::unordered_set<void *> &expected) override {
    if (CUDAAllocator *other = owner_of(device, pool)) return other->checkPoolLiveAllocations(device, pool, expected);
    Blocks listed(device);
    size_t live = 0;
    for (size_t index = 0; index < listed.count; ++index) {
      const TorchBlock &block = listed.blocks[index];
      if (block.state != TORCH_LIVE || Pool(block.pool[0], block.pool[1]) != pool) continue;
      if (expected.count(reinterpret_cast<void *>(block.address)) == 0) return false;
      ++live;
    }
    return live == expected.size();
  }

  // What a MemPool asked for; torch says it in several calls, and accelrt takes it in one.
  struct Setup {
    const TorchSource *source = nullptr;
    int whole = 0, lends = 0;
  };
  std::map<std::pair<int, Pool>, Setup> setups;  // under pools_lock
  template <class Change>
  void set_up(DeviceIndex device, Pool pool, Change change, bool raises = true) {
    Setup setup;
    {
      std::lock_guard<std::mutex> guard(pools_lock);
      change(setups[{device, pool}]);
      setup = setups[{device, pool}];
    }
    int code = accelrt->set_up_pool(device, pool.first, pool.second, setup.source, setup.whole, setup.lends);
    TORCH_CHECK(code == 0 || !raises,  // the end of a MemPool, also in a forked child, raises nothing
                "accelrt, which is torch's allocator here, could not set up a pool: status ", code);
  }
  void hold(DeviceIndex device, Pool pool, std::shared_ptr<CUDAAllocator> allocator) {
    char text[TORCH_TEXT];
    note_pool(device, pool);
    TORCH_CHECK(accelrt->begin_pool(device, pool.first, pool.second, TORCH_HOLDER, 0, text) == 0, text);
    if (!allocator || allocator.get() == this) return;
    try {
      {
        std::lock_guard<std::mutex> guard(pools_lock);
        setups[{device, pool}].source =
            source_of(std::move(allocator), [this](const TorchSource *source) { return is_named(source); });
      }
      set_up(device, pool, [](Setup &) {});
    } catch (...) {  // torch has no object then that would let the pool go
      accelrt->release_pool(device, pool.first, pool.second);
      throw;
    }
  }
  bool is_named(const TorchSource *source) {  // under pools_lock; forgets pools that nobody uses
    bool answer = false;
    for (auto each = setups.begin(); each != setups.end();) {
      const Pool &pool = each->first.second;
      bool used = accelrt->pool_uses(each->first.first, pool.first, pool.second) > 0;
      answer = answer || (used && each->second.source == source);
      each = used ? std::next(each) : setups.erase(each);
    }
    return answer;
  }
#if TORCH_MINOR >= 11
  void createOrIncrefPool(DeviceIndex device, Pool pool, std::shared_ptr<CUDAAllocator> allocator) override {
    Begin begin(device, pool);
    if (begin.other != nullptr) return begin.other->createOrIncrefPool(device, pool, std::move(allocator));
    hold(device, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, Pool pool, bool lends) override {
    if (CUDAAllocator *other = owner_of(device, pool)) return other->setUseOnOOM(device, pool, lends);
    set_up(device, pool, [lends](Setup &setup) { setup.lends = lends; }, lends);
  }
#else
  void createOrIncrefPool(DeviceIndex device, Pool pool, CUDAAllocator *allocator) override {
    Begin begin(device, pool);
    if (begin.other != nullptr) return begin.other->createOrIncrefPool(device, pool, allocator);
    hold(device, pool, std::shared_ptr<CUDAAllocator>(allocator, [](CUDAAllocator *) {}));
  }
  void setUseOnOOM(DeviceIndex device, Pool pool) override {
    if (CUDAAllocator *other = owner_of(device, pool)) return other->setUseOnOOM(device, pool);
    set_up(device, pool, [](Setup &setup) { setup.lends = 1; });
  }
#endif

  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device, Pool pool) override {
    if (CUDAAllocator *other = owner_of(device, pool)) return other->getCheckpointState(device, pool);
    void *state = nullptr;
    char text[TORCH_TEXT];
    TORCH_CHECK(accelrt->save_pool(device, pool.first, pool.second, &state, text) == 0, text);
    return std::make_shared<Checkpoint>(state, pool);
  }
  CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<AllocatorState> state) override {
    Checkpoint *checkpoint = dynamic_cast<Checkpoint *>(state.get());
    if (checkpoint == nullptr) {
      TORCH_CHECK(late, "the checkpoint is of another allocator than accelrt");
      return before->setCheckpointPoolState(device, std::move(state));
    }
    uintptr_t *live = nullptr, *freed = nullptr;
    size_t live_count = 0, freed_count = 0;
    char text[TORCH_TEXT];
    CheckpointDelta delta;
    Gathered gathered(RecordContext::ALL);
    TORCH_CHECK(
        accelrt->restore_pool(checkpoint->state, &live, &live_count, &freed, &freed_count, text) == 0, text);
    for (size_t index = 0; index < freed_count; ++index)
      delta.ptrs_freed.push_back(reinterpret_cast<void *>(freed[index]));
    for (size_t index = 0; index < live_count; ++index) {
      void *address = reinterpret_cast<void *>(live[index]);
      delta.dataptrs_allocd.emplace_back(address, address, &free_ours, c10::Device(c10::kCUDA, device));
    }
    accelrt->forget(live);
    accelrt->forget(freed);
    return delta;
  }

  ShareableHandle shareIpcHandle(void *address) override {
    if (late && !is_ours(address)) return before->shareIpcHandle(address);
    return share_block(address);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    if (is_our_handle(handle)) return open_block(handle, c10::cuda::current_device());
    if (!before->initialized()) before->init(devices.load());
    return before->getIpcDevPtr(std::move(handle));  // of a process with torch's own allocator
  }

  bool isHistoryEnabled() override {
    std::lock_guard<std::mutex> guard(recorder.lock);
    return recorder.records;
  }
  void record(bool enabled, CreateContextFn gather, size_t most, RecordContext when, bool clear, uint64_t skipped) {
    TORCH_CHECK(when == RecordContext::NEVER || gather != nullptr, "contexts are wanted, and no function to gather them");
    {
      std::lock_guard<std::mutex> guard(recorder.lock);
      recorder.records = enabled;
      recorder.gather.store(enabled ? gather : nullptr);
      recorder.when.store(enabled ? when : RecordContext::NEVER);
      recorder.most = std::max<size_t>(most, 1);
      for (auto &trace : recorder.traces) trace.second.limit_to(recorder.most);
      recorder.skipped = skipped;
      if (!enabled || clear) {
        recorder.traces.clear();
        recorder.annotations.clear();
      }
      if (!enabled) {
        recorder.live.clear();
        recorder.segments.clear();
      }
    }
    follow();
  }
#if TORCH_MINOR >= 11
  void recordHistory(bool enabled, CreateContextFn gather, size_t most, RecordContext when, bool clear,
                     const std::vector<std::string> &skip_actions) override {
    uint64_t skipped = 0;
    for (const auto &action : skip_actions) skipped |= 1ull << c10::CachingDeviceAllocator::parseTraceEntryAction(action);
    record(enabled, gather, most, when, clear, skipped);
  }
#else
  void recordHistory(bool enabled, CreateContextFn gather, size_t most, RecordContext when, bool clear) override {
    record(enabled, gather, most, when, clear, 0);
  }
#endif
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &metadata) override {
    std::lock_guard<std::mutex> guard(recorder.lock);
    if (!recorder.records) return;
    AnnotationEntry entry(c10::cuda::current_device(), c10::getApproximateTime());
    for (const auto &each : metadata) entry.recordUserMetadata(each.first, each.second);
    recorder.annotations.push_back(std::move(entry));
    if (recorder.annotations.size() > recorder.most) recorder.annotations.erase(recorder.annotations.begin());
  }
  void pushCompileContext(std::string &text) override { compile_contexts.push_back(text); }
  void popCompileContext() override {
    if (!compile_contexts.empty()) compile_contexts.pop_back();
  }
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
    std::lock_guard<std::mutex> guard(recorder.lock);
    recorder.observers.push_back(std::move(observer));
  }
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    {
      std::lock_guard<std::mutex> guard(recorder.lock);
      recorder.trackers.push_back(std::move(tracker));
      is_tracked.store(true);
    }
    follow();
  }
#if TORCH_MINOR >= 12
  Context getContextForPointer(const void *address) override {
    uint64_t number = reinterpret_cast<uint64_t>(address);
    std::lock_guard<std::mutex> guard(recorder.lock);
    auto found = recorder.live.find(key_of(accelrt->device_at(number), number));
    return found == recorder.live.end() ? nullptr : found->second;
  }
  // For torch's policy of refusing before the driver is asked, which accelrt has not.
  void attachOomRejectionObserver(OomRejectionObserver) override {}
#endif
#if TORCH_MINOR >= 13
  DataPtr allocateWithAddress(size_t, void *) override {
    TORCH_CHECK(false, first_words("allocations at a given address"));
  }
#endif
#if TORCH_MINOR >= 14
  bool supportsUserMetadata() override { return true; }
  void annotateMemory(const void *address, const std::string &metadata) override {
    uint64_t number = reinterpret_cast<uint64_t>(address);
    int device = accelrt->device_at(number);
    if (device < 0) return;
    TraceEntry entry = entry_of(TraceEntry::ANNOTATE, device, number, accelrt->size_of(device, number), nullptr, {0, 0},
                                nullptr);
    entry.user_metadata_ = metadata;
    std::lock_guard<std::mutex> guard(recorder.lock);
    keep(std::move(entry));
  }
#endif

  SnapshotInfo snap(Pool pool, bool traces) {
    SnapshotInfo answer{};
    answer.config_metadata = torchs_settings();
    c10::ApproximateClockToUnixTimeConverter clock;
    auto to_ns = clock.makeConverter();
    for (int device = 0; device < std::max(devices.load(), 1); ++device) add_segments(answer, device, pool);
    std::lock_guard<std::mutex> guard(recorder.lock);
    for (int device = 0; device < devices.load(); ++device) {
      answer.device_traces.emplace_back();
      recorder.traces[device].for_each([&](const TraceEntry &entry) {
        if (!traces || (pool != Pool(0, 0) && entry.mempool_ != pool)) return;
        answer.device_traces.back().push_back(entry);
        auto &time = answer.device_traces.back().back().time_;
        time.t_ = to_ns(time.approx_t_) / 1000;
      });
      if (recorder.records)  // for the next one
        keep(entry_of(TraceEntry::SNAPSHOT, device, 0, active_bytes(answer, device), nullptr, {0, 0}, nullptr));
    }
    if (traces) answer.external_annotations = recorder.annotations;
    for (auto &entry : answer.external_annotations) entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
    TorchStats stats;
    accelrt->read_stats(0, &stats);
    answer.config_metadata.max_split_size =
        stats.max_split < 0 ? std::numeric_limits<size_t>::max() : static_cast<size_t>(stats.max_split);
    answer.config_metadata.expandable_segments = true;
    return answer;
  }
#if TORCH_MINOR >= 11
  SnapshotInfo snapshot(Pool pool, bool traces) override { return snap(pool, traces); }
#else
  SnapshotInfo snapshot(Pool pool) override { return snap(pool, true); }
#endif

  // accelrt opens its pages to every device that it knows to be used; this tells of one that has memory of others alone.
  void enablePeerAccess(DeviceIndex device, DeviceIndex other) override {
    char text[TORCH_TEXT];
    if (late) before->enablePeerAccess(device, other);
    TORCH_CHECK(accelrt->reach(device, other, text) == 0, text);
  }
  cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t count, cudaStream_t stream,
                          bool reachable) override {
    if (to_device == from_device || reachable)
      return cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, count, stream);
  }
  std::string name() override { return backend_name; }
};

Allocator &ours = *new Allocator;  // never destroyed: torch and its tensors keep plain pointers to it

void free_ours(void *address) {
  if (address != nullptr) ours.give(address, false);  // a destructor may call it
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Whether torch's present allocator serves devices already.
EXPORT int accelrt_torch_is_used() { return allocator.load()->initialized(); }

// Bytes that torch's former allocator holds of a device.
EXPORT int64_t accelrt_torch_former(int device) {
  try {
    if (before == nullptr || !before->initialized()) return 0;
    return before->getDeviceStats(static_cast<DeviceIndex>(device)).reserved_bytes[0].current;
  } catch (const std::exception &) {  // it does not know the device
    return 0;
  }
}

// Makes the object torch's allocator, at any time; count: the devices that torch has.  Not 0: the text says why not.
EXPORT int accelrt_torch_install(const TorchTable *table, const char *name, int count, char *text) {
  CUDAAllocator *present = allocator.load();
  if (table->version != TORCH_TABLE_VERSION || present == &ours) {
    snprintf(text, TORCH_TEXT, "it was compiled for another version of accelrt");
    return -1;
  }
  late = present->initialized();
  if (late && table->init(count, text) != 0) return -1;
  accelrt = table;
  backend_name = name;
  before = present;
  for (int device = 0; device < (late ? count : 0); ++device)  // torch may have asked for their access already
    if (accelrt_torch_former(device) > 0 && table->reach(device, device, text) != 0) return -1;
  devices.store(late ? count : 0);
  allocator.store(&ours);
  c10::SetAllocator(c10::kCUDA, &ours, 255);
  if (late || !present->initialized()) return 0;
  late = true;  // torch initialised CUDA in between
  if (table->init(c10::cuda::device_count(), text) != 0) return -1;
  devices.store(c10::cuda::device_count());
  return 0;
}

// From now on pools are begun by torch's former allocator, but for those that are in use; or no longer (Begin).
EXPORT void accelrt_torch_leave(int leaves) {
  if (leaves && devices.load() > 0) wake_former();
  leaving.store(leaves);
  while (leaves && begins.load() > 0) sched_yield();
}

EXPORT void accelrt_torch_before_fork() { lock_for_fork(); }
EXPORT void accelrt_torch_after_fork() { unlock_after_fork(); }
EXPORT void accelrt_torch_forked() { forget_parents_threads(); }

// Puts the allocator back that was torch's before; memory of accelrt's that is live stays so until its owners free it.
// Not 0: another allocator is torch's by now.
EXPORT int accelrt_torch_uninstall() {
  CUDAAllocator *expected = &ours;
  if (before == nullptr || allocator.load() == before) return 0;
  if (allocator.load() == &ours && devices.load() > 0) wake_former();
  if (!allocator.compare_exchange_strong(expected, before)) return -1;
  c10::SetAllocator(c10::kCUDA, before, 255);
  if (devices.load() > 0) wake_former();  // torch initialised CUDA in between
  return 0;
}

EXPORT int accelrt_torch_is_gone() { return before != nullptr && allocator.load() == before; }

// torch's page-locked memory from accelrt's cache, once accelrt's object is torch's allocator; and no longer.
EXPORT void accelrt_torch_pin() { install_pinned(late); }
EXPORT void accelrt_torch_unpin() { uninstall_pinned(); }

// Makes the object torch's allocator with known answers (torch_probe.h), in a process that ends after asking for them.
EXPORT void accelrt_torch_probe() {
  probe::fill_history();
  backend_name = "probe";
  devices.store(1);
  late = false;
  allocator.store(&ours);
}
