// Memory of torch's between processes: handles of accelrt's, beside those of the allocator that torch had before.
#ifndef ACCELRT_TORCH_SHARING_H
#define ACCELRT_TORCH_SHARING_H
#include "torch_history.h"

namespace {

// torch's own handles begin with the number of a version.
bool is_our_handle(const std::string &handle) { return handle.rfind("accelrt:", 0) == 0; }

ShareableHandle share_block(void *address) {
  uintptr_t number = reinterpret_cast<uintptr_t>(address);
  int device = accelrt->device_at(number);
  char handle[TORCH_HANDLE], text[TORCH_TEXT];
  size_t length = 0, offset = 0;
  TORCH_CHECK(device >= 0, "accelrt, which is torch's allocator here, did not hand out ", address,
              ", so it cannot be shared with other processes");
  TORCH_CHECK(accelrt->share(device, number, handle, &length, &offset, text) == 0, text);
  return {static_cast<ptrdiff_t>(offset), std::string(handle, length)};
}

std::shared_ptr<void> open_block(const std::string &handle, DeviceIndex device) {
  uintptr_t base = 0;
  void *memory = nullptr;
  char text[TORCH_TEXT];
  TORCH_CHECK(accelrt->open_shared(handle.data(), handle.size(), device, &base, &memory, text) == 0, text);
  return {reinterpret_cast<void *>(base), [memory](void *) { accelrt->close_shared(memory); }};
}

}  // namespace
#endif
