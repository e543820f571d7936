#ifndef DML_NET_RENDEZVOUS_C
#define DML_NET_RENDEZVOUS_C

#include "base/clock.h" /* first of the system's: it asks for POSIX */

#include <errno.h>
#include <string.h>

#include "net/meeting.h"

/* How the ranks meet:

     1. Rank 0 listens where all look for it. Each other rank connects to it (again and again, since ranks
   start in any order), and says in its hello on which port it listens itself.
     2. When all have come, rank 0 tells each rank the addresses of the ranks below it.
     3. Each rank connects to all ranks below it, twice (control and data), and is connected to by all above.

   Who comes to rank 0 with other settings than its own, or as a rank that has come already, isn't answered
   before the others have come too, or haven't for a while: then rank 0 says to all who has what.

   Where that fails, rank 0 goes on taking in who comes to it for a short while, to say why: they would find
   nobody else who knows. And a rank waits as long for welcomes that may be on their way: who sent one counts
   it in, and would see it leave without a word.

   One loop around one poll() does it all: listening, trying, and any number of handshakes side by side, so
   that nobody who comes to a port can hold up the others. */

#define DML__VISITORS 256       /* unproven connections beyond those that the job needs */
#define DML__SHORTEST_STAY 0.05 /* seconds that a silent visitor keeps its place if others want it */

/* ---- addresses ---- */

DML__LOCAL bool dml__take_addresses(dml__meeting *meeting, int from, const dml__control *control)
{
    const int below = meeting->me.rank;
    dml__endpoint endpoints[DML__ADDRESSES_AT_ONCE];
    const int count = dml__control_addresses(control, endpoints);
    if (from != 0 || count < 0 || control->rank < 1 || control->rank > below || count > below - control->rank)
        return false;
    for (int i = 0; i < count; i++) {
        dml__address *address = &meeting->addresses[control->rank + i];
        dml__from_endpoint(&endpoints[i], address);
        dml__complete_address(meeting->me.calls, meeting->tcp->fd[DML__CHANNEL_CONTROL][0],
                              &meeting->addresses[0], address);
    }
    meeting->addresses_done = control->rank + count == below;
    return true;
}

/* Takes in what has been heard; false: that has ended the job. */
static bool dml__listen_to_ranks(dml__meeting *meeting)
{
    const dml__net_user *user = meeting->user;
    return user->control(user->user, &meeting->tcp->transport, meeting);
}

/* Rank 0: to each rank the addresses of ranks 1 .. rank - 1, of which rank 1 gets an empty list: go on. */
static bool dml__send_addresses(dml__meeting *meeting)
{
    const int world = meeting->me.world;
    for (int to = 1; to < world; to++) {
        int first = 1;
        do {
            dml__control control;
            dml__endpoint endpoints[DML__ADDRESSES_AT_ONCE];
            int count = 0;
            memset(&control, 0, sizeof control);
            control.kind = DML__ADDRESSES;
            control.rank = first;
            while (first < to && count < DML__ADDRESSES_AT_ONCE)
                dml__to_endpoint(&meeting->addresses[first++], &endpoints[count++]);
            dml__set_control_addresses(&control, endpoints, count);
            if (!dml__send_control(&meeting->tcp->transport, to, &control, meeting->deadline)) {
                if (dml__listen_to_ranks(meeting))
                    dml__tcp_fail(meeting->tcp, to, DML_ERROR_PEER,
                                  "rank %d of %d left during the rendezvous", to, world);
                return false;
            }
        } while (first < to);
    }
    return meeting->addresses_done = true;
}

/* ---- handshakes ---- */

static void dml__close_shake(dml__meeting *meeting, dml__handshake *shake)
{
    if (shake->fd >= 0) meeting->me.calls->close(shake->fd);
    shake->fd = -1;
}

