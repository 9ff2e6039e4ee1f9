# A free list: a treap of blocks in (size, order), heaviest on top.  Insertion, removal and best fit cost
# O(log n) expected; the tree lives in the blocks themselves, so that nothing is allocated.
from accelrt.memory.block cimport Block


cdef inline bint precedes(const Block* one, const Block* other) noexcept nogil:
    if one.size != other.size:
        return one.size < other.size
    return one.order < other.order


cdef inline Block* best_fit(Block* node, size_t size) noexcept nogil:
    # The least (size, order) that suffices, or NULL.
    cdef Block* best = NULL
    while node != NULL:
        if node.size >= size:
            best = node
            node = node.left
        else:
            node = node.right
    return best


cdef inline void insert(Block** link, Block* block) noexcept nogil:
    cdef Block* rest
    cdef Block** low = &block.left
    cdef Block** high = &block.right
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


cdef inline void remove(Block** link, Block* block) noexcept nogil:
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
