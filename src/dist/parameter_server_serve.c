#ifndef DML_DIST_PARAMETER_SERVER_SERVE_C
#define DML_DIST_PARAMETER_SERVER_SERVE_C

#include "dist/parameter_server.h"

#include "base/float16.h"
#include "comm/job.h"
#include "dist/cluster_internal.h"
#include "dist/parameter_server_internal.h"
#include "dist/parameter_server_weights.h"

#include <math.h>

/* The servers' side: one thread that waits for whatever comes next, of any worker. What it copies it copies
   by pieces that stay in the caches between the wire and the vector. */

#define DML__PS_BLOCK 65536   /* elements that are applied at once */
#define DML__PS_MOST_PULLS 64 /* of one worker, waiting */

/* A worker's requests of the server's communicator. */
enum {
    DML__PS_FOR_HEADER,
    DML__PS_FOR_UP,
    DML__PS_FOR_UP_2,
    DML__PS_FOR_DOWN,
    DML__PS_FOR_DOWN_2,
    DML__PS_FOR_ANSWER,
    DML__PS_FOR
};

typedef struct dml__ps_pull {
    int vector;
    size_t begin, end; /* of this server's range */
    uint64_t clock;    /* of the worker */
    double value;      /* what the answer says */
} dml__ps_pull;

typedef struct dml__ps_guest {
    int64_t header[DML__PS_HEADER], answer[DML__PS_ANSWER];
    bool present; /* it may still ask for something */
    bool held;    /* what the header asks for has to wait */
    bool ticked;  /* its pushes of the clock that is being summed are complete */
    uint64_t clock;
    /* The push that is coming: elements of this server's range. */
    size_t asked, taken, push_end; /* up to where pieces are being received, or have been taken */
    size_t piece_begin[2], piece_end[2];
    bool came[2]; /* places and values of a push that has places */
    /* The pulls that wait, the first of which may be on its way. */
    dml__ps_pull pulls[DML__PS_MOST_PULLS];
    int first_pull, pull_count;
    bool answering;
    size_t sent;
    char *up[2], *down[2]; /* (piece) f32 each */
} dml__ps_guest;

typedef struct dml__ps_server {
    dml__memory memory;
    dml__ps_link link;
    dml_ps_rule rule;
    dml_ps_consistency consistency;
    int workers, needed;     /* how many have to tick */
    size_t count;            /* of the range */
    double rate;             /* of the clock's pushes, from whoever ended it last */
    uint64_t applied;        /* clocks */
    float *vectors;          /* (1 + vectors, count) */
    float *sum;              /* (count): synchronous: of the pushes of clock `applied` */
    dml__ps_weights weights; /* of what was added to it */
    float *line;             /* (piece): elements of a push, in f32 and each in its place */
    dml__reduction adding;
    dml__ps_guest *guests;  /* (workers) */
    dml_request **requests; /* (workers, DML__PS_FOR) */
    char *stages;           /* (workers, 4, piece) f32 */
    dml_ps_report report;
    dml_status status;
} dml__ps_server;

static dml_request **dml__ps_request(dml__ps_server *server, const dml__ps_guest *guest, int which)
{
    return &server->requests[(guest - server->guests) * DML__PS_FOR + which];
}

static void dml__ps_note(dml__ps_server *server, dml_status status)
{
    if (server->status == DML_OK) server->status = status;
}

static void dml__ps_started(dml__ps_server *server, dml_request **at, dml_request *request)
{
    *at = request;
    if (!request) dml__ps_note(server, dml_comm_status(server->link.all));
}

static void dml__ps_listen(dml__ps_server *server, dml__ps_guest *guest)
{
    guest->header[DML__PS_KIND] = DML__PS_NONE;
    dml__ps_started(server, dml__ps_request(server, guest, DML__PS_FOR_HEADER),
                    dml_comm_receive_start(server->link.all, guest->header, DML__PS_HEADER, DML_I64,
                                           (int)(guest - server->guests), DML__PS_TAG_HEADER));
}

static int dml__ps_living(const dml__ps_server *server)
{
    int living = 0;
    for (int w = 0; w < server->workers; w++) living += server->guests[w].present;
    return living;
}

/* ---- applying ---- */

/* sum += weight x */
static void dml__ps_add_weighted(const dml__ps_server *server, size_t n, double weight, const float *x,
                                 float *sum)
{
    const float factor = (float)weight;
    if (factor == 1.0f)
        dml__reduce_elements(&server->adding, sum, sum, x, n);
    else
        for (size_t i = 0; i < n; i++) sum[i] += factor * x[i];
}