/* dml__identity.taken: connected, or about to be. */
static bool dml__is_taken(void *user, int rank, int channel)
{
    const dml__meeting *meeting = (const dml__meeting *)user;
    if (meeting->tcp->fd[channel][rank] >= 0) return true;
    for (int i = meeting->outgoing; i < meeting->shake_count; i++) {
        const dml__handshake *other = &meeting->shakes[i];
        if (other->stage == DML__SHAKE_SEND_WELCOME && other->rank == rank && other->channel == channel)
            return true;
    }
    return false;
}

/* dml__identity.hold: a rank of this job, as far as anybody knows, that rank 0 takes for a wrong one. */
static bool dml__holds(void *user, const dml__handshake *shake)
{
    dml__meeting *meeting = (dml__meeting *)user;
    const dml__verdict verdict = shake->verdict;
    if (meeting->me.rank || meeting->addresses_done || shake->hello_in.channel != DML__CHANNEL_CONTROL ||
        (verdict != DML__VERDICT_WRONG_WORLD && verdict != DML__VERDICT_RANK_TAKEN &&
         verdict != DML__VERDICT_WRONG_SEGMENT && verdict != DML__VERDICT_WRONG_REQUESTS))
        return false;
    if (meeting->judge_at == 0) meeting->judge_at = dml_seconds() + meeting->settings->grace;
    if (shake->hello_in.world > meeting->expected) meeting->expected = shake->hello_in.world;
    return true;
}

/* A free place for a visitor, or that of the one who has been silent longest, if that was long enough to
   answer. NULL: none now. */
static dml__handshake *dml__place_for_visitor(dml__meeting *meeting, double now)
{
    dml__handshake *oldest = NULL;
    for (int i = meeting->outgoing; i < meeting->shake_count; i++) {
        dml__handshake *shake = &meeting->shakes[i];
        if (shake->stage == DML__SHAKE_UNUSED) return shake;
        if (shake->stage == DML__SHAKE_HELD) continue;
        if (!oldest || shake->deadline < oldest->deadline) oldest = shake;
    }
    const double may_go =
        oldest ? oldest->deadline - meeting->patience + DML__SHORTEST_STAY : meeting->judge_at;
    if (now < may_go) {
        meeting->listen_after = may_go;
        return NULL;
    }
    return oldest;
}

/* Strangers can take what there is for a while, so that it is no end; but nobody else is to blame. */
static bool dml__note_shortage(dml__meeting *meeting, int error)
{
    const bool lacks = error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
    if (!lacks) return false;
    if (!meeting->shortage) meeting->short_since = dml_seconds();
    meeting->shortage = error;
    return true;
}

/* Who lacks something gives up before the others do, who can't know why it doesn't come. */
static double dml__until_too_late(const dml__meeting *meeting)
{
    const double half = meeting->short_since + meeting->settings->timeout / 2;
    return meeting->shortage && half < meeting->deadline ? half : meeting->deadline;
}

/* Until the next try, a little longer each time. */
static void dml__rest(dml__handshake *shake, int error, double now)
{
    shake->stage = DML__SHAKE_RESTING;
    shake->error = error;
    shake->retry_at = now + shake->rest;
    if (shake->rest < 0.25) shake->rest *= 1.5;
}

/* Whether an outgoing connection that rests knows where to go. */
static bool dml__knows_its_way(const dml__meeting *meeting, const dml__handshake *shake)
{
    if (shake->rank > 0) return meeting->addresses_done;
    /* The second connection to rank 0 needs the session, which the first one brings. */
    return shake->channel == DML__CHANNEL_CONTROL || meeting->me.has_session;
}

static void dml__try_connecting(dml__meeting *meeting, dml__handshake *shake, double now)
{
    const bool first = shake->rank == 0 && shake->channel == DML__CHANNEL_CONTROL;
    shake->address =
        first ? meeting->masters[meeting->tries++ % meeting->master_count] : meeting->addresses[shake->rank];
    const int fd = dml__socket_connect(meeting->me.calls, &shake->address,
                                       meeting->bound ? &meeting->bind_address : NULL);
    if (fd < 0) {
        dml__note_shortage(meeting, errno);
        dml__rest(shake, errno, now);
        return;
    }
    dml__begin_connecting(shake, fd);
    shake->deadline = now + meeting->patience;
}

