/* ops_cases.h: small models, each with an op in some situation, for tests that run all of them. Their
   families have a header each, with what builds them and a list of them. */
#ifndef DML_TESTS_GRAPH_OPS_CASES_H
#define DML_TESTS_GRAPH_OPS_CASES_H

#include "cases_attention.h"
#include "cases_convs.h"
#include "cases_custom.h"
#include "cases_elements.h"
#include "cases_lookups.h"
#include "cases_loss.h"
#include "cases_matmul.h"
#include "cases_norms.h"
#include "cases_pools.h"
#include "cases_recurrent.h"
#include "cases_reduce.h"
#include "cases_shapes.h"

typedef struct test_case {
    const char *op;
    model model;
} test_case;

static const test_case cases[] = {
#define CASE(op, build, batch) { #op, { #build, build, batch } },
    ELEMENTS_CASE_LIST(CASE) SHAPES_CASE_LIST(CASE) MATMUL_CASE_LIST(CASE) CONVS_CASE_LIST(CASE)
        POOLS_CASE_LIST(CASE) NORMS_CASE_LIST(CASE) LOOKUPS_CASE_LIST(CASE) ATTENTION_CASE_LIST(CASE)
            RECURRENT_CASE_LIST(CASE) REDUCE_CASE_LIST(CASE) LOSS_CASE_LIST(CASE) CUSTOM_CASE_LIST(CASE)
#undef CASE
};
enum { CASES = sizeof cases / sizeof cases[0] };

#endif
