# The numbers that rows of the driver table take and answer; table.pxd hands them on.

cdef enum:  # stream_create flags
    STREAM_BLOCKING = 0
    STREAM_NON_BLOCKING = 1

cdef enum:  # event_create flags
    EVENT_DEFAULT = 0
    EVENT_BLOCKING_SYNC = 1
    EVENT_DISABLE_TIMING = 2
    EVENT_INTERPROCESS = 4

cdef enum:  # capture_begin and capture_mode_exchange modes
    CAPTURE_GLOBAL = 0
    CAPTURE_THREAD_LOCAL = 1
    CAPTURE_RELAXED = 2

cdef enum:  # capture_status answers
    CAPTURE_NONE = 0
    CAPTURE_ACTIVE = 1
    CAPTURE_INVALIDATED = 2

cdef enum:  # conditional_add kinds
    CONDITION_IF = 0
    CONDITION_WHILE = 1
