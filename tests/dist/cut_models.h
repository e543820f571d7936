/* cut_models.h: what the tests of models that are cut share. */
#ifndef DML_TESTS_CUT_MODELS_H
#define DML_TESTS_CUT_MODELS_H

#include <stdlib.h>
#include <string.h>

#include "../test.h"

/* A call that gives nothing, and a sentence with that word, on `context`. */
#define REFUSED(call, word)                                                                                  \
    do {                                                                                                     \
        CHECK(!(call));                                                                                      \
        CHECK_MESSAGE(strstr(dml_error(context), word), "%s: %s", word, dml_error(context));                 \
        dml_clear_error(context);                                                                            \
    } while (0)

/* An allocator, of which this thread's n-th allocation fails; 0: none. */
TEST__UNUSED static __thread int fail_after;
TEST__UNUSED static void *allocate_until(void *user, size_t bytes)
{
    (void)user;
    return fail_after > 0 && --fail_after == 0 ? NULL : malloc(bytes);
}
TEST__UNUSED static void release_anything(void *user, void *memory)
{
    (void)user;
    free(memory);
}

#endif
