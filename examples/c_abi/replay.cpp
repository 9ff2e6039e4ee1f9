// A graph that is captured once and launched many times: each launch takes a new input through the device.
//
// Streams, memory and the graph are owners: whichever way a function is left, they go back.
#include <accelrt.hpp>

#include <cstdint>
#include <cstring>
#include <vector>

static std::uint64_t replayed(int device, int rounds, std::size_t size) {
    accelrt::stream work(device);
    accelrt::buffer memory(size, work);
    accelrt::pinned_buffer input(size), output(size);

    accelrt::graph graph(work, [&] { // nothing in here runs yet
        accelrt::buffer between(size, work); // of the graph's own pool: its address stays for every launch
        accelrt::copy(between.address(), input.address(), size, work);
        accelrt::copy(memory.address(), between.address(), size, work);
        accelrt::fill(memory.address(), 1, size / 2, work);
        accelrt::copy(output.address(), memory.address(), size, work);
    });

    std::uint64_t sum = 0;
    for (int round = 0; round < rounds; round++) {
        std::memset(input.data(), round, size);
        graph.launch(work);
        work.synchronize();
        const unsigned char *bytes = static_cast<const unsigned char *>(output.data());
        for (std::size_t index = 0; index < size; index++)
            sum += bytes[index];
    }
    return sum;
}

// What Python calls: exceptions do not cross C's border, so they become a status code and a text.
extern "C" int replay(int device, int rounds, std::size_t size, std::uint64_t *out_sum, char *out_text, std::size_t room) {
    try {
        accelrt::import_accelrt();
        *out_sum = replayed(device, rounds, size);
        return ACCELRT_SUCCESS;
    } catch (const accelrt::error &error) {
        std::strncpy(out_text, error.what(), room - 1);
        return error.code();
    }
}
