// Owners for accelrt.h in C++11: streams, events, memory and graphs that go back where they came from, and exceptions.
//
//     accelrt::stream work(0);                       // leased from the pool of device 0
//     accelrt::buffer data(1 << 20, work);           // memory in the order of that stream
//     accelrt::copy(data.address(), host, 1 << 20, work);
//     work.synchronize();                            // all of it goes back at the end of the block
//
// An owner can be moved and not copied, and one that was moved from owns nothing.  Destructors report no failure; call
// reset() where it matters.  Whatever fails throws accelrt::error.  Threads may use different objects at once, and one
// stream or event too; an owner is moved, reset and destroyed by one thread while no other uses it.
#ifndef ACCELRT_HPP
#define ACCELRT_HPP

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "accelrt.h"

namespace accelrt {

// A status code other than SUCCESS, as an exception.
class error : public std::runtime_error {
public:
    error(int code, const char *call)
        : std::runtime_error(std::string(call) + " answered " + accelrt_status_name(code) + " (" +
                             std::to_string(code) + "): " + accelrt_status_text(code)),
          code_(code) {}
    // With an explanation, on lines of its own.
    error(int code, const char *call, const std::string &explanation)
        : std::runtime_error(std::string(error(code, call).what()) + "\n" + explanation), code_(code) {}
    int code() const noexcept { return code_; }
    const char *name() const noexcept { return accelrt_status_name(code_); } // "OUT_OF_MEMORY"

private:
    int code_;
};

// Throws error for any code but SUCCESS; call names what answered it.
inline void check(int code, const char *call) {
    if (code != ACCELRT_SUCCESS)
        throw error(code, call);
}

// A request of memory that was refused.  what() says what holds the memory and what to do, as in Python.
class out_of_memory : public error {
public:
    using error::error;
};

// explain writes the explanation to a buffer of a size, and returns its length.
template <class Explain> [[noreturn]] void throw_out_of_memory(int code, const char *call, Explain explain) {
    std::string text(8192, '\0');
    const std::size_t length = explain(&text[0], text.size());
    text.resize(length < text.size() ? length : text.size() - 1);
    throw out_of_memory(code, call, text);
}

// The same as check for what the calling thread just asked memory of.  Takes the GIL where it was refused.
inline void check_allocated(int code, const char *call) {
    if (code == ACCELRT_OUT_OF_MEMORY || code == ACCELRT_CAP_REACHED || code == ACCELRT_POOL_CAP_REACHED)
        throw_out_of_memory(code, call, accelrt_explain_last_refusal);
    check(code, call);
}

// For a request of that size on that stream, whichever thread made it.
inline void check_allocated(int code, int device, std::size_t size, std::uintptr_t stream) {
    if (code == ACCELRT_OUT_OF_MEMORY)
        throw_out_of_memory(code, "allocate", [=](char *text, std::size_t room) {
            return accelrt_explain_refusal(device, size, stream, text, room);
        });
    check(code, "allocate");
}

// Imports accelrt and compares versions; best called when a library is loaded.
inline void import_accelrt() { check(accelrt_import(), "accelrt_import"); }

// False for NOT_READY; throws for other failures.
inline bool is_done(int code, const char *call) {
    if (code == ACCELRT_NOT_READY)
        return false;
    check(code, call);
    return true;
}

// A handle that Release takes back.  0 is none.
template <int (*Release)(int, std::uintptr_t)> class owner {
public:
    owner(int device, std::uintptr_t handle) noexcept : device_(device), handle_(handle) {}
    owner(owner &&other) noexcept : device_(other.device_), handle_(other.forget()) {}
    owner &operator=(owner &&other) noexcept {
        if (this != &other) {
            drop();
            device_ = other.device_;
            handle_ = other.forget();
        }
        return *this;
    }
    owner(const owner &) = delete;
    owner &operator=(const owner &) = delete;
    ~owner() { drop(); }

    int device() const noexcept { return device_; }
    std::uintptr_t handle() const noexcept { return handle_; }
    std::uintptr_t forget() noexcept { // gives the handle up to the caller
        std::uintptr_t handle = handle_;
        handle_ = 0;
        return handle;
    }
    void reset() { check(drop(), "reset"); }

private:
    int drop() noexcept {
        std::uintptr_t handle = forget();
        return handle ? Release(device_, handle) : int(ACCELRT_SUCCESS);
    }
    int device_;
    std::uintptr_t handle_;
};

// An event of the pool.  timing: elapsed_since takes it; blocking: synchronize() sleeps and does not spin.
class event : public owner<accelrt_event_return> {
public:
    explicit event(int device, bool timing = false, bool blocking = false)
        : owner(device, lease(device, timing, blocking)) {}
    bool query() const { return is_done(accelrt_event_query(device(), handle()), "event_query"); }
    void synchronize() const { check(accelrt_event_synchronize(device(), handle()), "event_synchronize"); }
    float elapsed_since(const event &start) const { // milliseconds
        float milliseconds = 0;
        check(accelrt_event_elapsed(start.handle(), handle(), &milliseconds), "event_elapsed");
        return milliseconds;
    }

private:
    static std::uintptr_t lease(int device, bool timing, bool blocking) {
        std::uintptr_t handle = 0;
        check(accelrt_event_lease(device, timing, blocking, &handle), "event_lease");
        return handle;
    }
};

// A stream of anyone's, which has to live as long as this is used.  Handle 0 is the device's legacy default stream.
class stream_ref {
public:
    stream_ref(int device, std::uintptr_t handle) noexcept : device_(device), handle_(handle) {}
    // The calling thread's current stream, as set in Python.
    static stream_ref current(int device) {
        std::uintptr_t handle = 0;
        check(accelrt_current_stream(device, &handle), "current_stream");
        return stream_ref(device, handle);
    }
    int device() const noexcept { return device_; }
    std::uintptr_t handle() const noexcept { return handle_; }
    bool query() const { return is_done(accelrt_stream_query(device_, handle_), "stream_query"); }
    void synchronize() const { check(accelrt_stream_synchronize(device_, handle_), "stream_synchronize"); }
    void record(const event &mark) const {
        check(accelrt_event_record(device_, mark.handle(), handle_), "event_record");
    }
    void wait(const event &mark) const {
        check(accelrt_stream_wait_event(device_, handle_, mark.handle()), "stream_wait_event");
    }
    void wait(stream_ref other) const {
        check(accelrt_stream_wait_stream(device_, handle_, other.device_, other.handle_), "stream_wait_stream");
    }

private:
    int device_;
    std::uintptr_t handle_;
};

// A stream of the pool, non-blocking; a lower priority is more urgent.  Its work may go on when it is returned.
class stream : public owner<accelrt_stream_return> {
public:
    explicit stream(int device, int priority = 0) : owner(device, lease(device, priority)) {}
    operator stream_ref() const noexcept { return stream_ref(device(), handle()); }
    stream_ref ref() const noexcept { return *this; }
    bool query() const { return ref().query(); }
    void synchronize() const { ref().synchronize(); }
    void record(const event &mark) const { ref().record(mark); }
    void wait(const event &mark) const { ref().wait(mark); }
    void wait(stream_ref other) const { ref().wait(other); }

private:
    static std::uintptr_t lease(int device, int priority) {
        std::uintptr_t handle = 0;
        check(accelrt_stream_lease(device, priority, &handle), "stream_lease");
        return handle;
    }
};

// Device memory, in the order of a stream; record() other streams that use it before it goes back.
class buffer : public owner<accelrt_release> {
public:
    buffer(std::size_t size, stream_ref order) : owner(order.device(), allocate(size, order)), size_(size) {}
    std::uintptr_t address() const noexcept { return handle(); }
    std::size_t size() const noexcept { return handle() ? size_ : 0; }
    void record(stream_ref user) const {
        check(accelrt_record_stream(device(), address(), user.handle()), "record_stream");
    }

private:
    static std::uintptr_t allocate(std::size_t size, stream_ref order) {
        std::uintptr_t address = 0;
        check_allocated(accelrt_allocate(order.device(), size, order.handle(), &address), "allocate");
        return address;
    }
    std::size_t size_;
};

inline int release_pinned(int, std::uintptr_t address) { return accelrt_release_pinned(address); }

// Page-locked host memory; record() the streams whose work uses it before it goes back.
class pinned_buffer : public owner<release_pinned> {
public:
    explicit pinned_buffer(std::size_t size) : owner(0, allocate(size)), size_(size) {}
    void *data() const noexcept { return reinterpret_cast<void *>(handle()); }
    std::uintptr_t address() const noexcept { return handle(); }
    std::size_t size() const noexcept { return handle() ? size_ : 0; }
    void record(stream_ref user) const {
        check(accelrt_record_pinned_stream(user.device(), address(), user.handle()), "record_pinned_stream");
    }

private:
    static std::uintptr_t allocate(std::size_t size) {
        std::uintptr_t address = 0;
        check_allocated(accelrt_allocate_pinned(size, &address), "allocate_pinned");
        return address;
    }
    std::size_t size_;
};

// Between any two of device and host memory.
inline void copy(std::uintptr_t dst, std::uintptr_t src, std::size_t size, stream_ref order) {
    check(accelrt_copy(order.device(), order.handle(), dst, src, size), "copy");
}

// Bytes.
inline void fill(std::uintptr_t dst, unsigned char value, std::size_t size, stream_ref order) {
    check(accelrt_fill(order.device(), order.handle(), dst, value, 1, size), "fill");
}

inline int destroy_graph(int, std::uintptr_t graph) { return accelrt_graph_destroy(graph); }

// What a function puts into a stream, to be launched any number of times.  What it uses has to outlive the graph.
class graph : public owner<destroy_graph> {
public:
    template <class Function>
    graph(stream_ref order, Function &&work, int mode = ACCELRT_CAPTURE_THREAD_LOCAL)
        : owner(order.device(), begin(order, mode)) { // what throws from here on destroys the graph and its capture
        std::forward<Function>(work)();
        check(accelrt_capture_end(handle()), "capture_end");
        check(accelrt_graph_instantiate(handle()), "graph_instantiate");
    }
    void launch(stream_ref order) const { check(accelrt_graph_launch(handle(), order.handle()), "graph_launch"); }

private:
    static std::uintptr_t begin(stream_ref order, int mode) {
        std::uintptr_t handle = 0;
        check(accelrt_capture_begin(order.device(), order.handle(), mode, 0, 0, &handle), "capture_begin");
        return handle;
    }
};

} // namespace accelrt

#endif
