// torch's private pools over accelrt's: which filters an allocation is asked about, and the allocators of MemPools.
#ifndef ACCELRT_TORCH_POOLS_H
#define ACCELRT_TORCH_POOLS_H
#include <algorithm>
#include <set>

#include "torch_history.h"

namespace {

using Filter = std::function<bool(cudaStream_t)>;

// Where an allocation goes by a filter that is neither a capture's nor the calling thread's: torch's filter is asked.
struct Filtered {
  DeviceIndex device;
  Pool pool;
  Filter filter;
};
std::mutex pools_lock;
std::vector<Filtered> &filtered = *new std::vector<Filtered>;
std::atomic<size_t> filters{0};
std::set<std::pair<int, Pool>> &known = *new std::set<std::pair<int, Pool>>;  // pools that were ever begun here

bool is_known(DeviceIndex device, Pool pool) {
  std::lock_guard<std::mutex> guard(pools_lock);
  return known.count({device, pool}) != 0;
}

bool is_known(Pool pool) {  // on any device
  std::lock_guard<std::mutex> guard(pools_lock);
  return std::any_of(known.begin(), known.end(), [pool](const std::pair<int, Pool> &each) { return each.second == pool; });
}

void note_pool(DeviceIndex device, Pool pool) {
  std::lock_guard<std::mutex> guard(pools_lock);
  known.insert({device, pool});
}

void forget_pool(DeviceIndex device, Pool pool) {
  std::lock_guard<std::mutex> guard(pools_lock);
  known.erase({device, pool});
}

int purpose_of(const Filter &filter) {
  if (!filter) return TORCH_UNKNOWN;
  void *held;
  memcpy(&held, &filter, sizeof(held));
  return accelrt_torch_purpose(filter.target_type().name(), held);
}

// The thread's allocations go to the pool of the latest filter that takes the stream, while this lives.
struct Routed {
  Routed(DeviceIndex device, cudaStream_t stream) : device(device) {
    if (filters.load() == 0) return;
    std::lock_guard<std::mutex> guard(pools_lock);
    for (auto each = filtered.rbegin(); each != filtered.rend() && !entered; ++each)
      if (each->device == device && each->filter(stream)) {
        pool = each->pool;
        entered = accelrt->enter_pool(device, pool.first, pool.second) == 0;
      }
  }
  ~Routed() {
    if (entered) accelrt->leave_pool(device, pool.first, pool.second);
  }
  DeviceIndex device;
  Pool pool{0, 0};
  bool entered = false;
};

// The thread's allocation goes to the pool of torch's default memory, if it has one, while this lives.
struct Homed {
  Homed(DeviceIndex device, cudaStream_t stream, bool routed)
      : device(device), entered(!routed && accelrt->enter_home(device, stream) == 0) {}
  ~Homed() { leave(); }
  bool leave() {
    bool left = entered;
    if (entered) accelrt->leave_home(device);
    entered = false;
    return left;
  }
  DeviceIndex device;
  bool entered;
};

// Allocators of MemPools, which accelrt calls as C functions: one pair of functions each.
constexpr int SOURCES = 16;
struct Origin {
  std::shared_ptr<CUDAAllocator> allocator;
  const TorchSource *source = nullptr;  // made once
  std::atomic<size_t> segments{0};      // that accelrt has of it
};
Origin origins[SOURCES];
thread_local std::string refusal;  // of a MemPool's allocator: the last one of this thread that nobody was told
std::string take_refusal() {
  std::string text = refusal.empty() ? "" : " The last refusal of a MemPool's allocator on this thread: " + refusal;
  refusal.clear();
  return text;
}

template <int number>
struct SourceOf {
  static void *alloc(size_t size, int device, void *stream) {
    try {
      void *address = origins[number].allocator->raw_alloc_with_stream(size, reinterpret_cast<cudaStream_t>(stream));
      if (address != nullptr) ++origins[number].segments;
      return address;
    } catch (const c10::Error &error) {  // accelrt says what it could not serve
      refusal = error.what_without_backtrace();
    } catch (const std::exception &error) {
      refusal = error.what();
    } catch (...) {
      refusal = "an exception of an unknown kind";
    }
    return nullptr;
  }
  static void release(void *address, size_t, int, void *) {
    try {
      origins[number].allocator->raw_delete(address);
    } catch (...) {
    }
    --origins[number].segments;
  }
};
template <int... numbers>
const TorchSource *make_source(int wanted, std::integer_sequence<int, numbers...>) {
  static const std::pair<TorchTake, TorchGive> all[] = {{&SourceOf<numbers>::alloc, &SourceOf<numbers>::release}...};
  return accelrt->make_source(all[wanted].first, all[wanted].second);
}

// Under pools_lock.  is_named: whether a pool that is in use takes from a source.
template <class IsNamed>
const TorchSource *source_of(std::shared_ptr<CUDAAllocator> allocator, IsNamed is_named) {
  for (Origin &origin : origins)
    if (origin.allocator == allocator) return origin.source;
  for (int number = 0; number < SOURCES; ++number) {
    Origin &origin = origins[number];
    if (origin.allocator && (origin.segments.load() != 0 || is_named(origin.source))) continue;
    if (origin.source == nullptr) origin.source = make_source(number, std::make_integer_sequence<int, SOURCES>{});
    TORCH_CHECK(origin.source != nullptr, "the host has no memory for a MemPool's allocator");
    origin.allocator = std::move(allocator);
    return origin.source;
  }
  TORCH_CHECK(false, first_words("more than "), SOURCES, " allocators of MemPools at a time");
}

}  // namespace
#endif
