/*
 * A message whose sender is killed before it has arrived whole.
 *
 *   half_message serve PORT      takes the receives of all connections from one shared queue
 *   half_message leave PORT      the same, and exits as soon as a whole message has arrived
 *   half_message half HOST PORT  sends a message after SIGUSR1, prints "sent" and waits to be killed
 *   half_message whole HOST PORT sends a message that arrives
 *
 * The server prints "connected" for each connection, "lost" when one ends without a completion, and
 * "whole NUMBER" for a message that has arrived, with the number of its receive. To serve ends with
 * that message's connection.
 */
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "lab.h"

enum { MESSAGE_BYTES = 32 << 20, RECEIVES = 2, DEPTH = 4 };

struct side {
	struct rdma_event_channel *channel;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	char *memory;
};

static void equip(struct side *side, struct ibv_context *device)
{
	side->memory = check_pointer(calloc(1, MESSAGE_BYTES), "calloc");
	side->pd = check_pointer(ibv_alloc_pd(device), "ibv_alloc_pd");
	side->cq = check_pointer(ibv_create_cq(device, 2 * DEPTH, NULL, NULL, 0), "ibv_create_cq");
	side->mr = check_pointer(ibv_reg_mr(side->pd, side->memory, MESSAGE_BYTES,
					    IBV_ACCESS_LOCAL_WRITE),
				 "ibv_reg_mr");
}

static void give_queue_pair_of(struct side *side, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr wanted = {
		.qp_type = IBV_QPT_RC,
		.send_cq = side->cq,
		.recv_cq = side->cq,
		.srq = side->srq,
		.cap = { DEPTH, DEPTH, 1, 1, 0 },
		.sq_sig_all = 1,
	};

	check(rdma_create_qp(id, side->pd, &wanted), "rdma_create_qp");
}

static void share_receives(struct side *side)
{
	struct ibv_srq_init_attr wanted = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_sge sge = { (uintptr_t)side->memory, MESSAGE_BYTES, side->mr->lkey };

	side->srq = check_pointer(ibv_create_srq(side->pd, &wanted), "ibv_create_srq");
	for (int i = 0; i < RECEIVES; i++) {
		struct ibv_recv_wr receive = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

		check(ibv_post_srq_recv(side->srq, &receive, &bad), "ibv_post_srq_recv");
	}
}

/* Handles the events that there are. Returns whether a connection has ended. */
static bool handle_events(struct side *side)
{
	struct pollfd ready = { .fd = side->channel->fd, .events = POLLIN };
	struct rdma_conn_param parameters = connection_parameters();

	while (poll(&ready, 1, 0) == 1) {
		struct lab_event event = take_event(side->channel);

		switch (event.kind) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			if (!side->pd) {
				equip(side, event.id->verbs);
				share_receives(side);
			}
			give_queue_pair_of(side, event.id);
			check(rdma_accept(event.id, &parameters), "rdma_accept");
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			puts("connected");
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			check(rdma_disconnect(event.id), "rdma_disconnect");
			return true;
		default:
			break;
		}
	}
	return false;
}

static void serve(const char *port, bool leaves)
{
	struct side side = {
		.channel = check_pointer(rdma_create_event_channel(), "rdma_create_event_channel"),
	};
	struct ibv_wc completion;
	bool whole = false;

	listen_on(side.channel, port);
	for (;;) {
		bool ended = handle_events(&side);
		int count = side.cq ? ibv_poll_cq(side.cq, 1, &completion) : 0;

		if (count < 0 || (count && completion.status))
			die("a completion: %s", ibv_wc_status_str(completion.status));
		if (count) {
			printf("whole %d\n", (int)completion.wr_id);
			whole = true;
		}
		if (whole && (ended || leaves))
			return;
		if (ended)
			puts("lost");
	}
}

static void send_message(bool whole, const char *host, const char *port)
{
	struct rdma_conn_param parameters = connection_parameters();
	struct side side = {
		.channel = check_pointer(rdma_create_event_channel(), "rdma_create_event_channel"),
	};
	struct rdma_cm_id *id = route_to(side.channel, host, port);
	struct ibv_send_wr *bad, request = { .opcode = IBV_WR_SEND, .num_sge = 1 };
	struct ibv_wc completion;
	struct ibv_sge sge;
	sigset_t awaited;
	int signal;

	equip(&side, id->verbs);
	give_queue_pair_of(&side, id);
	check(rdma_connect(id, &parameters), "rdma_connect");
	expect_event(side.channel, RDMA_CM_EVENT_ESTABLISHED);
	sigemptyset(&awaited);
	sigaddset(&awaited, SIGUSR1);
	check(sigprocmask(SIG_BLOCK, &awaited, NULL), "sigprocmask");
	puts("connected");
	if (!whole)
		check(sigwait(&awaited, &signal), "sigwait");
	sge = (struct ibv_sge){ (uintptr_t)side.memory, MESSAGE_BYTES, side.mr->lkey };
	request.sg_list = &sge;
	check(ibv_post_send(id->qp, &request, &bad), "ibv_post_send");
	puts("sent");
	while (!whole)
		pause();
	while (!ibv_poll_cq(side.cq, 1, &completion))
		;
	if (completion.status)
		die("sent: %s", ibv_wc_status_str(completion.status));
}

int main(int count, char **words)
{
	setlinebuf(stdout);
	if (count == 3 && (!strcmp(words[1], "serve") || !strcmp(words[1], "leave")))
		serve(words[2], !strcmp(words[1], "leave"));
	else if (count == 4 && (!strcmp(words[1], "half") || !strcmp(words[1], "whole")))
		send_message(!strcmp(words[1], "whole"), words[2], words[3]);
	else
		die("see the source for the arguments");
	return 0;
}
