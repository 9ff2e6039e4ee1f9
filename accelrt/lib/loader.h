/* Finds accelrt's functions in the Python that runs in this process.
 *
 * Python's C API is looked up among the symbols of the process, so that the library needs no Python to be linked or
 * loaded, and serves every version of it.  accelrt.include hands out the functions as capsules. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#ifndef ACCELRT_LIBRARY /* what has these functions */
#define ACCELRT_LIBRARY "libaccelrt.so"
#endif

enum { NOT_INITIALIZED = 3 };

/* The part of Python's C API that is used; objects are opaque. */
struct python {
    int (*is_initialized)(void);
    int (*ensure)(void);
    void (*release)(int);
    void *(*import)(const char *);
    void *(*attribute)(void *, const char *);
    void *(*call)(void *, void *);
    void *(*item)(void *, const char *); /* borrowed, and no error where there is none */
    const char *(*capsule_name)(void *);
    void *(*capsule_pointer)(void *, const char *);
    void (*forget)(void *);
    void (*fetch)(void **, void **, void **);
    void (*restore)(void *, void *, void *);
    void (*write_unraisable)(void *);
    void *(*occurred)(void);
    void (*set_string)(void *, const char *);
};

static const char *const python_names[] = {
    "Py_IsInitialized", "PyGILState_Ensure", "PyGILState_Release", "PyImport_ImportModule", "PyObject_GetAttrString",
    "PyObject_CallObject", "PyDict_GetItemString", "PyCapsule_GetName", "PyCapsule_GetPointer", "Py_DecRef",
    "PyErr_Fetch", "PyErr_Restore", "PyErr_WriteUnraisable", "PyErr_Occurred", "PyErr_SetString",
};

/* Nonzero where the process has a Python that runs, and is not about to exit. */
static int find_python(struct python *python) {
    int (*is_finalizing)(void);
    void *symbol;
    size_t index;
    for (index = 0; index < sizeof(python_names) / sizeof(python_names[0]); index++) {
        symbol = dlsym(RTLD_DEFAULT, python_names[index]);
        if (symbol == NULL)
            return 0;
        memcpy((char *)python + index * sizeof(symbol), &symbol, sizeof(symbol));
    }
    symbol = dlsym(RTLD_DEFAULT, "Py_IsFinalizing"); /* from 3.13 on */
    if (symbol == NULL)
        symbol = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    memcpy(&is_finalizing, &symbol, sizeof(symbol));
    return python->is_initialized() && (is_finalizing == NULL || !is_finalizing());
}

/* The capsules by name, a new reference; NULL with an exception set. */
static void *find_capsules(const struct python *python) {
    void *capsules = NULL, *function = NULL, *module = python->import("accelrt.include");
    if (module != NULL)
        function = python->attribute(module, "_capsules");
    if (function != NULL)
        capsules = python->call(function, NULL);
    python->forget(function);
    python->forget(module);
    return capsules;
}

static int is_filled; /* the table; written once, with the GIL held */

/* Fills a table of pointers with the functions of these names.  Nonzero where it has them all; else an exception is
 * set, unless the accelrt that Python imports lacks one. */
static int fill_table(const struct python *python, const char *const *names, size_t count, void *table) {
    void *capsules = find_capsules(python), *capsule, *pointer;
    size_t index;
    if (capsules == NULL)
        return 0;
    for (index = is_filled ? count : 0; index < count; index++) { /* the import may have let another thread in */
        capsule = python->item(capsules, names[index]);
        pointer = capsule == NULL ? NULL : python->capsule_pointer(capsule, python->capsule_name(capsule));
        if (pointer == NULL) {
            fprintf(stderr, "accelrt: accelrt.api has no %s; " ACCELRT_LIBRARY " is of another accelrt\n", names[index]);
            break;
        }
        memcpy((char *)table + index * sizeof(pointer), &pointer, sizeof(pointer));
    }
    python->forget(capsules);
    is_filled = index == count;
    return is_filled;
}

/* Any thread; takes the GIL, for as long as the import takes.  A caller's exception is kept. */
static int load_functions(const char *const *names, size_t count, void *table) {
    struct python python;
    void *kind, *value, *trace;
    int state, filled;
    if (!find_python(&python))
        return 0;
    state = python.ensure();
    python.fetch(&kind, &value, &trace);
    filled = fill_table(&python, names, count, table);
    if (!filled && python.occurred() != NULL)
        python.write_unraisable(NULL);
    python.restore(kind, value, trace);
    python.release(state);
    return filled;
}

/* What raise_failure does where accelrt cannot be imported: an ImportError. */
static int raise_unloaded(void) {
    struct python python;
    void **kind = dlsym(RTLD_DEFAULT, "PyExc_ImportError");
    int state;
    if (kind != NULL && find_python(&python)) {
        state = python.ensure();
        python.set_string(*kind, "accelrt's C API cannot be used: accelrt.include could not be imported");
        python.release(state);
    }
    return -1;
}

static const char *unloaded_name(int code) {
    return code == NOT_INITIALIZED ? "NOT_INITIALIZED" : code == 0 ? "SUCCESS" : "UNKNOWN";
}

static const char *unloaded_text(int code) {
    if (code != NOT_INITIALIZED)
        return code == 0 ? "no error" : "an error that cannot be told, since accelrt is not imported";
    return "accelrt is not imported: no Python runs in this process, or it cannot import accelrt";
}
