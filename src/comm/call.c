#ifndef DML_COMM_CALL_C
#define DML_COMM_CALL_C

#include "comm/call.h"

#include <stdio.h>
#include <string.h>

static void dml__reduce_text(unsigned reduce, char *text, size_t bytes)
{
    static const char *const names[] = { "sum", "mean", "min", "max", "prod" };
    if (reduce < DML__REDUCE_OP_COUNT)
        snprintf(text, bytes, ", %s", names[reduce]);
    else if (reduce < DML__REDUCE_OP_COUNT + DML__MOST_FUNCTIONS)
        snprintf(text, bytes, ", custom %u", reduce - DML__REDUCE_OP_COUNT);
    else
        snprintf(text, bytes, ", ?");
}

DML__LOCAL bool dml__same_call(const dml__signature *a, const dml__signature *b)
{
    return a->operation == b->operation && a->dtype == b->dtype && a->reduce == b->reduce &&
           a->root == b->root && a->variant == b->variant && (a->count == b->count || dml__is_by_parts(a));
}

DML__LOCAL const char *dml__communicator_text(uint32_t id, char text[DML__COMMUNICATOR_TEXT])
{
    text[0] = 0;
    if (id) snprintf(text, DML__COMMUNICATOR_TEXT, " in communicator %u", (unsigned)id);
    return text;
}

DML__LOCAL const char *dml__signature_text(const dml__signature *signature, char text[DML__SIGNATURE_TEXT])
{
    static const struct {
        const char *name;
        bool data, reduce;
        const char *root;
    } operations[] = {
#define DML__COMM_OPERATION_TEXT(NAME, name, data, reduce, root) { name, data, reduce, root },
        DML__COMM_OPERATION_LIST(DML__COMM_OPERATION_TEXT)
#undef DML__COMM_OPERATION_TEXT
    };
    const unsigned operation = (unsigned)signature->operation, reduce = (unsigned)signature->reduce;
    if (operation >= DML__COMM_OPERATION_COUNT) {
        snprintf(text, DML__SIGNATURE_TEXT, "?()");
    } else if (!operations[operation].data) {
        snprintf(text, DML__SIGNATURE_TEXT, "%s()", operations[operation].name);
    } else if (dml__is_by_parts(signature)) {
        snprintf(text, DML__SIGNATURE_TEXT, "all_to_allv(%s)", dml_dtype_name(signature->dtype));
    } else {
        const char *parts = signature->variant >= DML__WITH_COUNTS ? "v" : "";
        const char *within = signature->variant == DML__IN_PLACE   ? " in place"
                             : signature->variant == DML__IN_SPLIT ? " in dml_comm_split"
                             : signature->variant == DML__IN_TUNE  ? " in dml_comm_tune"
                                                                   : "";
        char last[48] = "";
        if (operations[operation].reduce) dml__reduce_text(reduce, last, sizeof last);
        const size_t used = strlen(last);
        if (signature->operation == DML__CALL_RECEIVE && signature->root == DML_ANY_SOURCE)
            snprintf(last + used, sizeof last - used, ", %s any", operations[operation].root);
        else if (operations[operation].root)
            snprintf(last + used, sizeof last - used, ", %s %d", operations[operation].root, signature->root);
        snprintf(text, DML__SIGNATURE_TEXT, "%s%s(%s, %llu%s)%s", operations[operation].name, parts,
                 dml_dtype_name(signature->dtype), (unsigned long long)signature->count, last, within);
    }
    return text;
}

DML__LOCAL const char *dml__apart_text(const dml__signature *a, const dml__signature *b)
{
    const bool counted = a->variant >= DML__WITH_COUNTS && b->variant >= DML__WITH_COUNTS;
    return counted && a->operation == b->operation && a->variant != b->variant
               ? " with other counts for the ranks"
               : "";
}

#endif
