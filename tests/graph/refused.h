/* refused.h: for tests of what builders refuse, which have a `context` and a `graph`. */
#ifndef DML_TESTS_GRAPH_REFUSED_H
#define DML_TESTS_GRAPH_REFUSED_H

#include "graph/node.h"

#include "../test.h"

/* The call gives nothing, records a sentence with that in it, and leaves the graph as it was. */
#define REFUSED(call, status, part)                                                                          \
    do {                                                                                                     \
        const int test__nodes = graph->nodes;                                                                \
        CHECK(!(call));                                                                                      \
        CHECK_INT(dml_status_of(context), status);                                                           \
        CHECK_CONTAINS(dml_error(context), part);                                                            \
        CHECK_INT(graph->nodes, test__nodes);                                                                \
        dml_clear_error(context);                                                                            \
    } while (0)

#endif
