# The host driver's stream-ordered pools.
from accelrt.driver.table cimport Table

cdef void fill_pools(Table* table) noexcept nogil
cdef void pools_open(int nodes) noexcept nogil  # how many nodes the host's memory has
cdef void settle_pools() noexcept nogil  # gives up what is idle above the thresholds, as a wait does; under the queue's lock
