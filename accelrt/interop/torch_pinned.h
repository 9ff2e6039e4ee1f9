// torch's allocator of page-locked memory, as an object of torch's own class over accelrt's cache of it.  Its one
// translation unit, torch_allocator.cpp, includes this.  What a capture allocates lies in a pool of its own here, for a
// replay uses the same addresses: it serves that pool alone until every graph of the pool is gone.
#ifndef ACCELRT_TORCH_PINNED_H
#define ACCELRT_TORCH_PINNED_H
#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <unistd.h>

#include <deque>
#include <unordered_map>
#include <vector>

#include "torch_history.h"

namespace {

using HostFilter = std::function<bool(c10::Stream)>;

void free_pinned(void *address);

// The memory of one of torch's pools.
struct HostPool {
  int uses = 0;                              // torch's; 0: its graphs are gone
  std::multimap<size_t, uintptr_t> idle;     // given back, and never used by a captured copy
  std::vector<uintptr_t> spent;              // given back, and used in captures: a replay may use them
  size_t live = 0;
};
struct HostBlock {
  Pool pool;
  size_t size;
  bool used;
};
struct HostRoute {
  Pool pool;
  HostFilter filter;
  cudaStream_t stream;  // that the capture was to begin on
};
// Held for bookkeeping and torch's filters alone.
std::mutex &host_lock = *new std::mutex;
std::map<Pool, HostPool> &host_pools = *new std::map<Pool, HostPool>;
std::unordered_map<uintptr_t, HostBlock> &host_blocks = *new std::unordered_map<uintptr_t, HostBlock>;
std::vector<HostRoute> &host_routes = *new std::vector<HostRoute>;
std::atomic<size_t> host_block_count{0}, host_route_count{0};
pid_t host_process;  // that the memory is of

// A child frees its parent's tensors and graphs, to no effect.
bool is_child() { return getpid() != host_process; }

template <class Stat>
void fill_host_time(Stat &into, const TorchTiming &timing) {
  into.total = timing.total;
  into.max = timing.largest;
  into.min = timing.least;
  into.count = timing.count;
}

struct PinnedAllocator final : at::HostAllocator {
  at::HostAllocator *before = nullptr;  // torch's former one, whose memory may be about
  std::atomic<bool> serves{false};      // false after uninstall(), when this only hears of its memory that is left
  std::atomic<size_t> live{0};          // blocks of accelrt's that torch holds

  // The device whose driver the memory is asked of: one that has a context, so that none is made for it.
  static int device_for_driver() {
    DeviceIndex current = c10::cuda::current_device();
    if (c10::cuda::hasPrimaryContext(current)) return current;
    return c10::cuda::getDeviceIndexWithPrimaryContext().value_or(current);
  }

  // Whether a capture's pool takes what the calling thread allocates.  torch says nothing of the end of a capture that
  // failed, and its filter points into the graph, so it is asked of streams that capture alone.
  static bool is_routed(Pool *out_pool) {
    if (host_route_count.load() == 0) return false;
    c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream();
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(current.stream(), &status) != cudaSuccess) {  // the legacy default stream, beside a capture
      cudaGetLastError();
      return false;
    }
    if (status != cudaStreamCaptureStatusActive) return false;
    c10::Stream stream = current.unwrap();
    std::lock_guard<std::mutex> guard(host_lock);
    for (const auto &route : host_routes)
      if (route.filter(stream)) {
        *out_pool = route.pool;
        return true;
      }
    return false;
  }

  uintptr_t take_idle(Pool pool, size_t size) {
    std::lock_guard<std::mutex> guard(host_lock);
    HostPool &home = host_pools[pool];
    auto idle = home.idle.lower_bound(size);
    if (idle == home.idle.end() || idle->first > 2 * size + 4096) return 0;
    uintptr_t address = idle->second;
    home.idle.erase(idle);
    ++home.live;
    return address;
  }