/* Why the job has failed. */
static void dml__tell_connected(dml__meeting *meeting, int rank)
{
    dml__control control;
    meeting->user->words(meeting->user->user, &control);
    dml__send_control(&meeting->tcp->transport, rank, &control, 0);
}

static void dml__connected(dml__meeting *meeting, dml__handshake *shake, bool accepted)
{
    dml__tcp_connected(meeting->tcp, shake->rank, (dml__channel)shake->channel, shake->fd);
    meeting->to_connect--;
    meeting->shortage = 0;
    shake->fd = -1;
    if (accepted) {
        if (shake->channel == DML__CHANNEL_CONTROL) {
            meeting->addresses[shake->rank] = shake->address;
            dml__set_address_port(&meeting->addresses[shake->rank], shake->hello_in.port);
        }
        shake->stage = DML__SHAKE_UNUSED;
    } else if (shake->rank == 0 && shake->channel == DML__CHANNEL_CONTROL) {
        meeting->addresses[0] = shake->address;
        memcpy(meeting->me.session, shake->welcome_in.session, sizeof meeting->me.session);
        meeting->me.has_session = true;
    }
    if (meeting->failed && shake->channel == DML__CHANNEL_CONTROL) dml__tell_connected(meeting, shake->rank);
}

/* Whoever listens there may be a stranger, who goes, or whom the next try doesn't meet. One that has another
   key by mistake isn't kept waiting for long. */
static bool dml__may_be_stranger(dml__meeting *meeting, const dml__handshake *shake, double now)
{
    if (!dml__is_unproved(shake->verdict)) return false;
    if (meeting->doubted_at == 0) meeting->doubted_at = now;
    return now < meeting->doubted_at + meeting->patience;
}

/* False when the refusal ends the job. */
static bool dml__refused(dml__meeting *meeting, dml__handshake *shake, bool accepted, double now)
{
    char text[256];
    dml__refusal_text(shake, &meeting->me, accepted, text, sizeof text);
    dml__close_shake(meeting, shake);
    if (!accepted && dml__may_be_stranger(meeting, shake, now)) {
        if (strcmp(meeting->note, text) != 0)
            dml__log(meeting->user->logger, DML_LOG_WARNING, "refused, and trying again: %s", text);
        memcpy(meeting->note, text, sizeof text);
        dml__rest(shake, 0, now);
        shake->retry_at = now + meeting->patience / 4;
        return true;
    }
    shake->stage = DML__SHAKE_UNUSED;
    if (!accepted || dml__is_job_fault(shake->verdict)) {
        meeting->refused++;
        if (meeting->failed) return true;
        dml__tcp_fail(meeting->tcp, accepted ? shake->hello_in.from : meeting->me.rank, DML_ERROR_MISMATCH,
                      "%s", text);
        return false;
    }
    (*meeting->user->strangers)++;
    memcpy(meeting->note, text, sizeof text);
    dml__log(meeting->user->logger, DML_LOG_WARNING, "a connection was turned away: %s", text);
    return true;
}

/* One that was held hears why the job has failed, as those do that have connected. Its connection is new, so
   all of it goes at once. */
static void dml__tell_held(dml__meeting *meeting, dml__handshake *shake)
{
    dml__answer_held(shake, &meeting->me);
    if (shake->stage == DML__SHAKE_DONE) {
        dml__control control;
        uint8_t bytes[DML__CONTROL_BYTES];
        dml__span span;
        meeting->user->words(meeting->user->user, &control);
        dml__encode_control(&control, bytes);
        span.data = bytes;
        span.bytes = sizeof bytes;
        dml__socket_send(meeting->me.calls, shake->fd, &span, 1);
    }
    dml__close_shake(meeting, shake);
    shake->stage = DML__SHAKE_UNUSED;
    meeting->refused++;
}

