// Forks: a child goes on with maps that are whole and locks that are free, whatever other threads did at the fork.
#ifndef ACCELRT_TORCH_FORK_H
#define ACCELRT_TORCH_FORK_H
#include <new>

#include "torch_former.h"
#include "torch_pinned.h"

namespace {

// What a child reads on is locked across the fork, before the pool's locks are; what stands after those in the order of
// locks (recorder.lock), or is held through calls into torch, is new in the child, and so is what it guards.
thread_local bool holds_for_fork = false;

void lock_for_fork() {
  pools_lock.lock();
  host_lock.lock();
  holds_for_fork = true;
}

void unlock_after_fork() {
  if (!holds_for_fork) return;  // an interruption came before
  holds_for_fork = false;
  host_lock.unlock();
  pools_lock.unlock();
}

void forget_parents_threads() {
  unlock_after_fork();
  begins.store(0);
  leaving.store(false);
  new (&turn_to_wake) std::mutex;
  new (&recorder.lock) std::mutex;
  new (&recorder.traces) decltype(recorder.traces);
  new (&recorder.live) decltype(recorder.live);
  new (&recorder.segments) decltype(recorder.segments);
  new (&recorder.annotations) decltype(recorder.annotations);
  is_childs = is_childs || devices.load() > 0;
  if (!is_childs) host_process = getpid();  // nothing is the parent's: the child uses CUDA itself
#if TORCH_MINOR >= 14
  new (&pinned.history_lock) std::mutex;
  new (&pinned.trace) decltype(pinned.trace);
  new (&pinned.seen) decltype(pinned.seen);
#endif
}

}  // namespace
#endif