static void dml__ps_scale(size_t n, double factor, float *x)
{
    if (factor == 1) return;
    for (size_t i = 0; i < n; i++) x[i] = (float)factor * x[i];
}

/* Elements of the range follow g. */
static void dml__ps_apply_to(dml__ps_server *server, size_t begin, size_t count, const float *g,
                             uint64_t step, double rate)
{
    float *w = server->vectors + begin;
    dml_status status = DML_OK;
    if (server->rule.apply)
        status = server->rule.apply(server->rule.user, server->link.begin + begin, count, w, g, step, rate);
    else
        dml__ps_add_weighted(server, count, rate, g, w);
    if (status != DML_OK)
        dml__ps_note(server, dml__ps_fail(server->link.all, status,
                                          "the server's rule failed for elements %zu to %zu: %s",
                                          server->link.begin + begin, server->link.begin + begin + count,
                                          dml_status_string(status)));
}

/* The mean of a clock, where anybody pushed. */
static void dml__ps_apply_clock(dml__ps_server *server)
{
    dml__ps_weights *weights = &server->weights;
    for (size_t run = 0; run < weights->runs; run++) {
        const size_t end = dml__ps_weights_end(weights, run);
        if (!(weights->weight[run] > 0)) continue;
        for (size_t at = weights->begin[run], n; at < end; at += n) {
            n = end - at < DML__PS_BLOCK ? end - at : DML__PS_BLOCK;
            dml__ps_scale(n, 1 / weights->weight[run], server->sum + at);
            dml__ps_apply_to(server, at, n, server->sum + at, server->applied, server->rate);
            memset(server->sum + at, 0, n * sizeof *server->sum);
        }
    }
    dml__ps_weights_clear(weights);
    server->applied++;
    server->report.clocks = server->applied;
}

static void dml__ps_add_to_clock(dml__ps_server *server, size_t begin, size_t end, double weight,
                                 const float *x)
{
    if (!(weight > 0)) return;
    dml__ps_add_weighted(server, end - begin, weight, x, server->sum + begin);
    if (!dml__ps_weights_add(&server->weights, begin, end, weight))
        dml__ps_note(server, dml__ps_fail(server->link.all, DML_ERROR_ARGUMENT,
                                          "the workers' pushes of a clock cut a server's %zu elements into "
                                          "more than %zu ranges that are unlike; push larger ones",
                                          server->count, server->weights.room));
}

/* A piece of a push, in f32; x may be changed. */
static void dml__ps_take(dml__ps_server *server, dml__ps_guest *guest, size_t begin, size_t end, float *x)
{
    const int64_t *header = guest->header;
    const int vector = (int)header[DML__PS_VECTOR];
    const double weight = dml__ps_real(header[DML__PS_REAL]), rate = dml__ps_real(header[DML__PS_REAL_2]);
    if (vector > 0) {
        dml__ps_add_weighted(server, end - begin, 1, x,
                             server->vectors + (size_t)vector * server->count + begin);
    } else if (server->consistency != DML_PS_SYNCHRONOUS) {
        dml__ps_scale(end - begin, weight, x);
        dml__ps_apply_to(server, begin, end - begin, x, server->report.clocks, rate);
    } else if ((uint64_t)header[DML__PS_AT] == server->applied) {
        dml__ps_add_to_clock(server, begin, end, weight, x);
    }
}

/* ---- pushes ---- */

static dml_dtype dml__ps_dtype_of(const dml__ps_server *server, const dml__ps_guest *guest)
{
    return guest->header[DML__PS_VECTOR] ? DML_F32 : server->link.push_dtype;
}

static bool dml__ps_has_places(const dml__ps_guest *guest)
{
    return guest->header[DML__PS_SENT] >= 0;
}

/* Asks for the next piece, if there is one and room for it. */
static void dml__ps_ask(dml__ps_server *server, dml__ps_guest *guest, int which)
{
    const size_t left = guest->push_end - guest->asked;
    if (left == 0) return;
    const size_t n = left < server->link.piece ? left : server->link.piece;
    guest->piece_begin[which] = guest->asked;
    guest->piece_end[which] = guest->asked += n;
    dml__ps_started(server, dml__ps_request(server, guest, DML__PS_FOR_UP + which),
                    dml_comm_receive_start(server->link.all, guest->up[which], n,
                                           dml__ps_dtype_of(server, guest), (int)(guest - server->guests),
                                           DML__PS_TAG_UP));
}

