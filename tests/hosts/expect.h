/* expect.h: the programs of tests/hosts/ end with a sentence when something isn't as it should be. */
#ifndef EXPECT_H
#define EXPECT_H

#include <stdio.h>
#include <stdlib.h>

#define EXPECT(condition)                                                                                    \
    do {                                                                                                     \
        if (condition) break;                                                                                \
        fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition);                             \
        exit(1);                                                                                             \
    } while (0)

/* A context that has an error ends the program with its sentence. */
#define EXPECT_NO_ERROR(context)                                                                             \
    do {                                                                                                     \
        if (dml_status_of(context) == DML_OK) break;                                                         \
        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, dml_error(context));                              \
        exit(1);                                                                                             \
    } while (0)

#endif