static void dml__broken(dml__meeting *meeting, dml__handshake *shake, bool accepted, double now)
{
    dml__close_shake(meeting, shake);
    if (accepted) {
        shake->stage = DML__SHAKE_UNUSED;
        if (!dml__note_shortage(meeting, shake->error)) (*meeting->user->strangers)++;
        return;
    }
    dml__note_shortage(meeting, shake->error);
    dml__rest(shake, shake->error, now);
}

/* A few at a time, so that a crowd at the door doesn't keep us from those who are inside. */
static void dml__accept_visitors(dml__meeting *meeting, double now)
{
    for (int i = 0; i < 16; i++) {
        dml__handshake *place = dml__place_for_visitor(meeting, now);
        if (!place) return;
        dml__address from;
        const int fd = dml__socket_accept(meeting->me.calls, meeting->listener, &from);
        if (fd < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) meeting->listen_after = now + 0.01;
            dml__note_shortage(meeting, errno);
            return;
        }
        if (place->stage != DML__SHAKE_UNUSED) {
            dml__close_shake(meeting, place);
            (*meeting->user->strangers)++;
        }
        dml__begin_accepted(place, &meeting->me, fd, &from, now + meeting->patience);
        if (place->stage == DML__SHAKE_BROKEN) dml__broken(meeting, place, true, now);
    }
}

/* Visitors have a deadline at every stage. Whoever connects has one only until the other end answers: an
   address that swallows all packets must not keep it from the next, but a rank that accepted it must not be
   left. */
static bool dml__has_deadline(const dml__handshake *shake, bool accepted)
{
    return accepted ? dml__handshake_events(shake) != 0 : shake->stage == DML__SHAKE_CONNECTING;
}

/* Moves one handshake on; false when that ended the job. */
static bool dml__advance(dml__meeting *meeting, int index, bool ready, double now)
{
    dml__handshake *shake = &meeting->shakes[index];
    const bool accepted = index >= meeting->outgoing;
    if (shake->stage == DML__SHAKE_RESTING && now >= shake->retry_at && dml__knows_its_way(meeting, shake))
        dml__try_connecting(meeting, shake, now);
    if (ready) dml__handshake_step(shake, &meeting->me);
    if (shake->stage == DML__SHAKE_DONE && shake->fd >= 0) dml__connected(meeting, shake, accepted);
    if (shake->stage == DML__SHAKE_HELD && meeting->failed) dml__tell_held(meeting, shake);
    if (shake->stage == DML__SHAKE_REFUSED) return dml__refused(meeting, shake, accepted, now);
    const bool too_slow = dml__has_deadline(shake, accepted) && now > shake->deadline;
    if (too_slow) shake->error = ETIMEDOUT;
    if (shake->stage == DML__SHAKE_BROKEN || too_slow) dml__broken(meeting, shake, accepted, now);
    return true;
}

/* ---- the loop ---- */

/* Fills in what to wait for, and returns for how long at most. */
static double dml__prepare_polls(dml__meeting *meeting, double now)
{
    double until = dml__until_too_late(meeting);
    struct pollfd *polls = meeting->polls;
    /* Before the session is known, every visitor would seem to be of another job. */
    const bool open = meeting->listener >= 0 && meeting->me.has_session;
    const bool listening = open && now >= meeting->listen_after;
    if (open && !listening && meeting->listen_after < until) until = meeting->listen_after;
    if (meeting->judge_at > 0 && !meeting->failed && meeting->judge_at < until) until = meeting->judge_at;
    polls[0].fd = listening ? meeting->listener : -1;
    polls[0].events = POLLIN;
    for (int i = 0; i < meeting->shake_count; i++) {
        const dml__handshake *shake = &meeting->shakes[i];
        const short events = dml__handshake_events(shake);
        polls[1 + i].fd = events ? shake->fd : -1;
        polls[1 + i].events = events;
        if (dml__has_deadline(shake, i >= meeting->outgoing) && shake->deadline < until)
            until = shake->deadline;
        if (shake->stage == DML__SHAKE_RESTING && shake->retry_at < until &&
            dml__knows_its_way(meeting, shake))
            until = shake->retry_at;
    }
    polls += 1 + meeting->shake_count;
    memcpy(polls, meeting->tcp->polls, (size_t)meeting->me.world * sizeof *polls);
    for (int rank = 0; meeting->failed && rank < meeting->me.world; rank++) polls[rank].fd = -1;
    return until > now ? until - now : 0;
}