static void dml__ps_begin_push(dml__ps_server *server, dml__ps_guest *guest)
{
    const int64_t *header = guest->header;
    const int rank = (int)(guest - server->guests);
    const size_t begin = (size_t)header[DML__PS_BEGIN] - server->link.begin,
                 end = (size_t)header[DML__PS_END] - server->link.begin;
    const size_t sent = dml__ps_has_places(guest) ? (size_t)header[DML__PS_SENT] : end - begin;
    server->report.pushes++;
    server->report.elements += end - begin;
    server->report.pushed += sent;
    if (server->consistency == DML_PS_SYNCHRONOUS && !header[DML__PS_VECTOR] &&
        (uint64_t)header[DML__PS_AT] < server->applied)
        server->report.dropped++;
    guest->asked = guest->taken = begin;
    guest->push_end = end;
    if (!dml__ps_has_places(guest)) {
        dml__ps_ask(server, guest, 0);
        dml__ps_ask(server, guest, 1);
        return;
    }
    guest->came[0] = guest->came[1] = false;
    dml__ps_started(
        server, dml__ps_request(server, guest, DML__PS_FOR_UP),
        dml_comm_receive_start(server->link.all, guest->up[0], sent, DML_I32, rank, DML__PS_TAG_PLACES));
    dml__ps_started(server, dml__ps_request(server, guest, DML__PS_FOR_UP_2),
                    dml_comm_receive_start(server->link.all, guest->up[1], sent,
                                           dml__ps_dtype_of(server, guest), rank, DML__PS_TAG_UP));
}

/* What came as f32; in place where it is so already. */
static float *dml__ps_widen(const dml__ps_server *server, const dml__ps_guest *guest, char *from, size_t n,
                            float *line)
{
    const dml_dtype dtype = dml__ps_dtype_of(server, guest);
    if (dtype == DML_F32) return (float *)(void *)from;
    dml__widen_line(server->adding.isa, dtype, n, (const uint16_t *)(const void *)from, line);
    return line;
}

/* Elements with places, spread over the range of the push. */
static void dml__ps_take_places(dml__ps_server *server, dml__ps_guest *guest)
{
    const size_t sent = (size_t)guest->header[DML__PS_SENT], n = guest->push_end - guest->taken;
    const int32_t *places = (const int32_t *)(const void *)guest->up[0];
    const dml_dtype dtype = dml__ps_dtype_of(server, guest);
    memset(server->line, 0, n * sizeof *server->line);
    for (size_t k = 0; k < sent; k++) {
        const size_t place = (size_t)(uint32_t)places[k];
        if (place >= n) {
            dml__ps_note(server, dml__ps_fail(server->link.all, DML_ERROR_FORMAT,
                                              "a push of element %zu of %zu elements", place, n));
            return;
        }
        if (dtype == DML_F32)
            server->line[place] = ((const float *)(const void *)guest->up[1])[k];
        else
            dml__widen_line(server->adding.isa, dtype, 1, (const uint16_t *)(const void *)guest->up[1] + k,
                            &server->line[place]);
    }
    dml__ps_take(server, guest, guest->taken, guest->push_end, server->line);
    guest->taken = guest->push_end;
}

/* A piece has come. */
static void dml__ps_piece_came(dml__ps_server *server, dml__ps_guest *guest, int which)
{
    if (dml__ps_has_places(guest)) {
        guest->came[which] = true;
        if (guest->came[0] && guest->came[1]) dml__ps_take_places(server, guest);
    } else {
        const size_t begin = guest->piece_begin[which], end = guest->piece_end[which];
        dml__ps_take(server, guest, begin, end,
                     dml__ps_widen(server, guest, guest->up[which], end - begin, server->line));
        guest->taken += end - begin;
        dml__ps_ask(server, guest, which);
    }
    if (guest->taken == guest->push_end) dml__ps_listen(server, guest);
}

/* ---- pulls ---- */

