/*
 * Many clients that connect at the same instant, to a server that may run out of descriptors.
 *
 *   crowd serve PORT LIMIT          serves with at most LIMIT descriptors (0: as many as it may have)
 *   crowd connect HOST PORT COUNT   opens COUNT connections at once
 *
 * Whatever the server lacks, each identifier that it gets shows a device that works, and each call
 * that fails says that descriptors are missing. SIGUSR1 lifts the limit.
 *
 * The client prints "established: N" when each of its connections is established or refused.
 */
#include <signal.h>
#include <sys/resource.h>

#include "lab.h"

enum { DEPTH = 4 };

static struct rlimit before;

static void limit_descriptors(rlim_t limit)
{
	struct rlimit limited = { limit, before.rlim_max };

	check(setrlimit(RLIMIT_NOFILE, &limited), "setrlimit");
}

static void lift_limit(int signal)
{
	(void)signal;
	setrlimit(RLIMIT_NOFILE, &before);
}

/* Checks that a call that has failed says that descriptors are missing. */
static void expect_shortage(const char *what)
{
	if (errno != EMFILE && errno != ENFILE)
		die("%s: %s", what, strerror(errno));
}

/* Makes the objects of a connection. Returns false if descriptors are missing. */
static bool equip(struct rdma_cm_id *id)
{
	struct ibv_device_attr device;
	struct ibv_qp_init_attr wanted = { .qp_type = IBV_QPT_RC, .cap = { DEPTH, DEPTH, 1, 1, 0 } };
	struct ibv_comp_channel *channel;
	struct ibv_pd *pd;

	if (!id->verbs)
		die("an identifier without a device");
	check(ibv_query_device(id->verbs, &device), "ibv_query_device");
	pd = check_pointer(ibv_alloc_pd(id->verbs), "ibv_alloc_pd");
	channel = ibv_create_comp_channel(id->verbs);
	if (!channel) {
		expect_shortage("ibv_create_comp_channel");
		check(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
		return false;
	}
	wanted.send_cq = wanted.recv_cq =
		check_pointer(ibv_create_cq(id->verbs, DEPTH, NULL, channel, 0), "ibv_create_cq");
	if (!rdma_create_qp(id, pd, &wanted))
		return true;
	expect_shortage("rdma_create_qp");
	check(ibv_destroy_cq(wanted.send_cq), "ibv_destroy_cq");
	check(ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
	check(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	return false;
}

static void serve(const char *port, rlim_t limit)
{
	struct rdma_event_channel *channel =
		check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	struct sigaction lifting = { .sa_handler = lift_limit, .sa_flags = SA_RESTART };
	struct rdma_conn_param parameters = connection_parameters();
	struct rdma_cm_event *event;

	listen_on(channel, port);
	check(sigaction(SIGUSR1, &lifting, NULL), "sigaction");
	check(getrlimit(RLIMIT_NOFILE, &before), "getrlimit");
	if (limit)
		limit_descriptors(limit);
	for (;;) {
		struct lab_event taken;

		if (rdma_get_cm_event(channel, &event)) {
			if (errno == EINTR)
				continue;
			die("rdma_get_cm_event: %s", strerror(errno));
		}
		taken = (struct lab_event){ event->event, event->status, event->id };
		check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
		if (taken.kind != RDMA_CM_EVENT_CONNECT_REQUEST)
			continue;
		if (equip(taken.id)) {
			if (!rdma_accept(taken.id, &parameters))
				continue;
			/* The client may have given up, or descriptors are missing. */
			fprintf(stderr, "rdma_accept: %s\n", strerror(errno));
			rdma_destroy_qp(taken.id);
		}
		check(rdma_destroy_id(taken.id), "rdma_destroy_id");
	}
}

static void connect_all(const char *host, const char *port, int count)
{
	struct rdma_event_channel *channel =
		check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	struct rdma_cm_id **ids = check_pointer(calloc(count, sizeof *ids), "calloc");
	struct rdma_conn_param parameters = connection_parameters();
	int established = 0;

	for (int i = 0; i < count; i++) {
		ids[i] = route_to(channel, host, port);
		if (!equip(ids[i]))
			die("no descriptors");
	}
	for (int i = 0; i < count; i++)
		check(rdma_connect(ids[i], &parameters), "rdma_connect");
	for (int ended = 0; ended < count;) {
		struct lab_event event = take_event(channel);

		switch (event.kind) {
		case RDMA_CM_EVENT_ESTABLISHED:
			established++;
			ended++;
			break;
		case RDMA_CM_EVENT_REJECTED:
		case RDMA_CM_EVENT_UNREACHABLE:
			ended++;
			break;
		default:
			break;
		}
	}
	printf("established: %d\n", established);
}

int main(int count, char **words)
{
	if (count == 4 && !strcmp(words[1], "serve"))
		serve(words[2], strtoul(words[3], NULL, 10));
	else if (count == 5 && !strcmp(words[1], "connect"))
		connect_all(words[2], words[3], atoi(words[4]));
	else
		die("see the source for the arguments");
	return 0;
}
