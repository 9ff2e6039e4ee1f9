// What torch is told of memory's history by accelrt's allocator object, and what the parts of that object share.  Its one
// translation unit, torch_allocator.cpp, includes this.
#ifndef ACCELRT_TORCH_HISTORY_H
#define ACCELRT_TORCH_HISTORY_H
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "torch_table.h"

namespace {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using Pool = std::pair<unsigned long long, unsigned long long>;  // MempoolId_t of every version
using Context = std::shared_ptr<c10::GatheredContext>;
#if TORCH_MINOR >= 11
using c10::CachingDeviceAllocator::AnnotationEntry;
#endif

const TorchTable *accelrt;  // set once, before the object is torch's

std::string first_words(const char *call) {
  return std::string("accelrt, which is torch's allocator here, does not support ") + call;
}

template <class Stat>
void fill_stat(Stat &into, const TorchCounter &counter) {
  into.current = counter.current;
  into.peak = counter.peak;
  into.allocated = counter.allocated;
  into.freed = counter.freed;
}

thread_local Context context;  // of the operation that the thread is in
thread_local std::vector<std::string> compile_contexts;
thread_local std::string user_metadata;

// The latest events, in place once there are as many as wanted.
class Trace {
 public:
  void add(TraceEntry entry, size_t most) {
    if (entries.size() < most) return entries.push_back(std::move(entry));
    entries[oldest] = std::move(entry);
    if (++oldest == entries.size()) oldest = 0;
  }
  void limit_to(size_t most) {  // also where more are wanted, which then follow the latest
    std::rotate(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(oldest), entries.end());
    oldest = 0;
    if (entries.size() > most) entries.erase(entries.begin(), entries.end() - static_cast<std::ptrdiff_t>(most));
  }
  template <class Function>
  void for_each(Function function) const {  // the oldest first
    for (size_t index = oldest; index < entries.size(); ++index) function(entries[index]);
    for (size_t index = 0; index < oldest; ++index) function(entries[index]);
  }