static bool dml__ps_may_answer(const dml__ps_server *server, const dml__ps_pull *pull)
{
    if (pull->vector > 0 || pull->begin == pull->end) return true;
    if (server->consistency == DML_PS_SYNCHRONOUS) return server->applied >= pull->clock;
    if (server->consistency == DML_PS_ASYNCHRONOUS) return true;
    for (int w = 0; w < server->workers; w++) {
        const dml__ps_guest *guest = &server->guests[w];
        if (guest->present && guest->clock + (uint64_t)server->link.terms[DML__PS_STALENESS] < pull->clock)
            return false;
    }
    return true;
}

static void dml__ps_begin_answer(dml__ps_server *server, dml__ps_guest *guest, const dml__ps_pull *pull)
{
    guest->answering = true;
    guest->sent = pull->begin;
    guest->answer[DML__PS_CLOCKS] = (int64_t)server->report.clocks;
    guest->answer[DML__PS_LIVING] = dml__ps_living(server);
    guest->answer[DML__PS_VALUE] = dml__ps_bits(pull->value);
    dml__ps_started(server, dml__ps_request(server, guest, DML__PS_FOR_ANSWER),
                    dml_comm_send_start(server->link.all, guest->answer, DML__PS_ANSWER, DML_I64,
                                        (int)(guest - server->guests), DML__PS_TAG_ANSWER));
}

static void dml__ps_send_piece(dml__ps_server *server, dml__ps_guest *guest, const dml__ps_pull *pull,
                               int which)
{
    const size_t left = pull->end - guest->sent, n = left < server->link.piece ? left : server->link.piece;
    const dml_dtype dtype = pull->vector ? DML_F32 : server->link.pull_dtype;
    const float *from = server->vectors + (size_t)pull->vector * server->count + guest->sent;
    if (dtype == DML_F32)
        memcpy(guest->down[which], from, n * sizeof *from);
    else
        dml__narrow_line(server->adding.isa, dtype, n, from, (uint16_t *)(void *)guest->down[which]);
    guest->sent += n;
    dml__ps_started(server, dml__ps_request(server, guest, DML__PS_FOR_DOWN + which),
                    dml_comm_send_start(server->link.all, guest->down[which], n, dtype,
                                        (int)(guest - server->guests), DML__PS_TAG_DOWN));
}

/* As far as a worker's pulls can be answered. */
static void dml__ps_answer(dml__ps_server *server, dml__ps_guest *guest)
{
    while (guest->present && guest->pull_count && server->status == DML_OK) {
        const dml__ps_pull *pull = &guest->pulls[guest->first_pull];
        if (!guest->answering) {
            if (*dml__ps_request(server, guest, DML__PS_FOR_ANSWER) || !dml__ps_may_answer(server, pull))
                return;
            dml__ps_begin_answer(server, guest, pull);
        }
        for (int i = 0; i < 2 && guest->sent < pull->end; i++)
            if (!*dml__ps_request(server, guest, DML__PS_FOR_DOWN + i))
                dml__ps_send_piece(server, guest, pull, i);
        if (guest->sent < pull->end) return;
        guest->answering = false;
        guest->first_pull = (guest->first_pull + 1) % DML__PS_MOST_PULLS;
        guest->pull_count--;
    }
}

static void dml__ps_queue(dml__ps_server *server, dml__ps_guest *guest, int vector, size_t begin, size_t end,
                          double value)
{
    dml__ps_pull *pull = &guest->pulls[(guest->first_pull + guest->pull_count++) % DML__PS_MOST_PULLS];
    pull->vector = vector;
    pull->begin = begin;
    pull->end = end;
    pull->clock = (uint64_t)guest->header[DML__PS_AT];
    pull->value = value;
    dml__ps_answer(server, guest);
}

/* ---- work on vectors ---- */

static double dml__ps_dot_of(size_t n, const float *x, const float *y)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)y[i];
    return sum;
}

static double dml__ps_largest_of(size_t n, const float *x)
{
    float largest = 0;
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(x[i]) <= largest)) largest = fabsf(x[i]);
    return (double)largest;
}

static void dml__ps_work(dml__ps_server *server, dml__ps_guest *guest)
{
    const int64_t *header = guest->header;
    const size_t n = server->count;
    const float *x = server->vectors + (size_t)header[DML__PS_VECTOR] * n;
    float *y = server->vectors + (size_t)header[DML__PS_BEGIN] * n;
    const float alpha = (float)dml__ps_real(header[DML__PS_REAL]),
                beta = (float)dml__ps_real(header[DML__PS_REAL_2]);
    double value = 0;
    if (header[DML__PS_KIND] == DML__PS_DOT) value = dml__ps_dot_of(n, x, y);
    if (header[DML__PS_KIND] == DML__PS_LARGEST) value = dml__ps_largest_of(n, x);
    if (header[DML__PS_KIND] == DML__PS_AXPBY) /* of what isn't a number times 0 nothing is left */
        for (size_t i = 0; i < n; i++)
            y[i] = (alpha == 0.0f ? 0.0f : alpha * x[i]) + (beta == 0.0f ? 0.0f : beta * y[i]);
    dml__ps_queue(server, guest, 0, 0, 0, value);
}

