// assert in device code: a thread that fails ends its kernel, and the device is lost.  A text in C has the system's.
#ifdef __cplusplus
#undef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) ((condition) ? (void)0 : accelrt_assertion_failed(#condition, __FILE__, __LINE__))
#endif
#else
#include_next <assert.h>
#endif
