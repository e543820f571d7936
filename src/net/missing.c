#ifndef DML_NET_MISSING_C
#define DML_NET_MISSING_C

#include "net/meeting.h"

#include <stdio.h>
#include <string.h>

/* Who is missing when a rendezvous has taken too long, and why. */

/* "rank 2" or "ranks 2, 3, 5 and more": those without a connection. The first of them, or -1. */
static int dml__missing_ranks(const dml__meeting *meeting, char *text, size_t bytes)
{
    int first = -1, count = 0;
    char list[96] = "";
    for (int rank = 0; rank < meeting->me.world; rank++) {
        const bool complete = meeting->tcp->fd[DML__CHANNEL_CONTROL][rank] >= 0 &&
                              (meeting->tcp->fd[DML__CHANNEL_DATA][rank] >= 0 || !meeting->addresses_done);
        if (rank == meeting->me.rank || complete) continue;
        if (first < 0) first = rank;
        const size_t used = strlen(list);
        if (count < 8) snprintf(list + used, sizeof list - used, "%s%d", count ? ", " : "", rank);
        count++;
    }
    snprintf(text, bytes, "%s %s%s", count == 1 ? "rank" : "ranks", list, count > 8 ? " and more" : "");
    return first;
}

DML__LOCAL void dml__meet_too_late(dml__meeting *meeting)
{
    const int rank = meeting->me.rank, world = meeting->me.world, strangers = *meeting->user->strangers;
    const double timeout = meeting->settings->timeout;
    char missing[128], at[DML__ADDRESS_TEXT], turned_away[320] = "";
    const int first = dml__missing_ranks(meeting, missing, sizeof missing);
    if (strangers)
        snprintf(turned_away, sizeof turned_away, "; %d connection%s turned away%s%s", strangers,
                 strangers == 1 ? " was" : "s were", meeting->note[0] ? ", the last because " : "",
                 meeting->note);
    if (meeting->shortage) {
        dml__tcp_fail(
            meeting->tcp, rank, DML_ERROR_NETWORK,
            "rank %d of %d could not connect with %s: %s; it needs %d more file descriptors (ulimit "
            "-n) or so",
            rank, world, missing, strerror(meeting->shortage), 2 * meeting->to_connect + 8);
    } else if (rank == 0 && !meeting->addresses_done) {
        dml__tcp_fail(meeting->tcp, first, DML_ERROR_TIMEOUT, "%s of %d did not arrive at %s within %g s%s",
                      missing, world, dml__address_text(&meeting->listens_at, at), timeout, turned_away);
    } else if (rank && !meeting->me.has_session) {
        const dml__handshake *shake = &meeting->shakes[DML__CHANNEL_CONTROL];
        const bool tried = shake->address.bytes > 0;
        const bool silent = shake->stage != DML__SHAKE_RESTING && shake->stage != DML__SHAKE_CONNECTING;
        dml__tcp_fail(meeting->tcp, 0, DML_ERROR_TIMEOUT,
                      "rank %d of %d could not reach rank 0 at %s within %g s: %s%s%s", rank, world,
                      dml__address_text(tried ? &shake->address : &meeting->masters[0], at), timeout,
                      !tried   ? "it had no time left to try"
                      : silent ? "who listens there doesn't answer"
                      : shake->error
                          ? strerror(shake->error)
                          : "who listens there hung up, and is no rank of this job or gave up itself",
                      meeting->note[0] ? "; before, it was refused: " : "", meeting->note);
    } else if (!meeting->addresses_done) {
        /* (Whom it waits for rank 0 knows.) */
        dml__tcp_fail(meeting->tcp, -1, DML_ERROR_TIMEOUT,
                      "rank %d of %d gave up after %g s: rank 0 was still waiting for other ranks, or is "
                      "frozen",
                      rank, world, timeout);
    } else {
        dml__tcp_fail(meeting->tcp, first, DML_ERROR_TIMEOUT,
                      "%s of %d did not connect with rank %d within %g s%s", missing, world, rank, timeout,
                      turned_away);
    }
}

#endif
