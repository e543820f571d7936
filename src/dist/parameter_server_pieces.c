#ifndef DML_DIST_PARAMETER_SERVER_PIECES_C
#define DML_DIST_PARAMETER_SERVER_PIECES_C

#include "dist/parameter_server_server.h"

#include "base/float16.h"

static dml_request **dml__ps_request(dml__ps_server *server, const dml__ps_guest *guest, int which)
{
    return &server->requests[(guest - server->guests) * DML__PS_FOR + which];
}

static void dml__ps_started(dml__ps_server *server, const dml__ps_guest *guest, int which,
                            dml_request *request)
{
    *dml__ps_request(server, guest, which) = request;
    if (!request) dml__ps_note(server, dml_comm_status(server->link.all));
}

DML__LOCAL void dml__ps_listen(dml__ps_server *server, dml__ps_guest *guest)
{
    guest->header[DML__PS_KIND] = DML__PS_NONE;
    dml__ps_started(server, guest, DML__PS_FOR_HEADER,
                    dml_comm_receive_start(server->link.all, guest->header, DML__PS_HEADER, DML_I64,
                                           (int)(guest - server->guests), DML__PS_TAG_HEADER));
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
    const size_t at = guest->asked, first = server->link.begin;
    if (at == guest->push_end) return;
    const size_t end = dml__ps_push_piece(&server->link, first + at, first + guest->push_end) - first;
    guest->piece_begin[which] = at;
    guest->piece_end[which] = guest->asked = end;
    dml__ps_started(server, guest, DML__PS_FOR_UP + which,
                    dml_comm_receive_start(server->link.all, guest->up[which], end - at,
                                           dml__ps_dtype_of(server, guest), (int)(guest - server->guests),
                                           DML__PS_TAG_UP));
}

DML__LOCAL void dml__ps_begin_push(dml__ps_server *server, dml__ps_guest *guest)
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
        server, guest, DML__PS_FOR_UP,
        dml_comm_receive_start(server->link.all, guest->up[0], sent, DML_I32, rank, DML__PS_TAG_PLACES));
    dml__ps_started(server, guest, DML__PS_FOR_UP_2,
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

DML__LOCAL void dml__ps_piece_came(dml__ps_server *server, dml__ps_guest *guest, int which)
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
    dml__ps_started(server, guest, DML__PS_FOR_ANSWER,
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
    dml__ps_started(server, guest, DML__PS_FOR_DOWN + which,
                    dml_comm_send_start(server->link.all, guest->down[which], n, dtype,
                                        (int)(guest - server->guests), DML__PS_TAG_DOWN));
}

DML__LOCAL void dml__ps_answer(dml__ps_server *server, dml__ps_guest *guest)
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

DML__LOCAL void dml__ps_queue(dml__ps_server *server, dml__ps_guest *guest, int vector, size_t begin,
                              size_t end, double value)
{
    dml__ps_pull *pull = &guest->pulls[(guest->first_pull + guest->pull_count++) % DML__PS_MOST_PULLS];
    pull->vector = vector;
    pull->begin = begin;
    pull->end = end;
    pull->clock = (uint64_t)guest->header[DML__PS_AT];
    pull->value = value;
    dml__ps_answer(server, guest);
}

#endif