/* poll() on the entries that have an fd: it takes no more entries than the process may have files. */
static int dml__poll_meeting(dml__meeting *meeting, size_t count, double seconds)
{
    struct pollfd *polls = meeting->polls, *waits = meeting->waits;
    size_t used = 0;
    for (size_t i = 0; i < count; i++)
        if (polls[i].fd >= 0) waits[used++] = polls[i];
    const int ready = dml__socket_poll(meeting->me.calls, waits, used, seconds);
    used = 0;
    for (size_t i = 0; i < count; i++) polls[i].revents = polls[i].fd >= 0 ? waits[used++].revents : 0;
    return ready;
}

/* One turn: waits, then sees to everything that is ready. False: the job has failed. */
static bool dml__meet_once(dml__meeting *meeting)
{
    double now = dml_seconds();
    const size_t polled = 1 + (size_t)meeting->shake_count + (size_t)meeting->me.world;
    const double left = dml__prepare_polls(meeting, now);
    if (dml__poll_meeting(meeting, polled, left) < 0) {
        dml__tcp_fail(meeting->tcp, meeting->me.rank, DML_ERROR_NETWORK,
                      "rank %d can't wait on its connections: %s", meeting->me.rank, strerror(errno));
        return false;
    }
    now = dml_seconds();
    for (int rank = 0; rank < meeting->me.world; rank++)
        if (meeting->polls[1 + meeting->shake_count + rank].revents && !dml__listen_to_ranks(meeting))
            return false;
    for (int i = 0; i < meeting->shake_count; i++)
        if (!dml__advance(meeting, i, meeting->polls[1 + i].revents != 0, now)) return false;
    if (meeting->polls[0].revents) dml__accept_visitors(meeting, now);
    return true;
}

static int dml__count_held(const dml__meeting *meeting)
{
    int count = 0;
    for (int i = meeting->outgoing; i < meeting->shake_count; i++)
        count += meeting->shakes[i].stage == DML__SHAKE_HELD;
    return count;
}

/* To rank 0, with those that were sent away or are held. */
static bool dml__all_have_come(const dml__meeting *meeting)
{
    int missing = meeting->expected - 1 - meeting->refused;
    if (meeting->judge_at > 0) missing -= dml__count_held(meeting);
    for (int rank = 1; rank < meeting->me.world; rank++)
        missing -= meeting->tcp->fd[DML__CHANNEL_CONTROL][rank] >= 0;
    return missing <= 0;
}

static void dml__add_comer(dml__meeting *meeting, int *count, int rank, int world, uint32_t segment_bytes,
                           uint32_t max_requests)
{
    dml__comer *comer = &meeting->comers[(*count)++];
    comer->rank = rank;
    comer->settings[DML__COMER_WORLD] = (uint32_t)world;
    comer->settings[DML__COMER_SEGMENT] = segment_bytes;
    comer->settings[DML__COMER_REQUESTS] = max_requests;
}

static void dml__welcome_held(dml__meeting *meeting, double now)
{
    meeting->judge_at = 0;
    for (int i = meeting->outgoing; i < meeting->shake_count; i++) {
        dml__handshake *shake = &meeting->shakes[i];
        if (shake->stage != DML__SHAKE_HELD) continue;
        shake->deadline = now + meeting->patience;
        dml__answer_held(shake, &meeting->me);
    }
}

