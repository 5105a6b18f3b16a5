/* What the lab's programs share: giving up, connecting by rdma_cm, and waiting for completions. */
#ifndef LAB_H
#define LAB_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

/* For calls that return 0, or -1 and errno, or an errno. */
static inline void check(int result, const char *what)
{
	if (result)
		die("%s: %s", what, strerror(result < 0 ? errno : result));
}

static inline void *check_pointer(void *result, const char *what)
{
	if (!result)
		die("%s: %s", what, strerror(errno));
	return result;
}

/* An event of a channel, which has been acknowledged. */
struct lab_event {
	enum rdma_cm_event_type kind;
	int status;
	struct rdma_cm_id *id;
};

/* Waits for the next event of the channel and acknowledges it. */
static inline struct lab_event take_event(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	struct lab_event taken;

	check(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	taken = (struct lab_event){ event->event, event->status, event->id };
	check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
	return taken;
}

/*
 * Waits for the next event of the channel, which must be of the wanted kind, and returns its id.
 * The end of a closed connection's time-wait, which only some devices report, does not count.
 */
static inline struct rdma_cm_id *expect_event(struct rdma_event_channel *channel,
					      enum rdma_cm_event_type wanted)
{
	struct lab_event event;

	do
		event = take_event(channel);
	while (event.kind == RDMA_CM_EVENT_TIMEWAIT_EXIT);
	if (event.kind != wanted)
		die("event %s (status %d) instead of %s", rdma_event_str(event.kind), event.status,
		    rdma_event_str(wanted));
	return event.id;
}

/* A listener on every address. */
static inline struct rdma_cm_id *listen_on(struct rdma_event_channel *channel, const char *port)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *address;
	struct rdma_cm_id *listener;

	check(rdma_getaddrinfo("0.0.0.0", port, &hints, &address), "rdma_getaddrinfo");
	check(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_bind_addr(listener, address->ai_src_addr), "rdma_bind_addr");
	check(rdma_listen(listener, 128), "rdma_listen");
	rdma_freeaddrinfo(address);
	return listener;
}

/* An id that has a route to the address, and so a device, but no queue pair yet. */
static inline struct rdma_cm_id *route_to(struct rdma_event_channel *channel, const char *host,
					  const char *port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *address;
	struct rdma_cm_id *id;

	check(rdma_getaddrinfo(host, port, &hints, &address), "rdma_getaddrinfo");
	check(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_resolve_addr(id, NULL, address->ai_dst_addr, 5000), "rdma_resolve_addr");
	expect_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	check(rdma_resolve_route(id, 5000), "rdma_resolve_route");
	expect_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	rdma_freeaddrinfo(address);
	return id;
}

/* Reliable connections with read and atomic depth, and retries that give up. */
static inline struct rdma_conn_param connection_parameters(void)
{
	return (struct rdma_conn_param){
		.responder_resources = 4,
		.initiator_depth = 4,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
}

#endif
