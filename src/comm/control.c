#ifndef DML_COMM_CONTROL_C
#define DML_COMM_CONTROL_C

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/comm_internal.h"

/* How a job ends together. A rank that fails tells all others who is to blame and why before it returns, and
   they fail with the same sentence. A rank that dies is seen by all, as its control connections end. A rank
   that freezes is found at the first deadline: whoever's deadline that is announces whom it waits for, all
   who wait answer with theirs, and the chain of who waits for whom ends at the rank that says nothing. */

static dml__control dml__control_message(dml__control_kind kind)
{
    dml__control control;
    memset(&control, 0, sizeof control);
    control.kind = kind;
    return control;
}

DML__LOCAL bool dml__send_control(dml_comm *comm, int rank, const dml__control *control, double until)
{
    uint8_t bytes[DML__CONTROL_BYTES];
    size_t done = 0;
    dml__encode_control(control, bytes);
    while (done < sizeof bytes) {
        dml__span span;
        span.data = bytes + done;
        span.bytes = sizeof bytes - done;
        const ptrdiff_t sent =
            comm->transport->calls->send(comm->transport, rank, DML__CHANNEL_CONTROL, &span, 1);
        if (sent == DML__GONE) return false;
        done += (size_t)sent;
        if (sent) continue;
        /* No room for 512 bytes: the other end hasn't read for long. Looked at again every millisecond. */
        if (dml_seconds() >= until) return false;
        comm->transport->calls->wait(comm->transport, -1, -1, 1e-3);
    }
    return true;
}

static void dml__tell_all(dml_comm *comm, const dml__control *control)
{
    for (int rank = 0; rank < comm->world; rank++)
        if (rank != comm->rank && !comm->peers[rank].gone) dml__send_control(comm, rank, control, 0);
}

DML__LOCAL dml_status dml__comm_fail(dml_comm *comm, int culprit, dml_status status, const char *format, ...)
{
    char text[DML__CONTROL_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);

    dml__mutex_lock(&comm->mutex);
    dml__fail(&comm->error, status, "%s", text);
    status = comm->error.status;
    dml__mutex_unlock(&comm->mutex);
    if (comm->aborted) return status;
    comm->aborted = true;
    dml__log(&comm->logger, DML_LOG_ERROR, "%s", text);
    if (!comm->transport) return status;
    dml__control control = dml__control_message(DML__ABORT);
    control.rank = culprit;
    control.status = status;
    memcpy(control.text, text, sizeof text);
    dml__tell_all(comm, &control);
    return status;
}

DML__LOCAL void dml__say_goodbye(dml_comm *comm)
{
    const dml__control control = dml__control_message(DML__GOODBYE);
    dml__tell_all(comm, &control);
}

static dml_status dml__take_control(dml_comm *comm, int rank, const dml__control *control)
{
    dml__peer *peer = &comm->peers[rank];
    switch (control->kind) {
    case DML__ABORT:
        return dml__comm_fail(comm, control->rank, control->status ? control->status : DML_ERROR_PEER, "%s",
                              control->text);
    case DML__WAITING:
        if (control->rank < 0 || control->rank >= comm->world) break;
        peer->gave_up = true;
        peer->waits_for = control->rank;
        peer->waits_in = control->signature;
        comm->somebody_gave_up = true;
        return DML_OK;
    case DML__GOODBYE: peer->goodbye = true; return DML_OK;
    case DML__ADDRESSES:
        if (rank == 0 && comm->take_addresses && comm->take_addresses(comm->take_addresses_user, control))
            return DML_OK;
        break;
    }
    return dml__comm_fail(comm, rank, DML_ERROR_FORMAT, "rank %d sent rank %d a message that makes no sense",
                          rank, comm->rank);
}

static dml_status dml__read_control_of(dml_comm *comm, int rank)
{
    dml__peer *peer = &comm->peers[rank];
    for (;;) {
        dml__span span;
        span.data = peer->control + peer->control_bytes;
        span.bytes = sizeof peer->control - peer->control_bytes;
        const ptrdiff_t got =
            comm->transport->calls->receive(comm->transport, rank, DML__CHANNEL_CONTROL, &span, 1);
        if (got == 0) return DML_OK;
        if (got == DML__GONE) {
            peer->gone = true;
            if (peer->goodbye) return DML_OK;
            return dml__comm_fail(comm, rank, DML_ERROR_PEER,
                                  "rank %d of %d died: its connection ended without a goodbye", rank,
                                  comm->world);
        }
        peer->control_bytes += (size_t)got;
        if (peer->control_bytes < sizeof peer->control) continue;
        peer->control_bytes = 0;
        dml__control control;
        if (!dml__decode_control(peer->control, &control))
            return dml__comm_fail(comm, rank, DML_ERROR_FORMAT,
                                  "rank %d sent rank %d something that is no message of this protocol", rank,
                                  comm->rank);
        const dml_status status = dml__take_control(comm, rank, &control);
        if (status) return status;
    }
}

