# What nodes of graphs do, in neutral types, for the rows of the driver table that make, read and change them; and what
# launches and streams are told beside it.
from libc.stdint cimport uint64_t, uintptr_t

ctypedef void (*host_fn)(void* data) noexcept nogil

# What a node of a graph does; which fields count depends on its type, the others are 0.
cdef struct NodeParams:
    int type                # CUgraphNodeType numbers
    uintptr_t function      # of a kernel, as kernel_launch takes the rest
    unsigned int[3] grid
    unsigned int[3] block
    unsigned int shared_bytes
    void** arguments
    uintptr_t dst           # of a copy or a fill
    uintptr_t src
    size_t dst_pitch        # of a copy as copy_3d takes it, or 0: of width bytes; of a fill's rows
    size_t dst_lines
    size_t src_pitch
    size_t src_lines
    size_t width            # bytes of a copy's row, elements of a fill's
    size_t height
    size_t depth
    int sides               # of a copy: SIDES_ flags, or 0: nobody has asked the driver
    unsigned int value      # of a fill
    int element             # bytes, 1, 2 or 4
    host_fn fn              # of a host function
    void* data
    uintptr_t event         # of a record or a wait
    uintptr_t graph         # of a child: copied into the node
    uintptr_t address       # of an allocation, or a free
    size_t size             # bytes of an allocation
    int device              # that the allocation is of
    uint64_t peers          # other devices that have access to it, a bit each
    uint64_t condition      # of a condition: its value,
    int kind                # CONDITION_ numbers (of an allocation ALLOCATE_ numbers),
    unsigned int count      # how many bodies it has, and
    uintptr_t* bodies       # room for them: graphs that the node owns

cdef enum:  # NodeParams.sides; memory that the driver knows may take the place of other such memory
    SIDES_ASKED = 1
    SIDES_SRC = 2  # src is the host's, and nothing that the driver knows
    SIDES_DST = 4  # dst is

# What an edge of a graph carries, as CUgraphEdgeData has it: all 0 for one node that is over before the next begins.
cdef struct EdgeData:
    unsigned char from_port  # PORT_ numbers: when a kernel lets what comes after it begin
    unsigned char to_port    # 0
    unsigned char type       # EDGE_ numbers
    unsigned char[5] reserved

cdef enum:  # EdgeData.type: CUgraphDependencyType
    EDGE_DEFAULT = 0
    EDGE_PROGRAMMATIC = 1  # between kernels; the later one waits itself for the earlier one's memory

cdef enum:  # EdgeData.from_port: CU_GRAPH_KERNEL_NODE_PORT_
    PORT_DEFAULT = 0       # it is over
    PORT_PROGRAMMATIC = 1  # each of its blocks has allowed it, or is over
    PORT_LAUNCH_ORDER = 2  # each of its blocks has begun

cdef enum:  # NodeParams.type: CUgraphNodeType
    NODE_KERNEL = 0
    NODE_COPY = 1
    NODE_FILL = 2
    NODE_HOST = 3
    NODE_CHILD = 4
    NODE_EMPTY = 5
    NODE_WAIT = 6
    NODE_RECORD = 7
    NODE_ALLOCATE = 10
    NODE_FREE = 11
    NODE_CONDITION = 13

cdef enum:  # NodeParams.kind of a condition; conditional_add takes the first two
    CONDITION_IF = 0      # the first body unless the value is 0; else the second, where there is one
    CONDITION_WHILE = 1
    CONDITION_SWITCH = 2  # the body with the value's number, where there is one

cdef enum:  # NodeParams.kind of an allocation
    ALLOCATE_DEVICE = 0
    ALLOCATE_HOST = 1     # page-locked; CUDA 13.0, as
    ALLOCATE_MANAGED = 2

cdef enum:  # graph_instantiate flags
    INSTANTIATE_AUTO_FREE = 1   # a launch first frees what the one before left allocated
    INSTANTIATE_FOR_DEVICE = 4  # kernels may launch it
    INSTANTIATE_PRIORITIES = 8  # nodes keep the priorities that they were captured with

cdef enum:  # kernel_launch_with flags
    LAUNCH_COOPERATIVE = 1   # all blocks run at once
    LAUNCH_PROGRAMMATIC = 2  # may begin before the stream's kernel before it has ended, where that one allows it

cdef enum:  # attributes of streams and of kernel nodes, numbers of CUlaunchAttributeID
    ATTRIBUTE_COOPERATIVE = 2  # of a node, as
    ATTRIBUTE_CLUSTER = 4
    ATTRIBUTE_SYNC_POLICY = 3  # of a stream, as the domains; CUsynchronizationPolicy numbers: how a thread waits for it
    ATTRIBUTE_PRIORITY = 8
    ATTRIBUTE_DOMAIN_MAP = 9   # memory synchronisation domains, from 0, of the logical domains default and remote
    ATTRIBUTE_DOMAIN = 10      # the logical domain: 0 is default, 1 remote