  at::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, nullptr, &free_pinned, at::DeviceType::CPU};
    ++live;  // before it looks, so that uninstall_pinned() sees it where it saw that accelrt serves
    if (!serves.load() && before != nullptr) {
      --live;
      return before->allocate(size);
    }
    try {
      void *memory = take(size);
      return {memory, memory, &free_pinned, at::DeviceType::CPU};
    } catch (...) {
      --live;
      throw;
    }
  }

  void *take(size_t size) {
    Pool pool{0, 0};
    bool routed = is_routed(&pool);
    uintptr_t address = routed ? take_idle(pool, size) : 0;
    Gathered gathered(RecordContext::STATE);
    if (address == 0) {
      char text[TORCH_TEXT];
      TORCH_CHECK(accelrt->pinned_hit(size, &address) == 0 ||
                      accelrt->pinned_alloc(device_for_driver(), size, &address, text) == 0,
                  text);
      if (routed) {
        std::lock_guard<std::mutex> guard(host_lock);
        host_blocks[address] = {pool, size, false};
        host_block_count.store(host_blocks.size());
        ++host_pools[pool].live;
      }
    }
    note(TraceEntry::ALLOC, address, size, pool);
    return reinterpret_cast<void *>(address);
  }

  void give(void *memory) {
    uintptr_t address = reinterpret_cast<uintptr_t>(memory);
    Pool pool{0, 0};
    Gathered gathered(RecordContext::ALL);
    --live;
    if (host_block_count.load() != 0) {
      if (is_child()) return;
      std::unique_lock<std::mutex> guard(host_lock);
      auto block = host_blocks.find(address);
      if (block != host_blocks.end()) {
        pool = block->second.pool;
        HostPool &home = host_pools[pool];
        size_t size = block->second.size;
        --home.live;
        if (block->second.used)
          home.spent.push_back(address);
        else
          home.idle.emplace(size, address);
        guard.unlock();
        return note(TraceEntry::FREE_COMPLETED, address, size, pool);
      }
    }
    note(TraceEntry::FREE_COMPLETED, address, 0, pool);  // before another thread can have the address
    accelrt->pinned_release(address);
  }

  void copy_data(void *to, const void *from, size_t count) const override { default_copy_data(to, from, count); }

  bool record_event(void *address, void *context, c10::Stream stream) override {
    uintptr_t number = reinterpret_cast<uintptr_t>(address);
    c10::cuda::CUDAStream used(stream);
    if (host_block_count.load() != 0) {
      std::lock_guard<std::mutex> guard(host_lock);
      auto block = host_blocks.find(reinterpret_cast<uintptr_t>(context));
      if (block != host_blocks.end()) return block->second.used = true;
    }
    int code = accelrt->pinned_use(number, used.device_index(), used.stream());
    if (code < 0) return before != nullptr && before->record_event(address, context, stream);
    if (code > 0) C10_CUDA_CHECK(cudaStreamSynchronize(used.stream()));  // it could not be noted
    return true;
  }

  void empty_cache() override {
    reclaim();
    accelrt->pinned_empty();
    if (before != nullptr) before->empty_cache();
  }

  // Gives the memory of pools whose graphs are gone back to the cache, after the devices' work; beside a capture, which
  // that would break, it stays.
  void reclaim() {
    if (is_child()) return;
    std::vector<uintptr_t> gone;
    {
      std::lock_guard<std::mutex> guard(host_lock);
      for (auto each = host_pools.begin(); each != host_pools.end();) {
        HostPool &pool = each->second;
        if (pool.uses == 0) {
          gone.insert(gone.end(), pool.spent.begin(), pool.spent.end());
          for (const auto &idle : pool.idle) gone.push_back(idle.second);
          pool.spent.clear();
          pool.idle.clear();
        }
        each = pool.uses == 0 && pool.live == 0 ? host_pools.erase(each) : std::next(each);
      }
    }
    if (gone.empty()) return;
    int code = 0;
    for (DeviceIndex device = 0; device < c10::cuda::device_count() && code == 0; ++device)
      if (c10::cuda::hasPrimaryContext(device)) code = accelrt->settle(device);
    {
      std::lock_guard<std::mutex> guard(host_lock);
      for (uintptr_t address : gone) {
        auto block = host_blocks.find(address);
        if (code != 0)
          host_pools[block->second.pool].spent.push_back(address);
        else
          host_blocks.erase(block);
      }
      host_block_count.store(host_blocks.size());
    }
    if (code == 0)  // outside the lock, for it may take the GIL
      for (uintptr_t address : gone) accelrt->pinned_release(address);
  }

  at::HostStats get_stats() override {
    if (!serves.load() && before != nullptr) return before->get_stats();
    TorchPinnedStats read;
    at::HostStats stats;
    accelrt->pinned_stats(&read);
#if TORCH_MINOR >= 10
    fill_stat(stats.allocations, read.segments);
    fill_stat(stats.allocated_bytes, read.segment_bytes);
    fill_stat(stats.active_requests, read.blocks);
    fill_stat(stats.active_bytes, read.block_bytes);
#else
    fill_stat(stats.segment, read.segments);
    fill_stat(stats.reserved_bytes, read.segment_bytes);
    fill_stat(stats.allocation, read.blocks);
    fill_stat(stats.allocated_bytes, read.block_bytes);
#endif
    fill_host_time(stats.host_alloc_time, read.take);
    fill_host_time(stats.host_free_time, read.give);
    stats.num_host_alloc = read.take.count;
    stats.num_host_free = read.give.count;
    return stats;
  }
  void reset_accumulated_stats() override {
    if (!serves.load() && before != nullptr) return before->reset_accumulated_stats();
    accelrt->pinned_reset(0);
  }
  void reset_peak_stats() override {
    if (!serves.load() && before != nullptr) return before->reset_peak_stats();
    accelrt->pinned_reset(1);
  }

