#ifndef DML_DIST_PARAMETER_SERVER_SERVE_C
#define DML_DIST_PARAMETER_SERVER_SERVE_C

#include "dist/parameter_server.h"

#include "comm/job.h"
#include "dist/cluster_internal.h"
#include "dist/parameter_server_server.h"

/* The servers' side: one thread that waits for whatever comes next, of any worker. What it copies it copies
   by pieces that stay in the caches between the wire and the vector. */

DML__LOCAL void dml__ps_note(dml__ps_server *server, dml_status status)
{
    if (server->status == DML_OK) server->status = status;
}

DML__LOCAL int dml__ps_living(const dml__ps_server *server)
{
    int living = 0;
    for (int w = 0; w < server->workers; w++) living += server->guests[w].present;
    return living;
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

/* Nobody waits for a worker that went on at a later clock of another server: it won't end this one. Who ended
   it there may have died before doing so here; then it has what came, which may be nothing. */
static bool dml__ps_clock_is_complete(const dml__ps_server *server)
{
    int ticked = 0, beyond = 0, behind = 0;
    for (int w = 0; w < server->workers; w++) {
        const dml__ps_guest *guest = &server->guests[w];
        ticked += guest->ticked;
        beyond += guest->clock > server->applied;
        behind += guest->present && guest->clock <= server->applied;
    }
    return ticked >= server->needed || (beyond > 0 && behind == 0);
}

static void dml__ps_end_clocks(dml__ps_server *server)
{
    while (server->consistency == DML_PS_SYNCHRONOUS && dml__ps_clock_is_complete(server)) {
        for (int w = server->workers - 1; w >= 0; w--) {
            if (server->guests[w].ticked) server->rate = server->guests[w].rate;
            server->guests[w].ticked = false;
        }
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
    guest->rate = dml__ps_real(guest->header[DML__PS_REAL_2]);
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

/* No server is so many clocks behind another. */
#define DML__PS_MOST_AHEAD (1 << 20)

static bool dml__ps_is_sound(const dml__ps_server *server, const int64_t *header)
{
    const int64_t kind = header[DML__PS_KIND], vectors = server->link.terms[DML__PS_VECTORS];
    const int64_t begin = header[DML__PS_BEGIN], end = header[DML__PS_END], sent = header[DML__PS_SENT];
    if (kind <= DML__PS_NONE || kind >= DML__PS_KINDS || header[DML__PS_VECTOR] < 0 ||
        header[DML__PS_VECTOR] > vectors)
        return false;
    if (server->consistency == DML_PS_SYNCHRONOUS &&
        (uint64_t)header[DML__PS_AT] > server->applied + DML__PS_MOST_AHEAD)
        return false;
    if (kind == DML__PS_AXPBY || kind == DML__PS_DOT || kind == DML__PS_LARGEST)
        return begin >= 0 && begin <= vectors;
    if (kind != DML__PS_PUSH && kind != DML__PS_PULL) return true;
    const int64_t piece = (int64_t)server->link.longest;
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
    default: dml__ps_queue(server, guest, 0, 0, 0, dml__ps_work(server, header)); break;
    }
    dml__ps_listen(server, guest);
}

/* ---- all of it ---- */

/* The worker may have gone on at a clock that another server told it. */
static void dml__ps_header_came(dml__ps_server *server, dml__ps_guest *guest)
{
    const uint64_t clock = (uint64_t)guest->header[DML__PS_AT];
    if (clock > guest->clock) {
        guest->clock = clock;
        dml__ps_end_clocks(server);
    }
    dml__ps_go_on(server, guest);
}

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
            dml__ps_header_came(server, guest);
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

/* The first worker that is left and isn't among those who have answered (NULL: nobody has); -1: none. */
static int dml__ps_first_left(const dml__ps_server *server, const bool *answered)
{
    for (int w = 0; w < server->workers; w++)
        if (server->guests[w].present && !(answered && answered[w])) return w;
    return -1;
}

/* Who answers waits for another worker, or for this server. */
static void dml__ps_give_up(dml__ps_server *server, double idle)
{
    dml_comm *all = server->link.all;
    bool *answered =
        (bool *)dml__allocate_array(&server->memory, (size_t)dml_comm_world_size(all), sizeof *answered);
    if (answered) dml__ask_ranks(all, answered);
    const int silent = answered ? dml__ps_first_left(server, answered) : -1;
    const int first = silent < 0 ? dml__ps_first_left(server, NULL) : silent;
    dml__release(&server->memory, answered);
    dml__ps_note(
        server, dml__ps_blame(all, first < 0 ? all->rank : first, DML_ERROR_TIMEOUT,
                              "no worker has asked for anything for %g s (idle_s); of the %d that are left, "
                              "worker %d is the first%s: it is frozen, or needs longer for a step, for which "
                              "options have a larger idle_s",
                              idle, dml__ps_living(server), first, silent < 0 ? "" : " that doesn't answer"));
}

static void dml__ps_run(dml__ps_server *server)
{
    const double asked = dml__ps_real(server->link.terms[DML__PS_IDLE]);
    const double idle = asked > 0 ? asked : DML__PS_IDLE_TIMEOUTS * server->link.all->job->timeout;
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
    const size_t piece = (server->link.longest * sizeof(float) + 63) / 64 * 64;
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
    server.status = dml__ps_meet(&server.link, &server.memory, comm, cluster, 0, &o, 0);
    if (server.status == DML_OK) server.status = dml__ps_prepare(&server);
    if (server.status == DML_OK) {
        dml_comm_outlive(server.link.all);
        dml__ps_run(&server);
    }
    dml__ps_unequip(&server);
    if (report) *report = server.report;
    return server.status;
}

#endif