/* Ends the job if somebody is held, and all have come or those who haven't are too late to be asked. Who is
   connected has what rank 0 has. */
static bool dml__comers_are_alike(dml__meeting *meeting)
{
    const dml__identity *me = &meeting->me;
    const double now = dml_seconds();
    char text[DML__NET_TEXT];
    int count = 0;
    if (meeting->judge_at == 0 ||
        (!dml__all_have_come(meeting) && now < meeting->judge_at && now < meeting->deadline))
        return true;
    for (int rank = 0; rank < me->world; rank++)
        if (rank == me->rank || meeting->tcp->fd[DML__CHANNEL_CONTROL][rank] >= 0)
            dml__add_comer(meeting, &count, rank, me->world, me->segment_bytes, me->max_requests);
    for (int i = meeting->outgoing; i < meeting->shake_count; i++) {
        const dml__hello *hello = &meeting->shakes[i].hello_in;
        if (meeting->shakes[i].stage == DML__SHAKE_HELD)
            dml__add_comer(meeting, &count, hello->from, hello->world, hello->segment_bytes,
                           hello->max_requests);
    }
    const int culprit = dml__judge_comers(meeting->comers, count, text, sizeof text);
    if (culprit < 0) { /* the one that had come before is gone */
        dml__welcome_held(meeting, now);
        return true;
    }
    dml__tcp_fail(meeting->tcp, culprit, DML_ERROR_MISMATCH, "%s", text);
    return false;
}

static bool dml__meet_all(dml__meeting *meeting)
{
    while (meeting->to_connect > 0 || !meeting->addresses_done) {
        if (!dml__comers_are_alike(meeting)) return false;
        if (dml_seconds() >= dml__until_too_late(meeting)) {
            dml__meet_too_late(meeting);
            return false;
        }
        if (!dml__meet_once(meeting)) return false;
        if (meeting->me.rank == 0 && !meeting->addresses_done && meeting->judge_at == 0 &&
            dml__all_have_come(meeting) && !dml__send_addresses(meeting))
            return false;
    }
    return true;
}

/* A rank below may have welcomed this one, and counts it in. */
static bool dml__is_counted_in(const dml__meeting *meeting)
{
    for (int i = 0; i < meeting->outgoing; i++)
        if (meeting->shakes[i].stage == DML__SHAKE_GET_WELCOME &&
            meeting->shakes[i].channel == DML__CHANNEL_CONTROL)
            return true;
    return false;
}

/* After a failure. Nobody is sought any more; who comes after the deadline is too late anyway. */
static void dml__tell_those_who_come(dml__meeting *meeting)
{
    const double now = dml_seconds();
    if (!meeting->shakes || !meeting->polls || !meeting->waits) return;
    meeting->failed = true;
    for (int i = 0; i < meeting->shake_count; i++) {
        dml__handshake *shake = &meeting->shakes[i];
        if (shake->stage == DML__SHAKE_HELD) dml__tell_held(meeting, shake);
        if (shake->stage == DML__SHAKE_RESTING) shake->stage = DML__SHAKE_UNUSED;
    }
    if ((!meeting->me.rank && meeting->listener < 0) || now >= meeting->deadline) return;
    meeting->deadline = now + meeting->settings->grace;
    while ((meeting->me.rank ? dml__is_counted_in(meeting) : !dml__all_have_come(meeting)) &&
           dml_seconds() < meeting->deadline)
        if (!dml__meet_once(meeting)) return;
}