/* ---- clocks ---- */

static void dml__ps_go_on(dml__ps_server *server, dml__ps_guest *guest);

/* What waited for others may go now. */
static void dml__ps_release(dml__ps_server *server)
{
    for (int w = 0; w < server->workers && server->status == DML_OK; w++) {
        dml__ps_guest *guest = &server->guests[w];
        dml__ps_answer(server, guest);
        if (guest->present && guest->held) dml__ps_go_on(server, guest);
    }
}

static bool dml__ps_clock_is_complete(const dml__ps_server *server)
{
    int ticked = 0;
    bool all = true;
    for (int w = 0; w < server->workers; w++) {
        const dml__ps_guest *guest = &server->guests[w];
        ticked += guest->ticked;
        if (guest->present && !guest->ticked) all = false;
    }
    return ticked >= server->needed || (ticked > 0 && all);
}

static void dml__ps_end_clocks(dml__ps_server *server)
{
    if (server->consistency == DML_PS_SYNCHRONOUS && dml__ps_clock_is_complete(server)) {
        for (int w = 0; w < server->workers; w++) server->guests[w].ticked = false;
        dml__ps_apply_clock(server);
    }
    dml__ps_release(server);
}

static void dml__ps_tick(dml__ps_server *server, dml__ps_guest *guest)
{
    const uint64_t clock = (uint64_t)guest->header[DML__PS_AT];
    guest->clock = clock + 1;
    if (server->consistency != DML_PS_SYNCHRONOUS)
        server->report.clocks++;
    else if (clock == server->applied)
        guest->ticked = true;
    server->rate = dml__ps_real(guest->header[DML__PS_REAL_2]);
    dml__ps_listen(server, guest);
    dml__ps_end_clocks(server);
}

/* What a worker that died had pushed of its clock stays in the sum, with its weight. */
static void dml__ps_lose(dml__ps_server *server, dml__ps_guest *guest)
{
    if (!guest->present) return;
    guest->present = false;
    guest->pull_count = 0;
    if (server->report.first_lost < 0) server->report.first_lost = (int)(guest - server->guests);
    server->report.lost++;
    dml__ps_end_clocks(server);
}

/* ---- headers ---- */

static bool dml__ps_is_sound(const dml__ps_server *server, const int64_t *header)
{
    const int64_t kind = header[DML__PS_KIND], vectors = server->link.terms[DML__PS_VECTORS];
    const int64_t begin = header[DML__PS_BEGIN], end = header[DML__PS_END], sent = header[DML__PS_SENT];
    if (kind <= DML__PS_NONE || kind >= DML__PS_KINDS || header[DML__PS_VECTOR] < 0 ||
        header[DML__PS_VECTOR] > vectors)
        return false;
    if (kind == DML__PS_AXPBY || kind == DML__PS_DOT || kind == DML__PS_LARGEST)
        return begin >= 0 && begin <= vectors;
    if (kind != DML__PS_PUSH && kind != DML__PS_PULL) return true;
    const int64_t piece = (int64_t)server->link.piece;
    return begin >= (int64_t)server->link.begin && begin < end && end <= (int64_t)server->link.end &&
           (sent == -1 || (sent >= 0 && sent <= end - begin && end - begin <= piece));
}

/* Whether it is of a clock that isn't being summed yet. */
static bool dml__ps_is_early(const dml__ps_server *server, const int64_t *header)
{
    const bool counts = header[DML__PS_KIND] == DML__PS_CLOCK ||
                        (header[DML__PS_KIND] == DML__PS_PUSH && !header[DML__PS_VECTOR]);
    return server->consistency == DML_PS_SYNCHRONOUS && counts &&
           (uint64_t)header[DML__PS_AT] > server->applied;
}

