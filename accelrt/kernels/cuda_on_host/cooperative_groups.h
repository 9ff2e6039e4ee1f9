// The groups of CUDA's cooperative_groups.h that lie within a block: the block, tiles of a warp, and lanes that are together.
#pragma once
#ifdef accelrt_scan

accelrt_sync  // threads may wait for each other

#else

namespace cooperative_groups {

struct thread_block {
    static void sync() { __syncthreads(); }
    static unsigned int thread_rank() { return accelrt_host::running->linear; }
    static unsigned int size() { return blockDim.x * blockDim.y * blockDim.z; }
    static unsigned int num_threads() { return size(); }
    static dim3 group_index() { return blockIdx; }
    static dim3 thread_index() { return threadIdx; }
    static dim3 group_dim() { return blockDim; }
    static dim3 dim_threads() { return blockDim; }
};
accelrt_inline thread_block this_thread_block() { return thread_block(); }

// All blocks: they can be told apart, but those of the host device don't wait for each other.
struct grid_group {
    static bool is_valid() { return gridDim.x * gridDim.y * gridDim.z == 1; }
    static unsigned long long block_rank() { return blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y * blockIdx.z); }
    static unsigned long long num_blocks() { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
    static unsigned long long thread_rank() { return block_rank() * thread_block::size() + thread_block::thread_rank(); }
    static unsigned long long size() { return num_blocks() * thread_block::size(); }
    static unsigned long long num_threads() { return size(); }
    static dim3 group_dim() { return gridDim; }
    static dim3 dim_blocks() { return gridDim; }
    static dim3 block_index() { return blockIdx; }
    static void sync() {
        if (!is_valid())
            accelrt_host::fail_because("grid.sync() of several blocks, which do not wait for each other on the host device");
        __syncthreads();
    }
};
accelrt_inline grid_group this_grid() { return grid_group(); }

// Lanes of a warp that a mask names; width: of a tile, or 32.
struct accelrt_lanes {
    unsigned int mask, width;
    unsigned int lane() const { return accelrt_host::running->linear & 31; }
    unsigned int thread_rank() const { return (unsigned int)__builtin_popcount(mask & ((1u << lane()) - 1)); }
    unsigned int size() const { return (unsigned int)__builtin_popcount(mask); }
    unsigned int num_threads() const { return size(); }
    unsigned int meta_group_rank() const { return accelrt_host::running->linear / width; }
    unsigned int meta_group_size() const { return (thread_block::size() + width - 1) / width; }
    // The lane of the warp that has a rank.
    int lane_of(unsigned int rank) const {
        unsigned int rest = mask;
        for (; rank && rest; rank--)
            rest &= rest - 1;
        return rest ? __builtin_ctz(rest) : (int)lane();
    }
    void sync() const { __syncwarp(mask); }
    template <class T> T shfl(T value, int rank) const { return __shfl_sync(mask, value, lane_of((unsigned int)rank)); }
    template <class T> T shfl_down(T value, unsigned int by) const {
        return __shfl_sync(mask, value, thread_rank() + by < size() ? lane_of(thread_rank() + by) : (int)lane());
    }
    template <class T> T shfl_up(T value, unsigned int by) const {
        return __shfl_sync(mask, value, thread_rank() >= by ? lane_of(thread_rank() - by) : (int)lane());
    }
    template <class T> T shfl_xor(T value, unsigned int with) const {
        return __shfl_sync(mask, value, (thread_rank() ^ with) < size() ? lane_of(thread_rank() ^ with) : (int)lane());
    }
    int any(int predicate) const { return __any_sync(mask, predicate); }
    int all(int predicate) const { return __all_sync(mask, predicate); }
    unsigned int packed(unsigned int lanes) const {  // from lanes of the warp to ranks
        unsigned int made = 0;
        for (unsigned int rank = 0; rank < size(); rank++)
            made |= (lanes >> lane_of(rank) & 1) << rank;
        return made;
    }
    unsigned int ballot(int predicate) const { return packed(__ballot_sync(mask, predicate)); }
    template <class T> unsigned int match_any(T value) const { return packed(__match_any_sync(mask, value)); }
};
template <unsigned int Size, class Parent = void> struct thread_block_tile : accelrt_lanes {
    static_assert(Size && Size <= 32 && !(Size & (Size - 1)), "a tile has 1, 2, 4, 8, 16 or 32 threads here");
    thread_block_tile()
        : accelrt_lanes{(Size == 32 ? 0xffffffffu : (1u << Size) - 1) << (accelrt_host::running->linear & 31 & ~(Size - 1)), Size} {
        const unsigned int rest = thread_block::size() - (accelrt_host::running->linear & ~31u);
        mask &= rest < 32 ? (1u << rest) - 1 : 0xffffffffu;  // the last warp may be a part of one
    }
};
struct coalesced_group : accelrt_lanes {};
template <unsigned int Size, class Parent> accelrt_inline thread_block_tile<Size, Parent> tiled_partition(const Parent&) {
    return thread_block_tile<Size, Parent>();
}
accelrt_inline coalesced_group coalesced_threads() {
    coalesced_group made;
    made.mask = __activemask();
    made.width = 32;
    return made;
}
template <class Group> accelrt_inline void sync(const Group& group) { group.sync(); }

}  // namespace cooperative_groups

#endif
