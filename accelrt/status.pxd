# Status codes: what every row of the driver table and every nogil function of accelrt returns.
# Non-negative ones have the numbers of CUresult; negative ones are accelrt's own.

cdef enum:
    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    DEINITIALIZED = 4
    NO_DEVICE = 100
    INVALID_DEVICE = 101
    INVALID_IMAGE = 200
    INVALID_CONTEXT = 201
    PEER_ACCESS_ENABLED = 704
    PEER_ACCESS_UNSUPPORTED = 217
    OPERATING_SYSTEM = 304
    INVALID_HANDLE = 400
    ILLEGAL_STATE = 401
    NOT_FOUND = 500
    NOT_READY = 600
    ILLEGAL_ADDRESS = 700
    LAUNCH_OUT_OF_RESOURCES = 701
    LAUNCH_TIMEOUT = 702
    ASSERT = 710
    HOST_MEMORY_REGISTERED = 712
    HOST_MEMORY_NOT_REGISTERED = 713
    HARDWARE_STACK_ERROR = 714
    ILLEGAL_INSTRUCTION = 715
    MISALIGNED_ADDRESS = 716
    INVALID_ADDRESS_SPACE = 717
    INVALID_PC = 718
    LAUNCH_FAILED = 719
    COOPERATIVE_LAUNCH_TOO_LARGE = 720
    NOT_PERMITTED = 800
    NOT_SUPPORTED = 801
    CAPTURE_UNSUPPORTED = 900
    CAPTURE_INVALID = 901
    CAPTURE_MERGE = 902
    CAPTURE_UNMATCHED = 903
    CAPTURE_UNJOINED = 904
    CAPTURE_ISOLATION = 905
    CAPTURE_IMPLICIT = 906
    CAPTURED_EVENT = 907
    CAPTURE_WRONG_THREAD = 908
    GRAPH_UPDATE_FAILURE = 910
    INVALID_CLUSTER_SIZE = 912
    UNKNOWN = 999

    INIT_FAILED = -1    # the first use failed; the exception that says why is kept, and raised for this code
    FORKED = -2         # this process was forked from one that had initialised
    CAP_REACHED = -3    # the device has room, the allocator's own limit does not
    NOT_ALLOCATED = -4  # an address given back that accelrt did not hand out, or had back already
    NO_HOST_MEMORY = -5  # the host has no memory for a record of accelrt's
    BROKEN = -6         # a debug audit found an identity of the allocator violated
    NO_CAPTURE_MEMORY = -7  # an allocation on a capturing stream, from a backend without private pools
    NO_STREAM_POOL = -8     # the device has no stream-ordered pool for the backend that was chosen
    POOL_CAP_REACHED = -9   # a MemPool's own limit is reached
    SLEEPING = -10          # memory of a pool that sleeps, whose pages the device has back

cdef const char* status_name(int code) noexcept nogil  # "INVALID_VALUE"; "UNKNOWN" for a number not listed
cdef const char* status_text(int code) noexcept nogil  # a sentence
# Raises what a code other than SUCCESS stands for; call names the row, arguments are (name, value, ...), and meaning
# is what the code means there and what to do, where the caller knows more than the code says.
cdef int raise_status(int code, str call, tuple arguments=*, str meaning=*) except -1
# Keeps the exception that INIT_FAILED stands for.
cdef void keep_init_error(object error) noexcept
# For classes of objects that own something.
cdef int refuse_copy(object instance, str why) except -1  # TypeError: it cannot be pickled or copied
cdef int refuse_unmade(object instance) except -1         # RuntimeError: its __init__ was never called