static void dml__ps_go_on(dml__ps_server *server, dml__ps_guest *guest)
{
    const int64_t *header = guest->header;
    const size_t first = server->link.begin;
    guest->held = dml__ps_is_early(server, header) || guest->pull_count == DML__PS_MOST_PULLS;
    if (guest->held) return;
    switch (header[DML__PS_KIND]) {
    case DML__PS_PUSH: dml__ps_begin_push(server, guest); return;
    case DML__PS_CLOCK: dml__ps_tick(server, guest); return;
    case DML__PS_LEAVE:
        guest->present = false;
        dml__ps_end_clocks(server);
        return;
    case DML__PS_PULL:
        server->report.pulls++;
        dml__ps_queue(server, guest, (int)header[DML__PS_VECTOR], (size_t)header[DML__PS_BEGIN] - first,
                      (size_t)header[DML__PS_END] - first, 0);
        break;
    default: dml__ps_work(server, guest); break;
    }
    dml__ps_listen(server, guest);
}

/* ---- all of it ---- */

static void dml__ps_came(dml__ps_server *server, int index, bool lost)
{
    dml__ps_guest *guest = &server->guests[index / DML__PS_FOR];
    const int which = index % DML__PS_FOR;
    if (lost) {
        dml__ps_lose(server, guest);
    } else if (!guest->present) {
        return; /* what is left of one that was lost */
    } else if (which == DML__PS_FOR_HEADER) {
        if (dml__ps_is_sound(server, guest->header))
            dml__ps_go_on(server, guest);
        else
            dml__ps_note(server, dml__ps_fail(server->link.all, DML_ERROR_FORMAT,
                                              "a request of worker %d that makes no sense",
                                              (int)(guest - server->guests)));
    } else if (which == DML__PS_FOR_UP || which == DML__PS_FOR_UP_2) {
        dml__ps_piece_came(server, guest, which - DML__PS_FOR_UP);
    } else {
        dml__ps_answer(server, guest);
        if (guest->held) dml__ps_go_on(server, guest);
    }
}

static void dml__ps_give_up(dml__ps_server *server, double idle)
{
    int first = 0;
    while (first < server->workers - 1 && !server->guests[first].present) first++;
    dml__ps_note(server,
                 dml__ps_fail(server->link.all, DML_ERROR_TIMEOUT,
                              "no worker has asked for anything for %g s (idle_s); of the %d that are "
                              "left, worker %d is the first: it is frozen, or needs longer for a step",
                              idle, dml__ps_living(server), first));
}

static void dml__ps_run(dml__ps_server *server)
{
    const double idle = dml__ps_real(server->link.terms[DML__PS_IDLE]);
    const int requests = server->workers * DML__PS_FOR;
    dml_message message;
    for (int w = 0; w < server->workers; w++) {
        server->guests[w].present = true;
        dml__ps_listen(server, &server->guests[w]);
    }
    while (server->status == DML_OK) {
        if (!dml__ps_any_within(server->link.all, server->requests, requests, idle)) {
            dml__ps_give_up(server, idle);
            break;
        }
        const int index = dml_comm_wait_any_message(server->link.all, server->requests, requests, &message);
        if (index < 0) break; /* all have left, or the job has failed */
        dml__ps_came(server, index, message.source < 0);
    }
    dml__ps_note(server, dml_comm_status(server->link.all));
    if (server->report.lost == server->workers)
        dml__ps_note(server, dml__ps_fail(server->link.all, DML_ERROR_PEER, "all workers of the job died"));
}

static bool dml__ps_equip(dml__ps_server *server)
{
    dml__memory *memory = &server->memory;
    const size_t workers = (size_t)server->workers, n = server->count;
    const size_t vectors = 1 + (size_t)server->link.terms[DML__PS_VECTORS];
    const size_t piece = (server->link.piece * sizeof(float) + 63) / 64 * 64;
    if (n > SIZE_MAX / 8 / vectors) return false;
    server->vectors = (float *)dml__allocate_array(memory, n * vectors, sizeof(float));
    server->guests = (dml__ps_guest *)dml__allocate_array(memory, workers, sizeof *server->guests);
    server->requests =
        (dml_request **)dml__allocate_array(memory, workers * DML__PS_FOR, sizeof(dml_request *));
    server->stages = (char *)dml__allocate_array(memory, workers * 4, piece);
    server->line = (float *)dml__allocate(memory, piece);
    bool got = server->vectors && server->guests && server->requests && server->stages && server->line;
    if (got && server->consistency == DML_PS_SYNCHRONOUS) {
        server->sum = (float *)dml__allocate_array(memory, n, sizeof(float));
        got = server->sum && dml__ps_weights_make(&server->weights, memory, n);
    }
    for (size_t w = 0; got && w < workers; w++)
        for (size_t i = 0; i < 2; i++) {
            server->guests[w].up[i] = server->stages + (4 * w + i) * piece;
            server->guests[w].down[i] = server->stages + (4 * w + 2 + i) * piece;
        }
    return got;
}

