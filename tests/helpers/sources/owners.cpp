// The owners of accelrt.hpp; each function returns 0, or the line of what did not hold.
#include "accelrt.hpp"

#include <stdexcept>
#include <type_traits>

#define REQUIRE(condition) \
    if (!(condition)) \
        return __LINE__

#define EXPORT extern "C" __attribute__((visibility("default")))

static_assert(!std::is_copy_constructible<accelrt::buffer>::value, "an owner is not copied");
static_assert(std::is_nothrow_move_constructible<accelrt::graph>::value, "an owner is moved");

EXPORT int moves(int device) {
    accelrt::stream work(device);
    {
        accelrt::buffer first(1024, work);
        const std::uintptr_t address = first.address();
        accelrt::buffer second(std::move(first));
        REQUIRE(first.address() == 0 && first.size() == 0);
        REQUIRE(second.address() == address && second.size() == 1024);
        REQUIRE(accelrt_memory_allocated(device) == 1024);
        second = accelrt::buffer(2048, work);
        REQUIRE(accelrt_memory_allocated(device) == 2048);
        first = std::move(second);
        first = std::move(first);
        REQUIRE(first.size() == 2048);
        first.reset();
        first.reset(); // of what owns nothing: nothing
        REQUIRE(accelrt_memory_allocated(device) == 0);
    }
    accelrt::pinned_buffer staged(64);
    accelrt::buffer empty(0, work);
    REQUIRE(empty.size() == 0 && staged.data() != nullptr);
    staged.record(work);
    return 0;
}

EXPORT int refusals(int device) {
    accelrt::stream work(device);
    try {
        accelrt::buffer huge(std::size_t(1) << 50, work);
        return __LINE__;
    } catch (const accelrt::out_of_memory &error) {
        REQUIRE(error.code() == ACCELRT_OUT_OF_MEMORY);
        REQUIRE(std::string(error.name()) == "OUT_OF_MEMORY");
        REQUIRE(std::string(error.what()).find("allocate answered OUT_OF_MEMORY (2): ") == 0);
        REQUIRE(std::string(error.what()).find("out of memory. Tried to allocate ") != std::string::npos);
        REQUIRE(std::string(error.what()).find("has a total capacity of") != std::string::npos);
    }
    accelrt::event mark(device);
    REQUIRE(accelrt_event_return(device, mark.handle()) == ACCELRT_SUCCESS);
    try {
        mark.reset(); // which was returned behind its back
        return __LINE__;
    } catch (const accelrt::error &error) {
        REQUIRE(error.code() == ACCELRT_INVALID_HANDLE);
    }
    return 0;
}

EXPORT int orders(int device) {
    accelrt::stream first(device), second(device, -1);
    accelrt::event start(device, true), end(device, true, true);
    accelrt::pinned_buffer out(4096);
    {
        accelrt::buffer memory(4096, first);
        first.record(start);
        accelrt::fill(memory.address(), 7, 4096, first);
        first.record(end);
        second.wait(end);
        second.wait(first);
        accelrt::copy(out.address(), memory.address(), 4096, second);
        memory.record(second);
    }
    second.synchronize();
    end.synchronize();
    REQUIRE(first.query() && second.query() && end.query());
    REQUIRE(end.elapsed_since(start) >= 0);
    for (int index = 0; index < 4096; index++)
        REQUIRE(static_cast<unsigned char *>(out.data())[index] == 7);
    REQUIRE(accelrt::stream_ref::current(device).handle() == 0);
    return 0;
}

EXPORT int broken_captures(int device) {
    accelrt::stream work(device);
    accelrt::buffer memory(512, work);
    for (int round = 0; round < 3; round++) {
        try {
            accelrt::graph graph(work, [&] {
                accelrt::buffer between(512, work);
                accelrt::fill(between.address(), 1, 512, work);
                throw std::runtime_error("of the caller's");
            });
            return __LINE__;
        } catch (const std::runtime_error &error) {
            REQUIRE(std::string(error.what()) == "of the caller's");
        }
        int status = -1;
        std::uint64_t id = 0;
        accelrt::check(accelrt_capture_status(device, work.handle(), &status, &id), "capture_status");
        REQUIRE(status == ACCELRT_CAPTURE_NONE);
    }
    accelrt::graph graph(work, [&] { accelrt::fill(memory.address(), 3, 512, work); });
    accelrt::graph moved(std::move(graph));
    moved.launch(work);
    work.synchronize();
    try {
        graph.launch(work); // it was moved from
        return __LINE__;
    } catch (const accelrt::error &error) {
        REQUIRE(error.code() == ACCELRT_INVALID_HANDLE);
    }
    return 0;
}
