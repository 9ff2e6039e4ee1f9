// A stand-in for torch: the C++ names that accelrt looks up in torch, and calls of an allocator's hooks as torch makes
// them, with a real std::function, std::pair and exceptions.  Nothing here says how torch behaves.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#define SEEN __attribute__((visibility("default")))

struct CUstream_st;
using Stream = CUstream_st *;
using Pool = std::pair<unsigned long long, unsigned long long>;
using Filter = std::function<bool(Stream)>;

namespace c10 {
struct SourceLocation {
    const char *function, *file;
    uint32_t line;
};
class SEEN Error : public std::exception {
    std::string text;

  public:
    Error(SourceLocation place, std::string said);
    const char *what() const noexcept override { return text.c_str(); }
};
SEEN Error::Error(SourceLocation place, std::string said) : text(std::move(said)) {
    text += std::string(" [") + place.function + "]";
}
class SEEN OutOfMemoryError : public Error {
    using Error::Error;
    virtual void anchor();
};
SEEN void OutOfMemoryError::anchor() {}
namespace detail {
SEEN void torchCheckFail(const char *function, const char *file, uint32_t line, const char *text) {
    throw Error({function, file, line}, text);
}
}  // namespace detail
}  // namespace c10

namespace torch::cuda::CUDAPluggableAllocator {
SEEN void createCustomAllocator(
    std::function<void *(size_t, int, Stream)>, std::function<void(void *, size_t, int, Stream)>) {}
struct SEEN CUDAPluggableAllocator {
    void set_init_fn(std::function<void(int)>);
    void set_reset_fn(std::function<void()>);
    void set_memory_fraction_fn(std::function<void(double, int)>);
    void set_record_stream_fn(std::function<void(void *, Stream)>);
    void set_begin_allocate_to_pool(std::function<void(int, Pool, Filter)>);
    void set_end_allocate_to_pool_fn(std::function<void(int, Pool)>);
    void set_release_pool(std::function<void(int, Pool)>);
};
void CUDAPluggableAllocator::set_init_fn(std::function<void(int)>) {}
void CUDAPluggableAllocator::set_reset_fn(std::function<void()>) {}
void CUDAPluggableAllocator::set_memory_fraction_fn(std::function<void(double, int)>) {}
void CUDAPluggableAllocator::set_record_stream_fn(std::function<void(void *, Stream)>) {}
void CUDAPluggableAllocator::set_begin_allocate_to_pool(std::function<void(int, Pool, Filter)>) {}
void CUDAPluggableAllocator::set_end_allocate_to_pool_fn(std::function<void(int, Pool)>) {}
void CUDAPluggableAllocator::set_release_pool(std::function<void(int, Pool)>) {}
}  // namespace torch::cuda::CUDAPluggableAllocator

namespace at::cuda {
struct CUDAGraph {
    unsigned long long capture = 0;
    Filter create_allocate_filter() const {
        return [this](Stream stream) { return stream != nullptr && capture != 0; };
    }
};
}  // namespace at::cuda

static Filter registerCudaPluggableAllocator(bool thread) {
    auto number = std::this_thread::get_id();
    if (thread) return [=](Stream) { return std::this_thread::get_id() == number; };
    return [](Stream) { return true; };
}

template <class Call> static int told(char *text, Call call) {
    try {
        call();
        return 0;
    } catch (const c10::OutOfMemoryError &error) {
        strncpy(text, error.what(), 1023);
        return 1;
    } catch (const c10::Error &error) {
        strncpy(text, error.what(), 1023);
        return 2;
    }
}

extern "C" {
SEEN int call_alloc(void *hook, size_t size, int device, Stream stream, void **out, char *text) {
    std::function<void *(size_t, int, Stream)> alloc = reinterpret_cast<void *(*)(size_t, int, Stream)>(hook);
    return told(text, [&] { *out = alloc(size, device, stream); });
}
SEEN int call_begin(void *hook, int device, uint64_t first, uint64_t second, int kind, char *text) {
    static at::cuda::CUDAGraph graph;
    std::function<void(int, Pool, Filter)> begin = reinterpret_cast<void (*)(int, Pool, Filter)>(hook);
    Filter filter = kind == 0 ? graph.create_allocate_filter() : registerCudaPluggableAllocator(kind == 1);
    return told(text, [&] { begin(device, Pool(first, second), std::move(filter)); });
}
SEEN void call_pool(void *hook, int device, uint64_t first, uint64_t second) {
    std::function<void(int, Pool)> call = reinterpret_cast<void (*)(int, Pool)>(hook);
    call(device, Pool(first, second));
}
SEEN int call_init(void *hook, int count, char *text) {
    std::function<void(int)> init = reinterpret_cast<void (*)(int)>(hook);
    return told(text, [&] { init(count); });
}
// As torch's first use of CUDA, which other threads wait for, and with the GIL.
SEEN int call_init_once(void (*hook)(int), int count, int milliseconds) {
    static std::once_flag done;
    std::call_once(done, [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
        hook(count);
    });
    return 0;
}
}
