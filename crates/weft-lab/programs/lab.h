/* Functions that the lab's programs share: errors, connections by rdma_cm, queue pairs. */
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

/* Checks the result of a call that returns 0, or -1 with errno, or an errno. */
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

/* An event of a channel that has been acknowledged. */
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
 * Ignores the end of a closed connection's time-wait, because only some devices report it.
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

/* Listens on all addresses. */
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

/* Makes an id with a route to the address, and so with a device, but without a queue pair. */
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

/* Objects that all connections of a program share. */
struct lab_objects {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char buffer[4096];
};

/* Makes the shared objects on the device of the first connection. */
static inline void make_objects(struct lab_objects *objects, struct ibv_context *device)
{
	objects->pd = check_pointer(ibv_alloc_pd(device), "ibv_alloc_pd");
	objects->cq = check_pointer(ibv_create_cq(device, 65536, NULL, NULL, 0), "ibv_create_cq");
	objects->mr = check_pointer(ibv_reg_mr(objects->pd, objects->buffer, sizeof objects->buffer,
					       IBV_ACCESS_LOCAL_WRITE),
				    "ibv_reg_mr");
}

/* The attributes of a queue pair with room for `depth` requests in each direction. */
static inline struct ibv_qp_init_attr queue_pair_of(const struct lab_objects *objects,
						    uint32_t depth)
{
	return (struct ibv_qp_init_attr){
		.qp_type = IBV_QPT_RC,
		.send_cq = objects->cq,
		.recv_cq = objects->cq,
		.cap = { depth, depth, 1, 1, 0 },
	};
}

/* Gives an identifier a queue pair with one posted receive. */
static inline void give_queue_pair(const struct lab_objects *objects, struct rdma_cm_id *id, uint32_t depth)
{
	struct ibv_qp_init_attr wanted = queue_pair_of(objects, depth);
	struct ibv_sge sge = { (uintptr_t)objects->buffer, sizeof objects->buffer,
			       objects->mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;

	check(rdma_create_qp(id, objects->pd, &wanted), "rdma_create_qp");
	check(ibv_post_recv(id->qp, &receive, &bad), "ibv_post_recv");
}

/* Destroys an identifier with its queue pair, and drains the completions of flushed receives. */
static inline void destroy_with_queue_pair(const struct lab_objects *objects, struct rdma_cm_id *id)
{
	struct ibv_wc completions[64];

	rdma_destroy_qp(id);
	check(rdma_destroy_id(id), "rdma_destroy_id");
	while (ibv_poll_cq(objects->cq, 64, completions) > 0)
		;
}

/* Parameters of a connection that allows RDMA reads and atomics, with 7 retries. */
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
