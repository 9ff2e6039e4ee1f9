# The active table: the one owner of which driver this process runs on.
cimport accelrt.core.locks
from accelrt.driver.table cimport Table

cdef extern from *:
    Table* load_table "accelrt_load_pointer" (Table** place) noexcept nogil
    void store_table "accelrt_store_pointer" (Table** place, Table* table) noexcept nogil

cdef Table* in_use  # written by registry.pyx alone; others call active()

cdef void begin_table(Table* table, const char* name) noexcept nogil  # all rows NOT_SUPPORTED
cdef void finish_table(Table* table) noexcept nogil  # counts the rows filled since
cdef Table* table_named(str name) except NULL  # imports the driver's module; opens nothing
cdef void offer(str name, Table* table)  # a driver's module calls it when it is imported
cdef void offer_over(str name, Table* table, Table** wrapped)  # the same of a table that forwards to wrapped[0]


cdef inline Table* active() noexcept nogil:
    # Always callable.  Starts as a table whose rows initialise and call again, becomes the driver's at
    # init, and in a child forked after init a table whose every row answers FORKED.
    return load_table(&in_use)

# NUMA nodes of the host's memory.  They are told apart where the system has several, or devices say that they are near to
# several; to ask is a first use of the driver, but for knows_nodes.
cdef enum:
    MOST_NODES = 64

cdef bint knows_nodes() noexcept nogil  # whether somebody has asked
cdef bint tells_nodes_apart() noexcept nogil
cdef int nearest_node(int device) noexcept nogil  # the device's; -1 where they are not told apart, or it says none
cdef bint has_node(int node) noexcept nogil
