# The host driver's captures and graphs.
from accelrt.core.handle_map cimport AddressMap
from accelrt.driver.table cimport Table

cdef void fill_graphs(Table* table) noexcept nogil
cdef AddressMap graphs  # handle -> Graph*; under the queue's lock, as the next one
cdef AddressMap execs   # handle -> Exec*
cdef size_t foreign_ends  # how often a capture was to go on after what is no node of it
cdef size_t own_children  # how often a graph was to be a child of itself, or of one within it
