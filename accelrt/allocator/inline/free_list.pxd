# A heap's free lists: best fit by (size, order).  Everything here needs the heap's lock, or for a heap
# that is asleep the pool's mutex.
#
# Up to 64 KiB each size has a class; above, a power of two is divided into 32 classes.  Each class is a treap (a search
# tree by (size, order), a heap by weight) whose links are in the blocks; two levels of bit sets tell which classes are
# not empty.  A fit takes a few steps however many blocks there are, and no memory is allocated.
from libc.stdint cimport uint64_t

from accelrt.allocator.types cimport Block, Heap

cdef extern from *:
    int lowest_bit "__builtin_ctzll"(unsigned long long word) noexcept nogil
    int leading_zeros "__builtin_clzll"(unsigned long long word) noexcept nogil

cdef enum:
    EXACT = 128  # classes that hold one size each: 64 KiB / 512
    PAGED = 288  # the class of 2 MiB, the smallest page that there is


cdef inline int class_of(size_t size) noexcept nogil:
    # The class of a size, which is a multiple of 512, above 0 and below 2**60.
    cdef uint64_t units = size >> 9
    cdef int power
    if units <= EXACT:
        return <int>units - 1
    power = 63 - leading_zeros(units)
    return EXACT - (8 << 5) + (power << 5) + <int>(units >> (power - 5))  # the last term is 32 to 63


cdef inline bint precedes(const Block* one, const Block* other) noexcept nogil:
    # The order of the free lists: by size, then by order.
    if one.size != other.size:
        return one.size < other.size
    return one.order < other.order


cdef inline Block* first_of(Block* node) noexcept nogil:
    # The least (size, order) of a tree that is not empty.
    while node.left != NULL:
        node = node.left
    return node


cdef inline Block* fit_within(Block* node, size_t size) noexcept nogil:
    # The least (size, order) of one class whose size suffices, or NULL.
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


cdef inline Block* largest(const Heap* heap) noexcept nogil:
    # The greatest (size, order) in the free lists, or NULL.
    cdef int word = 63 - leading_zeros(heap.summary) if heap.summary else 0
    cdef Block* block = heap.trees[(word << 6) + 63 - leading_zeros(heap.filled[word])] if heap.filled[word] else NULL
    while block != NULL and block.right != NULL:
        block = block.right
    return block


cdef inline Block* best_fit(const Heap* heap, size_t size) noexcept nogil:
    # The least (size, order) in the free lists whose size suffices, or NULL.
    cdef int index = class_of(size)
    cdef Block* best = fit_within(heap.trees[index], size)
    if best != NULL:
        return best
    index = next_class(heap, index)
    return NULL if index < 0 else first_of(heap.trees[index])


cdef inline void insert(Heap* heap, Block* block) noexcept nogil:
    # Inserts a FREE block into the list of its class.
    cdef int index = class_of(block.size)
    heap.page_changes += index >= PAGED
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
    # Inserts into a tree: descends past heavier blocks, then splits the subtree below around the block.
    cdef Block** low = &block.left
    cdef Block** high = &block.right
    cdef Block* rest
    while link[0] != NULL and link[0].weight >= block.weight:
        link = &link[0].left if precedes(block, link[0]) else &link[0].right
    rest = link[0]
    link[0] = block
    while rest != NULL:  # into what precedes the block and what follows it
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
    # Removes a block from the list of its class.
    cdef int index = block.index
    cdef Block** link = &heap.trees[index]
    cdef Block* low = block.left
    cdef Block* high = block.right
    heap.page_changes += index >= PAGED
    while link[0] != block:
        link = &link[0].left if precedes(block, link[0]) else &link[0].right
    while low != NULL and high != NULL:  # merge the two subtrees
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
