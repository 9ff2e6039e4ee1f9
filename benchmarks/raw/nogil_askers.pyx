# cython: language_level=3
"""Records and questions through accelrt's Cython API: loops without the GIL, compiled by bench_graph."""
from libc.stdint cimport uintptr_t

from accelrt.api cimport event_query, event_record, import_accelrt, stream_query

import_accelrt()

cdef extern from *:
    """
    static int accelrt_stopped;
    #define is_stopped() __atomic_load_n(&accelrt_stopped, __ATOMIC_RELAXED)
    #define set_stopped(value) __atomic_store_n(&accelrt_stopped, value, __ATOMIC_RELAXED)
    """
    bint is_stopped() noexcept nogil
    void set_stopped(bint value) noexcept nogil


def ask(int device, uintptr_t stream, uintptr_t event):
    """Records an event and asks for it and its stream, until stop(); how often."""
    cdef long rounds = 0
    with nogil:
        while not is_stopped():
            event_record(device, event, stream)
            event_query(device, event)
            stream_query(device, stream)
            rounds += 1
    return rounds


def stop(bint value):
    """Ends the loops of all threads; with False lets them begin."""
    set_stopped(value)
