/*
 * A peer that is killed after it has sent more messages than Weft buffers. The server never posts a
 * receive for them.
 *
 *   rnr_overrun serve PORT           posts no receive, and waits for the end of the connection
 *   rnr_overrun connect HOST PORT    posts messages, prints "posted", and waits to be killed
 *
 * The server prints "connected" and, after the event, "disconnected".
 */
#include <unistd.h>

#include "lab.h"

enum { MESSAGES = 1024, MESSAGE_BYTES = 65536 };

static struct rdma_cm_id *equip(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.cap = { MESSAGES, 1, 1, 1, 0 },
	};

	check(rdma_create_qp(id, NULL, &attributes), "rdma_create_qp");
	return id;
}

static void serve(const char *port)
{
	struct rdma_conn_param parameters = connection_parameters();
	struct rdma_event_channel *channel =
		check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	struct rdma_cm_id *id;

	listen_on(channel, port);
	id = equip(expect_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST));
	check(rdma_accept(id, &parameters), "rdma_accept");
	expect_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	puts("connected");
	fflush(stdout);
	expect_event(channel, RDMA_CM_EVENT_DISCONNECTED);
	puts("disconnected");
}

static void post_all(const char *host, const char *port)
{
	struct rdma_conn_param parameters = connection_parameters();
	struct rdma_event_channel *channel =
		check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	struct rdma_cm_id *id = equip(route_to(channel, host, port));
	char *memory = check_pointer(calloc(1, MESSAGE_BYTES), "calloc");
	struct ibv_mr *mr = check_pointer(ibv_reg_mr(id->pd, memory, MESSAGE_BYTES, 0),
					  "ibv_reg_mr");
	struct ibv_sge sge = { (uintptr_t)memory, MESSAGE_BYTES, mr->lkey };
	struct ibv_send_wr request = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	check(rdma_connect(id, &parameters), "rdma_connect");
	expect_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	for (int i = 0; i < MESSAGES; i++)
		check(ibv_post_send(id->qp, &request, &bad), "ibv_post_send");
	puts("posted");
	fflush(stdout);
	pause();
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "serve"))
		serve(argv[2]);
	else if (argc == 4 && !strcmp(argv[1], "connect"))
		post_all(argv[2], argv[3]);
	else
		die("usage: see the head of rnr_overrun.c");
	return 0;
}