#if TORCH_MINOR >= 11
  void begin_allocate_to_pool(c10::MempoolId_t pool, HostFilter filter) override {
    if (!serves.load() && before != nullptr) return before->begin_allocate_to_pool(pool, std::move(filter));
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
    std::vector<HostRoute> failed;  // captures into the pool, or on the stream; destroyed outside the lock: they are torch's
    std::lock_guard<std::mutex> guard(host_lock);
    bool counts = true;  // as a use of the pool: a capture that failed is released by nobody
    for (size_t index = host_routes.size(); index-- > 0;) {
      if (host_routes[index].pool != pool && host_routes[index].stream != stream) continue;
      counts = counts && host_routes[index].pool != pool;
      failed.push_back(std::move(host_routes[index]));
      host_routes.erase(host_routes.begin() + static_cast<std::ptrdiff_t>(index));
    }
    if (counts) ++host_pools[pool].uses;
    host_routes.push_back({pool, std::move(filter), stream});
    host_route_count.store(host_routes.size());
  }
  void end_allocate_to_pool(c10::MempoolId_t pool) override {
    HostFilter ended;  // destroyed outside the lock: it is torch's
    {
      std::lock_guard<std::mutex> guard(host_lock);
      for (auto each = host_routes.begin(); each != host_routes.end(); ++each)
        if (each->pool == pool) {
          ended = std::move(each->filter);
          host_routes.erase(each);
          host_route_count.store(host_routes.size());
          return;
        }
    }
    TORCH_CHECK(before != nullptr, "accelrt, torch's allocator of page-locked memory, serves no capture into this pool");
    before->end_allocate_to_pool(pool);
  }
  // A pool may have begun under both allocators; accelrt's part goes last, for a graph of either may be the one that ends.
  void release_pool(c10::MempoolId_t pool) override {
    if (is_child()) return;
    if (shared_pools && before != nullptr) {
      try {
        return before->release_pool(pool);
      } catch (const std::exception &) {  // it has none of that name, or no more use of it
      }
    }
    std::lock_guard<std::mutex> guard(host_lock);
    auto home = host_pools.find(pool);
    if (home != host_pools.end() && home->second.uses > 0) --home->second.uses;
  }
  std::atomic<bool> shared_pools{false};  // torch's former allocator may have pools too
#endif