static void dml__ps_unequip(dml__ps_server *server)
{
    dml__memory *memory = &server->memory;
    void *const parts[] = { server->vectors, server->guests, server->requests,
                            server->stages,  server->line,   server->sum };
    dml__ps_part(&server->link, memory);
    dml__ps_weights_release(&server->weights, memory);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) dml__release(memory, parts[i]);
}

/* A rule that knows nothing of the setup would apply pushes in a way that the workers don't mean. */
static dml_status dml__ps_prepare_rule(dml__ps_server *server)
{
    const size_t setup = (size_t)server->link.terms[DML__PS_SETUP];
    dml_status status = setup ? DML_ERROR_MISMATCH : DML_OK;
    if (server->rule.prepare)
        status = server->rule.prepare(server->rule.user, server->link.begin, server->count,
                                      server->link.setup, setup, server->vectors + server->count);
    if (status == DML_OK) return DML_OK;
    if (status != DML_ERROR_MISMATCH)
        return dml__ps_fail(server->link.all, status, "the server's rule can't be prepared: %s",
                            dml_status_string(status));
    return dml__ps_fail(server->link.all, status,
                        "the server has another rule than the workers, who sent it a setup of %zu numbers: "
                        "dml_parameter_server_serve is for trainers under dml_parameter_server_sync or "
                        "dml_downpour_sync, dml_ps_serve for all else; all ranks need the same",
                        setup);
}

static dml_status dml__ps_prepare(dml__ps_server *server)
{
    dml_comm *all = server->link.all;
    server->adding.dtype = DML_F32;
    server->adding.op = DML_SUM;
    server->adding.isa = all->job->isa;
    server->consistency = (dml_ps_consistency)server->link.terms[DML__PS_CONSISTENCY];
    server->count = server->link.end - server->link.begin;
    server->needed = server->workers - (int)server->link.terms[DML__PS_BACKUP];
    if (server->workers > all->job->max_requests / DML__PS_FOR)
        return dml__ps_fail(all, DML_ERROR_ARGUMENT,
                            "a server of %d workers needs a communicator with max_requests of %d; it has %d",
                            server->workers, server->workers * DML__PS_FOR, all->job->max_requests);
    if (!dml__ps_equip(server))
        return dml__ps_fail(all, DML_ERROR_MEMORY, "no memory for a parameter server");
    dml_status status = dml_comm_scatterv(all, NULL, server->link.counts, NULL, DML_F32, server->vectors, 0);
    if (status == DML_OK) status = dml__ps_prepare_rule(server);
    return status == DML_OK ? dml_comm_barrier(all) : status; /* where the workers hear of it */
}

DML_API dml_status dml_ps_serve(dml_comm *comm, const dml_cluster *given, const dml_ps_options *options,
                                dml_ps_report *report)
{
    const dml_cluster own = dml__cluster_given(given), *const cluster = &own;
    dml_ps_options o;
    dml__ps_server server;
    memset(&o, 0, sizeof o);
    memset(&server, 0, sizeof server);
    if (options) o = *options;
    if (report) memset(report, 0, sizeof *report);
    server.report.first_lost = -1;
    server.rule = o.rule;
    server.workers = cluster->workers;
    dml__memory_init(&server.memory, &o.allocator, NULL, 0);
    if (dml_comm_status(comm)) return dml_comm_status(comm);
    if (cluster->status == DML_OK && !dml_cluster_is_server(cluster))
        return dml__ps_fail(comm, DML_ERROR_ARGUMENT, "a worker called dml_ps_serve");
    server.status = dml__ps_meet(&server.link, &server.memory, comm, cluster, 0, &o);
    if (server.status == DML_OK) server.status = dml__ps_prepare(&server);
    if (server.status == DML_OK) {
        dml_comm_outlive(comm);
        dml__ps_run(&server);
    }
    dml__ps_unequip(&server);
    if (report) *report = server.report;
    return server.status;
}

#endif