 private:
  std::vector<TraceEntry> entries;
  size_t oldest = 0;
};

struct Recorder {
  std::mutex lock;  // the last in the order of locks: watch is called under locks of accelrt's
  bool records = false;
  std::atomic<RecordContext> when{RecordContext::NEVER};
  std::atomic<CreateContextFn> gather{nullptr};
  size_t most = 1;
  uint64_t skipped = 0;
  std::map<int, Trace> traces;
  std::unordered_map<uint64_t, Context> live;  // by key_of
  std::map<uint64_t, std::pair<uint64_t, Context>> segments;  // parts of segments by key_of, with their sizes
  std::vector<AnnotationEntry> annotations;
  std::vector<AllocatorTraceTracker> trackers;
  std::vector<OutOfMemoryObserver> observers;
};
uint64_t key_of(int device, uint64_t address) { return address ^ static_cast<uint64_t>(device) << 58; }
Recorder &recorder = *new Recorder;  // used until the process ends

// Under recorder.lock: memory became part of a segment, by an operation with frames, or left it.
void keep_segment(uint64_t key, uint64_t size, bool comes) {
  auto &parts = recorder.segments;
  auto part = parts.upper_bound(key);
  if (part != parts.begin()) --part;
  while (part != parts.end() && part->first < key + size) {
    uint64_t end = part->first + part->second.first;
    if (end <= key) {
      ++part;
      continue;
    }
    if (end > key + size) parts[key + size] = {end - key - size, part->second.second};
    part->second.first = key - std::min(key, part->first);
    part = part->second.first == 0 ? parts.erase(part) : std::next(part);
  }
  if (comes && context) parts[key] = {size, context};
}

// The frames of an operation, taken before any lock.
struct Gathered {
  explicit Gathered(RecordContext level) {
    CreateContextFn gather = recorder.gather.load();
    if (gather != nullptr && recorder.when.load() >= level) context = gather();
  }
  ~Gathered() { context.reset(); }
};

TraceEntry entry_of(TraceEntry::Action action, int device, uint64_t address, uint64_t size, void *stream, Pool pool,
                    Context frames, uint32_t tag = 0) {
#if TORCH_MINOR >= 11
  void *place = stream;
#else
  cudaStream_t place = reinterpret_cast<cudaStream_t>(stream);
#endif
  return TraceEntry(action, static_cast<DeviceIndex>(device), address, size, place, pool, c10::getApproximateTime(),
                    std::move(frames),
#if TORCH_MINOR >= 10
                    compile_contexts.empty() ? "" : compile_contexts.back(),
                    user_metadata.empty() && tag != 0 ? "accelrt tag " + std::to_string(tag) : user_metadata
#else
                    compile_contexts.empty() && tag != 0 ? "accelrt tag " + std::to_string(tag)
                    : compile_contexts.empty()           ? ""
                                                         : compile_contexts.back()
#endif
  );
}

// Trackers of torch's are called under locks of the pool's.  A thread in one asks nothing of the pool; what it frees goes back
// when it is out of it, and what it raises goes no further.
std::atomic<bool> is_tracked{false};  // whether there are any
thread_local bool in_tracker = false;
thread_local std::vector<void *> freed_in_tracker;

void refuse_in_tracker() {
  TORCH_CHECK(!is_tracked.load() || !in_tracker, "accelrt, which is torch's allocator here, was called by a tracker of its own "
              "events: those are told under its locks, so a tracker can note what happened and do the rest later");
}

void tell_tracker(const AllocatorTraceTracker &tracker, const TraceEntry &entry) {
  in_tracker = true;
  try {
    tracker(entry);
  } catch (const std::exception &error) {
    fprintf(stderr, "accelrt: a tracker of torch's events raised an exception: %s\n", error.what());
  } catch (...) {
    fprintf(stderr, "accelrt: a tracker of torch's events raised an exception\n");
  }
  in_tracker = false;
}

// Under recorder.lock.
void keep(TraceEntry entry) {
  for (auto &tracker : recorder.trackers) tell_tracker(tracker, entry);
  if (!recorder.records || recorder.skipped >> entry.action_ & 1) return;
  Trace &trace = recorder.traces[entry.device_];
  trace.add(std::move(entry), recorder.most);
}

// accelrt's actions (history_types.pxd) that torch has too, by number.
const TraceEntry::Action ACTIONS[] = {TraceEntry::ALLOC,        TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED,
                                      TraceEntry::SEGMENT_ALLOC, TraceEntry::SEGMENT_FREE,   TraceEntry::SEGMENT_MAP,
                                      TraceEntry::SEGMENT_UNMAP};

void watch(const TorchEvent *event) {
  if (event->action < 0 || event->action >= static_cast<int>(sizeof(ACTIONS) / sizeof(ACTIONS[0]))) return;
  TraceEntry::Action action = ACTIONS[event->action];
  RecordContext when = recorder.when.load();
  bool frees = action == TraceEntry::FREE_REQUESTED || action == TraceEntry::FREE_COMPLETED;
  uint64_t key = key_of(event->device, event->address);
  std::lock_guard<std::mutex> guard(recorder.lock);
  Context frames = context;
  if (action == TraceEntry::ALLOC) {
    if (context && when >= RecordContext::STATE) recorder.live[key] = context;
  } else if (frees) {  // below ALL those of the allocation
    auto found = recorder.live.find(key);
    if (when < RecordContext::ALL) frames = found == recorder.live.end() ? nullptr : found->second;
    if (action == TraceEntry::FREE_COMPLETED && found != recorder.live.end()) recorder.live.erase(found);
  } else {
    bool comes = action == TraceEntry::SEGMENT_ALLOC || action == TraceEntry::SEGMENT_MAP;
    keep_segment(key, event->size, comes && when >= RecordContext::ALLOC);
  }
  keep(entry_of(action, event->device, event->address, event->size, reinterpret_cast<void *>(event->stream),
                {event->pool[0], event->pool[1]}, when >= RecordContext::ALLOC ? frames : nullptr, event->tag));
}

struct Blocks {
  explicit Blocks(int device) {
    refuse_in_tracker();
    TORCH_CHECK(accelrt->blocks(device, &blocks, &count) == 0, "the host has no memory for a snapshot");
  }
  ~Blocks() { accelrt->release_blocks(blocks); }
  TorchBlock *blocks = nullptr;
  size_t count = 0;
};

size_t active_bytes(const SnapshotInfo &snapshot, int device) {
  size_t bytes = 0;
  for (const auto &segment : snapshot.segments)
    if (segment.device == device) bytes += segment.active_size;
  return bytes;
}

// Under recorder.lock.
void add_block(SegmentInfo &segment, const TorchBlock &block, int device) {
  BlockInfo info;
  info.size = block.size;
  info.requested_size = block.requested;
  info.allocated = block.state == TORCH_LIVE;
  info.active = block.state != 0;
  if (info.active) {
    auto found = recorder.live.find(key_of(device, block.address));
    if (found != recorder.live.end()) info.context_when_allocated = found->second;
  }
  segment.total_size += block.size;
  if (info.allocated) segment.allocated_size += block.size;
  if (info.active) {
    segment.active_size += block.size;
    segment.requested_size += block.requested;
  }
  segment.blocks.push_back(std::move(info));
}

void add_segments(SnapshotInfo &answer, int device, Pool pool) {
  Blocks blocks(device);
  std::lock_guard<std::mutex> guard(recorder.lock);
  std::vector<std::pair<int, size_t>> order;  // the serials, and which segments of the answer have them
  bool wanted = false;
  for (size_t index = 0; index < blocks.count; ++index) {
    const TorchBlock &block = blocks.blocks[index];
    if (block.opens) {
      wanted = pool == Pool(0, 0) || pool == Pool(block.pool[0], block.pool[1]);
      if (wanted) {
        SegmentInfo segment;
        segment.device = static_cast<DeviceIndex>(device);
        segment.address = block.address;
        segment.stream = reinterpret_cast<decltype(segment.stream)>(block.stream);
        segment.is_large = block.large;
        segment.is_expandable = block.expandable;
        segment.owner_private_pool_id = {block.pool[0], block.pool[1]};
        auto part = recorder.segments.find(key_of(device, block.address));
        if (part != recorder.segments.end()) segment.context_when_allocated = part->second.second;
        order.emplace_back(block.opens, answer.segments.size());
        answer.segments.push_back(std::move(segment));
      }
    }
    if (wanted) add_block(answer.segments.back(), block, device);
  }
#if TORCH_MINOR >= 11
  // NCCL's collective registration takes segments in this order, which has to be the same in every rank.
  std::sort(order.begin(), order.end());
  for (size_t rank = 0; rank < order.size(); ++rank)
    answer.segments[order[rank].second].registration_counter = static_cast<int32_t>(rank);
#endif
}

// Whether anybody is told of events; under recorder.lock the answer is the present one.
bool is_watched() { return recorder.records || !recorder.trackers.empty(); }

void follow() {
  bool wanted;
  {
    std::lock_guard<std::mutex> guard(recorder.lock);
    wanted = is_watched() || recorder.when.load() >= RecordContext::STATE;
  }
  TORCH_CHECK(accelrt->watch(wanted ? watch : nullptr) == 0, "accelrt has no memory for its history");
}

}  // namespace
#endif