#if TORCH_MINOR >= 14
  // What is in history: blocks that were allocated while it was recorded.
  std::mutex history_lock;
  std::atomic<bool> records{false};
  size_t most = 1;
  std::deque<TraceEntry> trace;
  std::map<uintptr_t, c10::CachingDeviceAllocator::HostSegmentInfo> seen;

  void note(TraceEntry::Action action, uintptr_t address, size_t size, Pool pool) {
    if (!records.load()) return;
    std::lock_guard<std::mutex> guard(history_lock);
    auto block = seen.find(address);
    if (action == TraceEntry::ALLOC) {
      c10::CachingDeviceAllocator::HostSegmentInfo info;
      info.address = address;
      info.size = size;
      info.allocated = info.active = true;
      info.owner_private_pool_id = pool;
      info.context_when_allocated = context;
      seen[address] = std::move(info);
    } else if (block != seen.end()) {
      size = block->second.size;
      seen.erase(block);
    }
    trace.push_back(entry_of(action, -1, address, size, nullptr, pool, context));
    while (trace.size() > most) trace.pop_front();
  }
  void record_history(bool enabled, CreateContextFn gather, size_t count, RecordContext when, bool clear) override {
    std::lock_guard<std::mutex> guard(history_lock);
    (void)gather, (void)when;  // the device allocator's, which torch tells the same at the same time, serve both
    records.store(enabled);
    most = std::max<size_t>(count, 1);
    if (!enabled || clear) trace.clear();
    if (!enabled) seen.clear();
  }
  bool is_history_enabled() const override { return records.load(); }
  std::vector<c10::CachingDeviceAllocator::HostSegmentInfo> get_segments() override {
    std::vector<c10::CachingDeviceAllocator::HostSegmentInfo> segments;
    std::lock_guard<std::mutex> guard(history_lock);
    for (const auto &each : seen) segments.push_back(each.second);
    return segments;
  }
  std::vector<TraceEntry> get_traces() override {
    c10::ApproximateClockToUnixTimeConverter clock;
    auto to_ns = clock.makeConverter();
    std::lock_guard<std::mutex> guard(history_lock);
    std::vector<TraceEntry> entries(trace.begin(), trace.end());
    for (auto &entry : entries) entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
    return entries;
  }
  void record_external_register(void *address, size_t size) override {
    note(TraceEntry::ALLOC, reinterpret_cast<uintptr_t>(address), size, {0, 0});
  }
  void record_external_unregister(void *address) override {
    note(TraceEntry::FREE_COMPLETED, reinterpret_cast<uintptr_t>(address), 0, {0, 0});
  }
#else
  void note(TraceEntry::Action, uintptr_t, size_t, Pool) {}
#endif
};

PinnedAllocator &pinned = *new PinnedAllocator;  // never destroyed: tensors and torch keep plain pointers to it

void free_pinned(void *address) {
  if (address != nullptr) pinned.give(address);
}

// Makes it torch's, from now on.  late: torch's former one may have pools of graphs.
void install_pinned(bool late) {
  at::HostAllocator *present = at::getHostAllocator(at::kCUDA);
  host_process = getpid();
  if (present != &pinned) pinned.before = present;
#if TORCH_MINOR >= 11
  pinned.shared_pools.store(late);
#endif
  pinned.serves.store(true);
  at::setHostAllocator(at::kCUDA, &pinned, 255);
}

// Gives torch its former one back.  As long as torch holds memory of accelrt's, accelrt's stays in the table and passes
// everything on to the former one, for torch tells only the one in the table which streams use what.
void uninstall_pinned() {
  if (!pinned.serves.exchange(false)) return;
#if TORCH_MINOR >= 11
  pinned.shared_pools.store(true);
#endif
  pinned.reclaim();
  std::lock_guard<std::mutex> guard(host_lock);
  if (pinned.live.load() == 0 && host_pools.empty() && at::getHostAllocator(at::kCUDA) == &pinned && pinned.before != nullptr)
    at::setHostAllocator(at::kCUDA, pinned.before, 255);
}

}  // namespace
#endif
