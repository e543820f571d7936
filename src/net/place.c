#ifndef DML_NET_PLACE_C
#define DML_NET_PLACE_C

#include "base/clock.h" /* first of the system's: it asks for POSIX */

#include <errno.h>
#include <netdb.h>
#include <string.h>

#include "net/meeting.h"

/* Where ranks meet. */

static const char *dml__resolve_text(int error)
{
    return error ? gai_strerror(error) : "it has no IPv4 or IPv6 address";
}

/* Name servers may be slow to come up, and to hear of a host that has just started. Its own name a host
 * knows. */
static bool dml__may_resolve_later(const dml__meeting *meeting, int error)
{
    return error == EAI_AGAIN || (error == EAI_NONAME && meeting->me.rank > 0);
}

DML__LOCAL bool dml__find_master(dml__meeting *meeting)
{
    const dml__net_settings *settings = meeting->settings;
    int error;
    for (double rest = 0.05;; rest = rest < 0.5 ? 2 * rest : 1) {
        meeting->master_count =
            dml__resolve_host(meeting->me.calls, settings->master_addr, (uint16_t)settings->master_port,
                              meeting->masters, DML__MASTERS, &error);
        if (meeting->master_count || !dml__may_resolve_later(meeting, error)) break;
        if (dml_seconds() + rest > meeting->deadline) break;
        meeting->me.calls->poll(NULL, 0, (int)(rest * 1000));
    }
    if (!meeting->master_count) {
        dml__tcp_fail(meeting->tcp, meeting->me.rank, DML_ERROR_NETWORK,
                      "rank %d can't find the address of master_addr \"%s\": %s", meeting->me.rank,
                      settings->master_addr, dml__resolve_text(error));
        return false;
    }
    if (!settings->bind_addr) return true;
    meeting->bound =
        dml__interface_address(settings->bind_addr, &meeting->masters[0], &meeting->bind_address) ||
        dml__resolve_host(meeting->me.calls, settings->bind_addr, 0, &meeting->bind_address, 1, &error) == 1;
    if (!meeting->bound)
        dml__tcp_fail(
            meeting->tcp, meeting->me.rank, DML_ERROR_NETWORK,
            "rank %d can't use bind_addr \"%s\": it is no network interface with an address and no name: %s",
            meeting->me.rank, settings->bind_addr, dml__resolve_text(error));
    return meeting->bound;
}

static bool dml__stays_on_loopback(const dml__meeting *meeting)
{
    for (int i = 0; i < meeting->master_count; i++)
        if (!dml__is_loopback(&meeting->masters[i])) return false;
    return !meeting->bound || dml__is_loopback(&meeting->bind_address);
}

DML__LOCAL bool dml__check_trust(dml__meeting *meeting)
{
    const dml__net_settings *settings = meeting->settings;
    if (settings->key || settings->allow_insecure || dml__stays_on_loopback(meeting)) return true;
    dml__tcp_fail(
        meeting->tcp, meeting->me.rank, DML_ERROR_ARGUMENT,
        "rank %d won't leave loopback without a key (master_addr \"%s\"%s%s%s): give all ranks the same "
        "DML_KEY or options.key, or, where anyone on the network may join the job, DML_INSECURE=1 or "
        "options.allow_insecure",
        meeting->me.rank, settings->master_addr, settings->bind_addr ? ", bind_addr \"" : "",
        settings->bind_addr ? settings->bind_addr : "", settings->bind_addr ? "\"" : "");
    return false;
}

static bool dml__listen_at(dml__meeting *meeting, const dml__address *address, uint16_t port)
{
    meeting->listens_at = *address;
    dml__set_address_port(&meeting->listens_at, port);
    meeting->listener = dml__socket_listen(meeting->me.calls, &meeting->listens_at);
    return meeting->listener >= 0;
}

DML__LOCAL bool dml__listen_as_master(dml__meeting *meeting)
{
    const uint16_t port = (uint16_t)meeting->settings->master_port;
    bool listening = false;
    if (meeting->bound) {
        listening = dml__listen_at(meeting, &meeting->bind_address, port);
    } else if (dml__stays_on_loopback(meeting)) {
        for (int i = 0; i < meeting->master_count && !listening; i++)
            listening = dml__listen_at(meeting, &meeting->masters[i], port);
    } else {
        /* A socket of IPv6 takes both; where the system has none, those who come by IPv4 are left. */
        int count[2] = { 0, 0 };
        dml__address any;
        for (int i = 0; i < meeting->master_count; i++)
            count[meeting->masters[i].storage.ss_family == AF_INET6]++;
        for (int ipv6 = 1; ipv6 >= 0 && !listening; ipv6--) {
            if (!count[ipv6]) continue;
            dml__any_address(ipv6 ? AF_INET6 : AF_INET, &any);
            listening = dml__listen_at(meeting, &any, port);
            if (!listening && errno != EAFNOSUPPORT) break;
        }
    }
    if (listening) return true;
    char text[DML__ADDRESS_TEXT];
    const int error = errno;
    dml__tcp_fail(meeting->tcp, meeting->me.rank, DML_ERROR_NETWORK, "rank 0 can't listen on %s: %s",
                  dml__address_text(&meeting->listens_at, text),
                  error == EADDRINUSE
                      ? "the port is in use: another process is rank 0, too, or another job or program "
                        "has it; give each process its own rank (RANK), or choose another "
                        "master_port (MASTER_PORT)"
                      : strerror(error));
    return false;
}

DML__LOCAL int dml__own_port(void *user, int fd)
{
    dml__meeting *meeting = (dml__meeting *)user;
    if (meeting->me.rank + 1 == meeting->me.world) return 0; /* nobody will come */
    if (meeting->listener < 0) {
        dml__address own;
        own.bytes = sizeof own.storage;
        if (meeting->me.calls->own_address(fd, (struct sockaddr *)(void *)&own.storage, &own.bytes) < 0)
            return -1;
        if (!dml__listen_at(meeting, &own, 0)) return -1;
    }
    return dml__address_port(&meeting->listens_at);
}

#endif
