"""Threads that share the blocks of a kernel with the thread that serves its stream.

That thread begins alone, and asks for help when it has been at work for as long as waking others takes: small kernels
run in the order of their blocks, on one thread.  Then whoever is free takes some of the blocks that are left, fewer
the fewer there are.  The threads are started when they are first needed, serve all streams, and last as long as the
process.  One lock guards what is left of each kernel; no block runs under it.
"""
from accelrt.core.locks cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from accelrt.driver.waiting cimport pthread_cond_t

cdef extern from *:
    """
    #define _GNU_SOURCE
    #include <pthread.h>
    #include <sched.h>
    #include <time.h>
    static long long accelrt_crew_now(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    static int accelrt_processors(void) {
        cpu_set_t set;
        return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    }
    static int accelrt_start_helper(void* (*help)(void*)) {
        pthread_t thread;
        int code = pthread_create(&thread, NULL, help, NULL);
        if (code == 0)
            pthread_detach(thread);
        return code;
    }
    """
    long long now_ns "accelrt_crew_now"() noexcept nogil
    int processors "accelrt_processors"() noexcept nogil
    int start_helper "accelrt_start_helper"(void* (*help)(void*) noexcept nogil) noexcept nogil
    int pthread_cond_init(pthread_cond_t* condition, void* attributes) noexcept nogil
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) noexcept nogil
    int pthread_cond_broadcast(pthread_cond_t* condition) noexcept nogil

cdef enum:
    ALONE_NS = 50000  # that a thread works alone for
    TURNS = 4         # a thread takes its part of the rest in so many turns

cdef struct Job:      # what is left of a kernel; on the stack of the thread that serves its stream
    part_fn run
    const void* task
    unsigned long long next
    unsigned long long count
    int helpers       # that are at work on it
    bint over         # a part said no
    Job* following

cdef pthread_mutex_t mutex
cdef pthread_cond_t offered  # a job was added
cdef pthread_cond_t left     # a helper has left a job
cdef Job* jobs = NULL        # with parts that nobody has taken
cdef int threads = 1         # that may work on one kernel; written at open
cdef int helpers = 0         # that were started


cdef void crew_open(int wanted) noexcept nogil:
    global threads
    threads = min(wanted if wanted else processors(), MOST_THREADS)


cdef int crew_size() noexcept nogil:
    return threads


cdef void take_part(Job* job) noexcept nogil:
    # Under the lock, which it opens.
    cdef unsigned long long first, count
    cdef bint on
    while job.next < job.count and not job.over:
        first, count = job.next, max((job.count - job.next) // (TURNS * threads), 1ULL)
        job.next += count
        pthread_mutex_unlock(&mutex)
        on = job.run(job.task, first, count)
        pthread_mutex_lock(&mutex)
        if not on:
            job.over = True


cdef Job* find_job() noexcept nogil:
    cdef Job* job = jobs
    while job != NULL and (job.over or job.next >= job.count):
        job = job.following
    return job


cdef void* help_out(void* unused) noexcept nogil:
    cdef Job* job
    pthread_mutex_lock(&mutex)
    while True:
        job = find_job()
        if job == NULL:
            pthread_cond_wait(&offered, &mutex)
            continue
        job.helpers += 1
        take_part(job)
        job.helpers -= 1
        pthread_cond_broadcast(&left)


cdef void add_job(Job* job) noexcept nogil:
    global jobs, helpers
    while helpers < threads - 1 and start_helper(help_out) == 0:
        helpers += 1
    job.following = jobs
    jobs = job
    pthread_cond_broadcast(&offered)


cdef void remove_job(Job* job) noexcept nogil:
    global jobs
    cdef Job** place = &jobs
    while place[0] != job:
        place = &place[0].following
    place[0] = job.following


cdef void share(part_fn run, const void* task, unsigned long long count) noexcept nogil:
    cdef Job job
    cdef unsigned long long done = 0, step = 1
    cdef long long began
    if threads == 1 or count == 1:
        run(task, 0, count)
        return
    began = now_ns()
    while now_ns() - began < ALONE_NS:
        step = min(step, count - done)
        if not run(task, done, step):
            return
        done += step
        step *= 2
        if done == count:
            return
    job.run, job.task, job.next, job.count, job.helpers, job.over = run, task, done, count, 0, False
    pthread_mutex_lock(&mutex)
    add_job(&job)
    take_part(&job)
    remove_job(&job)
    while job.helpers:
        pthread_cond_wait(&left, &mutex)
    pthread_mutex_unlock(&mutex)


pthread_mutex_init(&mutex, NULL)
pthread_cond_init(&offered, NULL)
pthread_cond_init(&left, NULL)