static bool dml__prepare_meeting(dml__meeting *meeting)
{
    dml__memory *memory = meeting->user->memory;
    const int rank = meeting->me.rank;
    const size_t world = (size_t)meeting->me.world;
    meeting->outgoing = 2 * rank;
    meeting->shake_count = 2 * meeting->me.world + DML__VISITORS;
    meeting->to_connect = 2 * (meeting->me.world - 1);
    meeting->addresses = (dml__address *)dml__allocate_array(memory, world, sizeof *meeting->addresses);
    meeting->shakes =
        (dml__handshake *)dml__allocate_array(memory, (size_t)meeting->shake_count, sizeof *meeting->shakes);
    const size_t polled = 1 + (size_t)meeting->shake_count + world;
    meeting->polls = (struct pollfd *)dml__allocate_array(memory, polled, sizeof *meeting->polls);
    meeting->waits = (struct pollfd *)dml__allocate_array(memory, polled, sizeof *meeting->waits);
    meeting->comers = (dml__comer *)dml__allocate_array(memory, world + (size_t)meeting->shake_count,
                                                        sizeof *meeting->comers);
    if (!meeting->addresses || !meeting->shakes || !meeting->polls || !meeting->waits || !meeting->comers) {
        dml__tcp_fail(meeting->tcp, rank, DML_ERROR_MEMORY, "rank %d has no memory for the rendezvous", rank);
        return false;
    }
    for (int i = 0; i < meeting->shake_count; i++) {
        dml__handshake *shake = &meeting->shakes[i];
        shake->fd = -1;
        if (i >= meeting->outgoing) continue;
        shake->stage = DML__SHAKE_RESTING;
        shake->rank = i / 2;
        shake->channel = i % 2;
        shake->rest = 0.005;
    }
    if (!dml__find_master(meeting) || !dml__check_trust(meeting)) return false;
    if (rank) return true;
    meeting->me.has_session = true;
    if (meeting->me.calls->random(meeting->me.session, sizeof meeting->me.session) < 0) {
        dml__tcp_fail(meeting->tcp, 0, DML_ERROR_NETWORK, "rank 0 can't get random numbers: %s",
                      strerror(errno));
        return false;
    }
    meeting->me.session[0] |= 1; /* all zero means none */
    return dml__listen_as_master(meeting);
}

static void dml__end_meeting(dml__meeting *meeting)
{
    dml__memory *memory = meeting->user->memory;
    for (int i = 0; meeting->shakes && i < meeting->shake_count; i++)
        dml__close_shake(meeting, &meeting->shakes[i]);
    if (meeting->listener >= 0) meeting->me.calls->close(meeting->listener);
    dml__release(memory, meeting->comers);
    dml__release(memory, meeting->waits);
    dml__release(memory, meeting->polls);
    dml__release(memory, meeting->shakes);
    dml__release(memory, meeting->addresses);
}

DML__LOCAL bool dml__meet(dml__tcp *tcp, const dml__net_settings *settings)
{
    dml__meeting meeting;
    memset(&meeting, 0, sizeof meeting);
    meeting.tcp = tcp;
    meeting.settings = settings;
    meeting.user = tcp->user;
    meeting.listener = -1;
    /* The others wait a little longer, so that it is rank 0, which knows who is missing, that gives up first.
     */
    meeting.deadline = dml_seconds() + settings->timeout + (settings->rank ? settings->grace : 0);
    meeting.patience = settings->timeout / 4 < 0.1 ? 0.1
                       : settings->timeout / 4 > 5 ? 5
                                                   : settings->timeout / 4;
    meeting.me.calls = tcp->calls;
    meeting.me.key = settings->key;
    meeting.me.rank = settings->rank;
    meeting.me.world = settings->world;
    meeting.me.segment_bytes = (uint32_t)settings->segment_bytes;
    meeting.me.max_requests = (uint32_t)settings->max_requests;
    meeting.me.taken = dml__is_taken;
    meeting.me.port = dml__own_port;
    meeting.me.hold = dml__holds;
    meeting.expected = settings->world;
    meeting.me.user = &meeting;
    const bool met = dml__prepare_meeting(&meeting) && dml__meet_all(&meeting);
    if (!met) dml__tell_those_who_come(&meeting);
    dml__end_meeting(&meeting);
    tcp->met = met;
    return met;
}

#endif
