# A heap's free blocks, best fit by (size, order).
#
# Up to 64 KiB every size is a class of its own, above there are 32 classes to a power of two.  Each class is
# a treap, heaviest on top, that lives in the blocks themselves; two levels of bits say which are not empty.
# So a fit is found in a few steps however many blocks there are, and nothing is allocated.
from libc.stdint cimport uint64_t

from accelrt.memory.allocator.types cimport Block, Heap

cdef extern from *:
    int lowest_bit "__builtin_ctzll"(unsigned long long word) noexcept nogil
    int leading_zeros "__builtin_clzll"(unsigned long long word) noexcept nogil

cdef enum:
    EXACT = 128  # classes of one size


cdef inline int class_of(size_t size) noexcept nogil:
    # size is a multiple of 512, above 0 and below 2**60.
    cdef uint64_t units = size >> 9
    cdef int power
    if units <= EXACT:
        return <int>units - 1
    power = 63 - leading_zeros(units)
    return EXACT - (8 << 5) + (power << 5) + <int>(units >> (power - 5))  # the last is 32 to 63


cdef inline bint precedes(const Block* one, const Block* other) noexcept nogil:
    if one.size != other.size:
        return one.size < other.size
    return one.order < other.order


cdef inline Block* first_of(Block* node) noexcept nogil:
    while node.left != NULL:
        node = node.left
    return node


cdef inline Block* fit_within(Block* node, size_t size) noexcept nogil:
    # The least (size, order) of a class that suffices, or NULL.
    cdef Block* best = NULL
    while node != NULL:
        if node.size >= size:
            best = node
            node = node.left
        else:
            node = node.right
    return best


cdef inline int next_class(const Heap* heap, int above) noexcept nogil:
    # The first class after `above` that is not empty, or -1.
    cdef int word = (above + 1) >> 6
    cdef uint64_t bits = heap.filled[word] & (~<uint64_t>0 << ((above + 1) & 63))
    if bits == 0:
        bits = heap.summary & (~<uint64_t>0 << (word + 1))
        if bits == 0:
            return -1
        word = lowest_bit(bits)
        bits = heap.filled[word]
    return (word << 6) + lowest_bit(bits)


cdef inline Block* best_fit(const Heap* heap, size_t size) noexcept nogil:
    # The least (size, order) that suffices, or NULL.
    cdef int index = class_of(size)
    cdef Block* best = fit_within(heap.trees[index], size)
    if best != NULL:
        return best
    index = next_class(heap, index)
    return NULL if index < 0 else first_of(heap.trees[index])


cdef inline void insert(Heap* heap, Block* block) noexcept nogil:
    cdef int index = class_of(block.size)
    block.index = index
    block.left = NULL
    block.right = NULL
    if heap.trees[index] == NULL:
        heap.trees[index] = block
        heap.filled[index >> 6] |= <uint64_t>1 << (index & 63)
        heap.summary |= <uint64_t>1 << (index >> 6)
    else:
        insert_beside(&heap.trees[index], block)


cdef inline void insert_beside(Block** link, Block* block) noexcept nogil:
    cdef Block** low = &block.left
    cdef Block** high = &block.right
    cdef Block* rest
    while link[0] != NULL and link[0].weight >= block.weight:
        link = &link[0].left if precedes(block, link[0]) else &link[0].right
    rest = link[0]
    link[0] = block
    while rest != NULL:  # split what hung here into what precedes the block and what follows it
        if precedes(rest, block):
            low[0] = rest
            low = &rest.right
            rest = rest.right
        else:
            high[0] = rest
            high = &rest.left
            rest = rest.left
    low[0] = NULL
    high[0] = NULL


cdef inline void remove(Heap* heap, Block* block) noexcept nogil:
    cdef int index = block.index
    cdef Block** link = &heap.trees[index]
    cdef Block* low = block.left
    cdef Block* high = block.right
    while link[0] != block:
        link = &link[0].left if precedes(block, link[0]) else &link[0].right
    while low != NULL and high != NULL:  # join the two halves
        if low.weight >= high.weight:
            link[0] = low
            link = &low.right
            low = low.right
        else:
            link[0] = high
            link = &high.left
            high = high.left
    link[0] = low if low != NULL else high
    if heap.trees[index] == NULL:
        heap.filled[index >> 6] &= ~(<uint64_t>1 << (index & 63))
        if heap.filled[index >> 6] == 0:
            heap.summary &= ~(<uint64_t>1 << (index >> 6))
