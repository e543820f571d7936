#ifndef DML_DIST_PARAMETER_SERVER_QUEUE_C
#define DML_DIST_PARAMETER_SERVER_QUEUE_C

#include "dist/parameter_server_worker.h"

#include "base/float16.h"

static void dml__ps_take_answers(dml_ps *ps, const dml__ps_operation *operation)
{
    int living = 0;
    for (int s = 0; operation->pull && s < ps->servers; s++) {
        const int64_t *answer = operation->answers[s];
        if (answer[DML__PS_LIVING] == 0) continue; /* this server had no part of it */
        if ((uint64_t)answer[DML__PS_CLOCKS] > ps->clock && ps->link.terms[DML__PS_BACKUP])
            ps->clock = (uint64_t)answer[DML__PS_CLOCKS];
        if ((int)answer[DML__PS_LIVING] > living) living = (int)answer[DML__PS_LIVING];
    }
    if (living) ps->living = living;
}

DML__LOCAL dml_status dml__ps_finish_oldest(dml_ps *ps)
{
    dml__ps_operation *operation = &ps->operations[ps->first % DML__PS_MOST_OPERATIONS];
    dml_status status = DML_OK;
    for (size_t i = 0; i < operation->requests; i++) {
        const dml_status one = dml_comm_wait(ps->link.all, ps->ring[ps->oldest]);
        if (status == DML_OK) status = one;
        ps->oldest = (ps->oldest + 1) % ps->room;
        ps->used--;
    }
    ps->first++;
    if (status != DML_OK) return status;
    dml__ps_take_answers(ps, operation);
    if (operation->to)
        dml__widen_line(dml__ps_isa(ps), ps->link.pull_dtype, operation->end - operation->begin,
                        ps->arrived + operation->begin, operation->to);
    return DML_OK;
}

DML__LOCAL dml__ps_operation *dml__ps_begin(dml_ps *ps, bool pull, bool buffered, size_t begin, size_t end,
                                            size_t requests)
{
    for (uint64_t t = ps->next; buffered && t > ps->first; t--) {
        const dml__ps_operation *o = &ps->operations[(t - 1) % DML__PS_MOST_OPERATIONS];
        if (o->pull != pull || o->begin >= end || begin >= o->end) continue;
        while (ps->first < t)
            if (dml__ps_finish_oldest(ps) != DML_OK) return NULL;
        break;
    }
    while (ps->next - ps->first == DML__PS_MOST_OPERATIONS ||
           (ps->room - ps->used < requests && ps->first < ps->next))
        if (dml__ps_finish_oldest(ps) != DML_OK) return NULL;
    dml__ps_operation *operation = &ps->operations[ps->next % DML__PS_MOST_OPERATIONS];
    int64_t(*answers)[DML__PS_ANSWER] = operation->answers;
    memset(operation, 0, sizeof *operation);
    operation->answers = answers;
    memset(answers, 0, (size_t)ps->servers * sizeof *answers);
    operation->pull = pull;
    operation->buffered = buffered;
    operation->begin = begin;
    operation->end = end;
    ps->next++;
    return operation;
}

DML__LOCAL bool dml__ps_add(dml_ps *ps, dml__ps_operation *operation, dml_request *request)
{
    if (!request) return false;
    ps->ring[(ps->oldest + ps->used) % ps->room] = request;
    ps->used++;
    operation->requests++;
    return true;
}

DML__LOCAL dml_status dml__ps_say(dml_ps *ps, int server, const int64_t *header)
{
    return dml_comm_send(ps->link.all, header, DML__PS_HEADER, DML_I64, ps->workers + server,
                         DML__PS_TAG_HEADER);
}

DML__LOCAL void dml__ps_header(const dml_ps *ps, int64_t header[DML__PS_HEADER], dml__ps_kind kind,
                               int vector, size_t begin, size_t end)
{
    memset(header, 0, DML__PS_HEADER * sizeof *header);
    header[DML__PS_KIND] = (int64_t)kind;
    header[DML__PS_VECTOR] = vector;
    header[DML__PS_BEGIN] = (int64_t)begin;
    header[DML__PS_END] = (int64_t)end;
    header[DML__PS_AT] = (int64_t)ps->clock;
    header[DML__PS_SENT] = -1;
}

DML__LOCAL bool dml__ps_overlap(const dml_ps *ps, int s, size_t begin, size_t end, size_t *from, size_t *to)
{
    const size_t first = dml__ps_border(&ps->link, s), last = dml__ps_border(&ps->link, s + 1);
    *from = begin > first ? begin : first;
    *to = end < last ? end : last;
    return *from < *to;
}

DML__LOCAL bool dml__ps_check_range(dml_ps *ps, const char *call, const void *data, int vector, size_t begin,
                                    size_t end)
{
    if (!ps || dml_comm_status(ps->link.all)) return false;
    if (begin <= end && end <= ps->count && (data || begin == end) && vector >= 0 &&
        vector <= (int)ps->link.terms[DML__PS_VECTORS])
        return true;
    dml__ps_fail(ps->link.all, DML_ERROR_ARGUMENT,
                 "%s of elements %zu to %zu of vector %d%s; there are %zu elements and vectors 0 to %d", call,
                 begin, end, vector, data ? "" : " with NULL", ps->count,
                 (int)ps->link.terms[DML__PS_VECTORS]);
    return false;
}

#endif