DML__LOCAL dml_status dml__read_control(dml_comm *comm)
{
    dml_status status = DML_OK;
    for (int rank = 0; rank < comm->world && !status; rank++)
        if (rank != comm->rank && !comm->peers[rank].gone) status = dml__read_control_of(comm, rank);
    return status;
}

/* One wait of at most `seconds`, then what has been heard. */
static dml_status dml__listen_once(dml_comm *comm, int to, int from, double seconds)
{
    const int ready = comm->transport->calls->wait(comm->transport, to, from, seconds);
    if (ready == DML__GONE)
        return dml__comm_fail(comm, comm->rank, DML_ERROR_NETWORK, "rank %d can't wait on its connections",
                              comm->rank);
    return ready & DML__READY_CONTROL ? dml__read_control(comm) : DML_OK;
}

/* Follows who waits for whom from this rank on, and blames the end of the chain. */
static dml_status dml__blame(dml_comm *comm, const dml__signature *signature, int waits_for)
{
    char mine[DML__SIGNATURE_TEXT], other[DML__SIGNATURE_TEXT];
    int culprit = waits_for, steps = 0;
    while (culprit != comm->rank && comm->peers[culprit].gave_up && steps++ < comm->world)
        culprit = comm->peers[culprit].waits_for;
    if (culprit != comm->rank && !comm->peers[culprit].gave_up)
        return dml__comm_fail(
            comm, culprit, DML_ERROR_TIMEOUT,
            "rank %d of %d took no part in %s within %g s: it is frozen, busy with something "
            "else or unreachable",
            culprit, comm->world, dml__signature_text(signature, mine), comm->timeout);
    /* All wait in a circle: because of different calls, or because the network is slow. */
    for (int rank = 0; rank < comm->world; rank++) {
        const dml__peer *peer = &comm->peers[rank];
        if (rank != comm->rank && peer->gave_up && peer->waits_in.operation != signature->operation)
            return dml__comm_fail(comm, rank, DML_ERROR_MISMATCH,
                                  "rank %d called %s while rank %d called %s: they wait for each other", rank,
                                  dml__signature_text(&peer->waits_in, other), comm->rank,
                                  dml__signature_text(signature, mine));
    }
    return dml__comm_fail(
        comm, waits_for, DML_ERROR_TIMEOUT,
        "%s did not end within %g s, though no rank is missing: ranks %d and %d and others wait "
        "for each other; if the network is just slow, raise timeout_s",
        dml__signature_text(signature, mine), comm->timeout, comm->rank, waits_for);
}

static bool dml__all_gave_up(const dml_comm *comm)
{
    for (int rank = 0; rank < comm->world; rank++)
        if (rank != comm->rank && !comm->peers[rank].gave_up) return false;
    return true;
}

/* This rank's deadline, or another's, has passed. */
static dml_status dml__give_up(dml_comm *comm, const dml__signature *signature, int waits_for)
{
    dml__control control = dml__control_message(DML__WAITING);
    control.rank = waits_for;
    control.signature = *signature;
    dml__tell_all(comm, &control);
    const double until = dml_seconds() + comm->grace;
    dml_status status = DML_OK;
    for (double left = comm->grace; left > 0 && !status && !dml__all_gave_up(comm);
         left = until - dml_seconds())
        status = dml__listen_once(comm, -1, -1, left);
    return status ? status : dml__blame(comm, signature, waits_for);
}

DML__LOCAL dml_status dml__comm_wait_ready(dml_comm *comm, const dml__signature *signature, int to, int from)
{
    /* What hasn't come is waited for before what can't go: on a ring either leads to the same rank. */
    const int waits_for = from >= 0 ? from : to;
    const double left = comm->deadline - dml_seconds();
    if (left <= 0 || comm->somebody_gave_up) return dml__give_up(comm, signature, waits_for);
    return dml__listen_once(comm, to, from, left);
}

DML__LOCAL dml_status dml__data_gone(dml_comm *comm, const dml__signature *signature, int rank)
{
    char text[DML__SIGNATURE_TEXT];
    const double until = dml_seconds() + comm->grace;
    dml_status status = dml__read_control(comm);
    /* Whoever closes a data connection has said why on the control connection, or is dead and that ends too.
     */
    for (double left = comm->grace; left > 0 && !status && !comm->peers[rank].gone;
         left = until - dml_seconds())
        status = dml__listen_once(comm, -1, -1, left);
    if (status) return status;
    return dml__comm_fail(comm, rank, DML_ERROR_PEER,
                          comm->peers[rank].goodbye
                              ? "rank %d closed its communicator while rank %d was in %s"
                              : "rank %d lost its connection to rank %d in %s",
                          rank, comm->rank, dml__signature_text(signature, text));
}

#endif
